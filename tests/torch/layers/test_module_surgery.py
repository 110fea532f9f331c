"""Copies that share weights, and modules rewritten without changing what they compute."""

import copy
import threading
from collections import deque
from functools import partial
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, weight_norm

from tests.measures import snr_db
from tts_compress import (
    compress,
    convert_qat,
    load_module,
    manifest_of,
    prepare_qat,
    save_module,
)
from tts_compress.errors import QuantizationError
from tts_compress.torch.layers.module_surgery import (
    BlockedSnake,
    OpenAttention,
    copy_sharing_tensors,
    fold_weight_norm,
    normalize,
    open_attention,
    replace_module,
    replace_snake,
)


class Local(nn.Module):
    """Has what cannot be copied: a lock of its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.local = threading.local()
        self.linear = nn.Linear(3, 3)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [weight_norm, parametrizations.weight_norm], ids=["old", "new"])
@pytest.mark.parametrize(
    "layer",
    [lambda: nn.Conv1d(4, 6, 3), lambda: nn.ConvTranspose1d(4, 6, 3), lambda: nn.Linear(7, 6)],
    ids=["conv", "transposed", "linear"],
)
def test_folding_a_copy_changes_neither_output_nor_original(norm, layer) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    torch.manual_seed(0)
    original = nn.Sequential(norm(layer()), nn.ReLU())
    x = torch.randn(2, 4, 7)
    expected = original(x)  # leaves a computed weight that is part of a graph of gradients
    names = set(original.state_dict())
    folded = copy_sharing_tensors(original)
    fold_weight_norm(folded)
    torch.testing.assert_close(folded(x), expected)
    assert type(folded[0]) in {nn.Conv1d, nn.ConvTranspose1d, nn.Linear}
    assert set(folded.state_dict()) == {"0.weight", "0.bias"}
    # Torch's own way of removing it takes a property from a class that both share.
    torch.testing.assert_close(original(x), expected)
    assert set(original.state_dict()) == names
    again = copy_sharing_tensors(original)
    fold_weight_norm(again)
    assert set(again.state_dict()) == {"0.weight", "0.bias"}


def test_another_parametrization_stays() -> None:
    layer = parametrizations.orthogonal(nn.Linear(4, 4))
    fold_weight_norm(nn.Sequential(layer))
    assert parametrize.is_parametrized(layer)


def test_a_copy_shares_weights_and_nothing_else() -> None:
    original = Local()
    with pytest.raises(TypeError):
        copy.deepcopy(original)
    copied = copy_sharing_tensors(original)
    assert copied.linear.weight is original.linear.weight
    replace_module(copied, "linear", nn.Identity())
    assert isinstance(original.linear, nn.Linear)


def test_a_module_under_two_names_stays_one() -> None:
    """T5 has its table as `shared` and as `encoder.embed_tokens`, and looks up in the second."""
    inner = nn.Linear(2, 2)
    copied = copy_sharing_tensors(nn.ModuleDict({"a": inner, "b": nn.Sequential(inner)}))
    assert copied["a"] is copied.get_submodule("b.0")
    other = nn.Identity()
    replace_module(copied, "a", other)
    assert copied["a"] is other
    assert copied.get_submodule("b.0") is other


ATTENTION = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "other widths": {"kdim": 12, "vdim": 20},
}


@pytest.mark.parametrize("options", ATTENTION.values(), ids=ATTENTION)
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both", "per head"])
def test_open_attention_equals_torchs(
    options: dict[str, bool], need_weights: bool, masks: str
) -> None:
    torch.manual_seed(0)
    closed = nn.MultiheadAttention(16, 4, **options).eval()
    found = open_attention(closed)
    assert found is not None
    query, key = torch.randn(5, 3, 16), torch.randn(7, 3, closed.kdim or 16)
    value = torch.randn(7, 3, closed.vdim or 16)
    if closed.batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    padding = torch.zeros(3, 7, dtype=torch.bool)
    padding[1, 5:] = True
    causal = torch.ones(5, 7, dtype=torch.bool).triu(3)
    per_head = torch.randn(12, 5, 7)
    given = {
        "key_padding_mask": padding if masks in {"padding", "both"} else None,
        "attn_mask": {"causal": causal, "both": causal, "per head": per_head}.get(masks),
        "need_weights": need_weights,
    }
    expected = closed(query, key, value, **given)
    got = found(query, key, value, **given)
    torch.testing.assert_close(got[0], expected[0])
    if need_weights:
        torch.testing.assert_close(got[1], expected[1])
        weights = closed(query, key, value, average_attn_weights=False, **given)[1]
        ours = found(query, key, value, average_attn_weights=False, **given)[1]
        torch.testing.assert_close(ours, weights)
    else:
        assert got[1] is None


def test_open_attention_without_a_batch() -> None:
    torch.manual_seed(0)
    closed = nn.MultiheadAttention(16, 4).eval()
    x, mask = torch.randn(5, 16), torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = closed(x, x, x, attn_mask=mask)
    got = OpenAttention(closed)(x, x, x, attn_mask=mask)
    torch.testing.assert_close(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1])


@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only"])
def test_an_encoder_takes_a_mask_of_padding(scheme: str) -> None:
    """Torch nested the frames for layers that were no longer there."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 10, 64)
    padding = torch.arange(10) >= torch.tensor([[10], [6]])
    small: Any = compress(encoder, scheme)
    with torch.inference_mode():
        expected, got = (m(x, src_key_padding_mask=padding)[~padding] for m in (encoder, small))
    assert snr_db(expected.numpy(), got.numpy()) > 30


