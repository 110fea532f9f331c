"""The opened T2S transformer against upstream's scripted one."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.loading import Official
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.torch_noise import paired_noise

torch = pytest.importorskip("torch")

from tts_compress.models.gpt_sovits.modules import ResidualBlock, open_residuals  # noqa: E402
from tts_compress.torch.layers.module_surgery import fold_weight_norm  # noqa: E402

_CONFIG = {
    "model": {
        "hidden_dim": 64,
        "embedding_dim": 64,
        "head": 4,
        "n_layer": 3,
        "vocab_size": 1025,
        "phoneme_vocab_size": 732,
        "dropout": 0,
        "EOS": 1024,
    }
}


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Run a test as upstream runs its loops."""
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def make_decoder(official: Official) -> Callable[[], Any]:
    """Return a function that builds upstream's decoder, each time with the same weights."""

    def make() -> Any:
        torch.manual_seed(0)
        decoder = official.t2s.Text2SemanticDecoder(config=_CONFIG).eval()
        with torch.no_grad():
            for name, parameter in decoder.named_parameters():
                if "norm" not in name:
                    parameter.normal_(0, 0.15)
        return decoder

    return make


@pytest.fixture(scope="module")
def scripted(make_decoder: Callable[[], Any]) -> Any:
    """Return the decoder as upstream runs it."""
    return make_decoder()


@pytest.fixture
def opened(make_decoder: Callable[[], Any]) -> Any:
    """Return the same with its transformer opened."""
    from tts_compress.models.gpt_sovits.modules import open_decoder

    return open_decoder(make_decoder())


def _texts(*lengths: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    return {
        "x": [torch.randint(0, 732, (n,), generator=generator) for n in lengths],
        "x_lens": torch.tensor(lengths),
        "bert_feature": [torch.randn(1024, n, generator=generator) for n in lengths],
        "max_len": max(lengths),
    }


def _prompt(texts: int) -> Any:
    return torch.randint(0, 1024, (texts, 9), generator=torch.Generator().manual_seed(2))


_SETTINGS = {"top_k": 15, "top_p": 1, "temperature": 1.0, "early_stop_num": 40}


@pytest.mark.parametrize("seed", [None, 3], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("loop", "lengths", "prompted"),
    [
        ("infer_panel_batch_infer", (12,), True),
        ("infer_panel_batch_infer", (12, 7, 10), True),  # padded on the left
        ("infer_panel_naive_batched", (12, 7), True),
        ("infer_panel_naive_batched", (12,), False),  # no example to follow
    ],
)
@pytest.mark.usefixtures("no_gradients")
def test_every_loop_of_upstream_says_the_same(
    scripted: Any,
    opened: Any,
    loop: str,
    lengths: tuple[int, ...],
    prompted: bool,
    seed: int | None,
) -> None:
    said = []
    for decoder in (scripted, opened):
        inputs = _texts(*lengths) | {"prompts": _prompt(len(lengths)) if prompted else None}
        with paired_noise(seed):
            said.append(getattr(decoder, loop)(**inputs, **_SETTINGS))
    (theirs, their_counts), (ours, our_counts) = said
    assert their_counts == our_counts
    for their_ids, our_ids in zip(theirs, ours, strict=True):
        # The most probable token may follow itself for ever; drawn ones do not.
        assert seed is None or len(set(our_ids[-30:].tolist())) > 3
        torch.testing.assert_close(our_ids, their_ids, rtol=0, atol=0)


def _make_ends_likely(_module: Any, _inputs: Any, scores: Any) -> Any:
    """Give the end nearly the score of the most probable token, so that it is drawn in time."""
    scores[..., 1024] = scores.max(dim=-1).values - 1
    return scores


@pytest.mark.usefixtures("no_gradients")
def test_texts_that_end_leave_their_batch(scripted: Any, opened: Any) -> None:
    """Upstream then takes the rows that go on out of keys and values."""
    counts = []
    for decoder in (scripted, opened):
        hook = decoder.ar_predict_layer.register_forward_hook(_make_ends_likely)
        inputs = _texts(12, 7, 10, 5) | {"prompts": _prompt(4)}
        with paired_noise(0):
            said = decoder.infer_panel_batch_infer(**inputs, **_SETTINGS)
        hook.remove()
        counts.append((said[1], [ids.tolist() for ids in said[0]]))
    assert counts[0] == counts[1]
    assert len(set(counts[0][0])) > 1


@pytest.mark.usefixtures("no_gradients")
def test_outputs_agree_step_by_step_beyond_the_first_room(scripted: Any, opened: Any) -> None:
    torch.manual_seed(3)
    text, steps = torch.randn(1, 20, 64), torch.randn(300, 1, 1, 64)
    blocked = torch.zeros(1, 4, 20, 20, dtype=torch.bool).logical_or(
        torch.ones(20, 20, dtype=torch.bool).triu(1)
    )
    states = [
        list(decoder.t2s_transformer.process_prompt(text, blocked.clone(), None))
        for decoder in (scripted, opened)
    ]
    torch.testing.assert_close(states[1][0], states[0][0], rtol=0, atol=1e-5)
    for step in steps:
        for decoder, state in zip((scripted, opened), states, strict=True):
            state[:] = decoder.t2s_transformer.decode_next_token(step, state[1], state[2])
        torch.testing.assert_close(states[1][0], states[0][0], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("no_gradients")
def test_scores_of_given_tokens_are_those_of_the_steps(opened: Any) -> None:
    phones, bert = torch.randint(0, 732, (1, 11)), torch.randn(1, 1024, 11)
    found: list[Any] = []
    hook = opened.ar_predict_layer.register_forward_hook(
        lambda _module, _inputs, scores: found.append(scores.clone())
    )
    prompt, lengths = _prompt(1), torch.tensor([11])
    with paired_noise(0):
        said, counts = opened.infer_panel_batch_infer(
            [phones[0]], lengths, prompt, [bert[0]], max_len=11, **_SETTINGS
        )
    hook.remove()
    scores = opened(phones, bert, said[0].unsqueeze(0).long())[0]
    steps = torch.cat(found)[: counts[0]]
    torch.testing.assert_close(scores[9 : 9 + len(steps)], steps, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("no_gradients")
def test_what_is_exchanged_is_heard(scripted: Any, opened: Any) -> None:
    """Upstream's own object ignores exchanged layers: the scripted blocks hold the old tensors."""
    text = torch.randn(1, 6, 64)
    blocked = torch.zeros(1, 4, 6, 6, dtype=torch.bool)

    def run(decoder: Any) -> Any:
        return decoder.t2s_transformer.process_prompt(text, blocked, None)[0]

    before = run(scripted)
    kept = scripted.h.layers[0].linear1
    scripted.h.layers[0].linear1 = torch.nn.Linear(64, 256)
    torch.testing.assert_close(run(scripted), before)
    scripted.h.layers[0].linear1 = kept

    torch.testing.assert_close(run(opened), before, rtol=0, atol=1e-5)
    opened.t2s_transformer.blocks[0].up = torch.nn.Linear(64, 256)
    assert (run(opened) - before).abs().max() > 0.01


def test_gradients_reach_every_weight(opened: Any) -> None:
    scores = opened(
        torch.randint(0, 732, (1, 6)), torch.randn(1, 1024, 6), torch.randint(0, 1024, (1, 8))
    )
    assert scores.shape == (1, 9, 1025)
    scores.log_softmax(-1)[..., 5].sum().backward()
    for name, parameter in opened.t2s_transformer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_checkpoints_keep_upstreams_names(scripted: Any, opened: Any) -> None:
    from tts_compress.models.gpt_sovits.modules import official_name

    theirs = dict(scripted.state_dict())
    ours = {official_name(name): tensor for name, tensor in opened.state_dict().items()}
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name])


def test_a_padding_mask_is_refused(opened: Any) -> None:
    inputs = torch.randn(1, 2, 64), torch.zeros(1, 4, 2, 2, dtype=torch.bool)
    with pytest.raises(ModelError, match="padding mask"):
        opened.t2s_transformer.process_prompt(*inputs, torch.ones(1, 2, 1))


def _holder(official: Official) -> Any:
    torch.manual_seed(0)
    block = official.checkout.load("module.modules").ResBlock1(8, 3, (1, 3, 5))
    holder = torch.nn.ModuleDict({"block": block}).eval()
    fold_weight_norm(holder)
    return holder


def test_a_block_is_upstreams_bit_by_bit(official: Official) -> None:
    plain = _holder(official)
    opened = copy.deepcopy(plain)
    open_residuals(official.checkout, opened)
    assert isinstance(opened["block"], ResidualBlock)
    assert opened.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(2, 8, 40)
    before = x.clone()
    with torch.inference_mode():
        assert torch.equal(opened["block"](x), plain["block"](x))
    assert torch.equal(x, before)


def test_gradients_are_upstreams(official: Official) -> None:
    """Some steps write over what they read; none of it is what gradients are computed from."""
    plain = _holder(official)
    opened = copy.deepcopy(plain)
    open_residuals(official.checkout, opened)
    found = []
    for holder in (plain, opened):
        x = torch.randn(1, 8, 20, generator=torch.Generator().manual_seed(1), requires_grad=True)
        holder["block"](x).square().mean().backward()
        found.append([x.grad, *(parameter.grad for parameter in holder.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_models_decoder_has_such_blocks(tiny: GptSovitsModel) -> None:
    blocks: Any = tiny.root().get_submodule("vits.dec.resblocks")
    assert {type(block) for block in blocks} == {ResidualBlock}