@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_layer_calls_what_replaced_its_attention(batch_first: bool) -> None:
    """Its fast path would read the weights and call nothing."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 5, 16)
    with torch.inference_mode():
        expected = encoder(x)
        opened = normalize(copy_sharing_tensors(encoder))
        torch.testing.assert_close(opened(x), expected)
        calls: list[int] = []
        for module in opened.modules():
            if isinstance(module, OpenAttention):
                module.q_proj.register_forward_hook(lambda *_: calls.append(1))
        opened(x)
    assert len(calls) == 2


def test_attention_with_learned_keys_stays_closed() -> None:
    assert open_attention(nn.MultiheadAttention(8, 2, add_bias_kv=True)) is None
    assert open_attention(nn.MultiheadAttention(8, 2, add_zero_attn=True)) is None


class _Attending(nn.Module):
    def __init__(self, *attentions: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attentions, self.last = nn.ModuleList(attentions), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for attention in self.attentions:
            x = x + attention(x, x, x)[0]
        return torch.as_tensor(self.last(x))


class _Doubled(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(*args, **kwargs)
        return 2 * output, weights


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-weight-only", "int4-weight-only"])
@pytest.mark.parametrize("kind", ["shared", "learned keys", "subclass"])
@pytest.mark.filterwarnings("ignore:.* stay in FP32:tts_compress.errors.TTSCompressWarning")
def test_attention_of_any_kind_computes_the_same(kind: str, scheme: str) -> None:
    """Attention that stayed closed multiplied by the weight of a replaced layer: NaN."""
    torch.manual_seed(0)
    if kind == "shared":
        attentions = [nn.MultiheadAttention(64, 4)] * 3
    else:
        attentions = [
            _Doubled(64, 4)
            if kind == "subclass"
            else nn.MultiheadAttention(64, 4, add_bias_kv=True)
        ]
    net = _Attending(*attentions).eval()
    small = compress(net, scheme)
    assert len({*small.get_submodule("attentions").children()}) == 1
    x = torch.randn(5, 2, 64)
    expected, found = net(x), small(x)
    assert (expected - found).norm() / expected.norm() < 0.2
    layer = next(r for r in manifest_of(small).layers if r.module.endswith("out_proj"))
    assert ("hands its weight to a function" in layer.reason) == (kind != "shared")


@pytest.mark.parametrize("shape", [(1, 6, 40), (2, 6, 70_000), (3, 5, 7), (0, 6, 40), (1, 6, 0)])
@pytest.mark.parametrize("last", [True, False], ids=["channels last", "time last"])
def test_snake_in_blocks_equals_the_formula(shape: tuple[int, ...], last: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    x = x.transpose(1, 2).contiguous().transpose(1, 2) if last else x
    snake = BlockedSnake(nn.Parameter(torch.rand(1, shape[1], 1) + 0.1))
    expected = x.double() + torch.sin(snake.alpha.double() * x.double()) ** 2 / snake.alpha.double()
    with torch.inference_mode():
        found = snake(x)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(snake(x), found, rtol=1e-5, atol=1e-5)  # with gradients


def test_snakes_of_known_packages_are_replaced_and_only_those() -> None:
    class Snake1d(nn.Module):
        pass

    assert replace_snake(Snake1d()) is None


def _call(layer: Any, x: torch.Tensor, *, other: Any) -> Any:
    return other(layer(x))


class _Listed(nn.Module):
    """Calls layers by attributes that torch does not know as children."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(64, 64) for _ in range(4))
        self.order: list[Any] = [deque([self.a]), {"b": (SimpleNamespace(layer=self.b),)}]
        self.last = partial(_call, self.c.forward, other=self.d)
        self.order.append(self.order)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = self.order[:2]
        return torch.as_tensor(self.last(second["b"][0].layer(first[0](x))))


@pytest.mark.parametrize("scheme", ["int8-dynamic", "int8-weight-only"])
def test_layers_are_replaced_wherever_they_are_held(tmp_path: Path, scheme: str) -> None:
    """They ran in FP32 without a word, and with other weights once the result was loaded."""
    torch.manual_seed(0)
    net, x = _Listed().eval(), torch.randn(5, 64)
    small: Any = compress(net, scheme)
    path = save_module(small, tmp_path / "net.safetensors")
    loaded: Any = load_module(_Listed(), path)
    held = [
        part for each in (small, loaded) for part in (each.order[0][0], each.last.keywords["other"])
    ]
    assert not any(type(part) is nn.Linear for part in held)
    with torch.inference_mode():
        expected, found = net(x), small(x)
        assert torch.equal(loaded(x), found)
    assert 0 < (expected - found).norm() / expected.norm() < 0.1
    assert type(net.order[0][0]) is type(net.last.keywords["other"]) is nn.Linear
    student: Any = prepare_qat(net, "int8-weight-only").module
    assert student.order[0][0] is student.a


class _Scaled(nn.Module):
    """Reads attributes of its layers that torch does not know."""

    def __init__(self) -> None:
        super().__init__()
        layer: Any = nn.Linear(64, 64)
        layer.gain, layer.scales = 3.0, "a name of a buffer"
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.layer(x) * getattr(self.layer, "gain", 1.0))


def test_attributes_of_layers_stay(tmp_path: Path) -> None:
    """A missing one was an error, or a default took its place without a word."""
    net, x = _Scaled().eval(), torch.randn(5, 64)
    small = compress(net, "int8-weight-only")
    loaded = load_module(_Scaled(), save_module(small, tmp_path / "net.safetensors"))
    student = prepare_qat(net, "int8-weight-only")
    with torch.inference_mode():
        for other in (small, loaded, student.module, convert_qat(student).root):
            assert (other(x) - net(x)).norm() / net(x).norm() < 0.02


@pytest.mark.parametrize("attribute", ["forward", "project", "bound"])
@pytest.mark.parametrize("use", [lambda net: compress(net, "int8-dynamic"), prepare_qat])
def test_functions_that_would_call_the_original_are_refused(attribute: str, use: Any) -> None:
    """A module that was reported as compressed ran the original's layers in FP32."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    original: Any = net.forward if attribute == "forward" else net[0]
    written: Any = lambda *inputs: original(inputs[-1]) * 2  # noqa: E731
    setattr(net, attribute, MethodType(written, net) if attribute == "bound" else written)
    with pytest.raises(QuantizationError, match=f"'{attribute}' of '' .* make it a method"):
        use(net)
    setattr(net, attribute, lambda x: x * 2)
    use(net)
