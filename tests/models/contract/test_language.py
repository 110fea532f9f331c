"""Voices that are language models: caches, drawn tokens, ends of their own, and recordings."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.models.contract.language import (
    CONTRACT,
    HOP,
    LATENTS,
    STOP,
    Decoder,
    LanguageModel,
    LatentStep,
    write_latent_voice,
    write_voice,
)
from tests.texts import write_set
from tts_compress.audio import Audio, resample, write_wav
from tts_compress.cli import main
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.evaluation import evaluate
from tts_compress.evaluation.metrics.teacher_forcing import compare_scores, steps_together
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.suite import Suite
from tts_compress.models import load
from tts_compress.models.base import LanguageModel as Language
from tts_compress.models.base import LatentModel, Prompt, Speaking
from tts_compress.models.contract.sampling import draw_tokens
from tts_compress.models.contract.schema import Sample
from tts_compress.models.streaming import joined

torch = pytest.importorskip("torch")

TEXT = "hello there."


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of both voices, not to be changed."""
    folder = tmp_path_factory.mktemp("language")
    write_voice(folder / "tokens")
    write_latent_voice(folder / "latents")
    sound = np.sin(np.arange(16_000) / 20).astype(np.float32)
    write_wav(folder / "said.wav", Audio(samples=sound, sample_rate=16_000))
    return folder


@pytest.fixture
def tokens(files: Path) -> Any:
    """Return the voice that draws tokens."""
    return load(files / "tokens" / "prefill.onnx")


@pytest.fixture
def latents(files: Path) -> Any:
    """Return the voice that writes latents, speaking like a recording."""
    voice: Any = load(files / "latents" / "step.onnx")
    return voice.speaking_as(Speaking(prompt=Prompt(audio=files / "said.wav")))


@pytest.fixture
def copied(files: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that copies a voice and changes its contract."""

    def copy(name: str, old: str, new: str) -> Path:
        shutil.copytree(files / name, tmp_path / name)
        text = {"tokens": CONTRACT, "latents": LATENTS}[name]
        assert old in text
        (tmp_path / name / "contract.toml").write_text(text.replace(old, new), encoding="utf-8")
        return tmp_path / name / {"tokens": "prefill.onnx", "latents": "step.onnx"}[name]

    return copy


def _ids(text: str) -> list[int]:
    return [1 + " abcdefghijklmnopqrstuvwxyz.,'".index(letter) for letter in text]


def test_forty_lines_make_a_language_model_speak_as_torch_does(tokens: Any) -> None:
    """Without a cache torch reads everything again at each step; the most probable is taken."""
    assert len(CONTRACT.strip().splitlines()) <= 40
    torch.manual_seed(0)
    model, decoder = LanguageModel().eval(), Decoder().eval()
    ids, said = [*_ids(TEXT), 31], list[int]()
    with torch.no_grad():
        for step in range(41):
            scores = model(torch.tensor([[*ids, *said]]))[0][0, -1]
            scores = scores if not step else scores - model.begins
            if (token := int(scores.argmax())) == STOP:
                break
            said.append(token)
        expected = decoder(torch.tensor([said])).numpy().reshape(-1)
    assert np.allclose(tokens.synthesize(TEXT, seed=None).samples, expected, atol=1e-5)
    assert tokens.describe()["contract"] == "tiny-lm"


def test_speech_ends_by_its_token_or_at_its_longest(tokens: Any) -> None:
    lengths = [len(tokens.synthesize(TEXT, seed=seed).samples) // HOP for seed in range(6)]
    assert max(lengths) <= 41
    assert len({*lengths}) > 2
    said = tokens.generate_tokens(TEXT, seed=0)
    assert len(said.chosen) == lengths[0] + (said.ids[-1, 0] == STOP)
    assert np.array_equal(said.chosen, said.ids[1:] != STOP)


def test_speech_can_end_before_it_begins(tokens: Any, copied: Callable[..., Path]) -> None:
    first = tokens.generate_tokens(TEXT, seed=None).ids[1, 0]
    voice: Any = load(copied("tokens", "token = 63", f"token = {first}"))
    assert not voice.synthesize(TEXT, seed=None).samples.size
    assert repr(joined(voice.stream(TEXT, seed=None))) == "Audio(0.00 s, 16000 Hz)"
    assert voice.generate_tokens(TEXT, seed=None).chosen.tolist() == [[False]]


def test_draws_are_those_of_transformers() -> None:
    """The processors of `generate` in its order: what is left to draw from, and how often."""
    processors = pytest.importorskip("transformers.generation.logits_process")
    scores = np.random.default_rng(1).standard_normal((1, 50), np.float32) * 2
    before = [np.array([[3]]), np.array([[7]]), np.array([[3]])]
    ids, left = torch.tensor([[3, 7, 3]]), torch.from_numpy(scores)
    for processor in (
        processors.RepetitionPenaltyLogitsProcessor(1.7),
        processors.TemperatureLogitsWarper(0.8),
        processors.TopKLogitsWarper(20),
        processors.TopPLogitsWarper(0.9),
    ):
        left = processor(ids, left)
    shares = left.softmax(-1).numpy()[0]
    sample = Sample(logits="logits", temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.7)
    drawn = [draw_tokens(sample, scores, before, (seed, 4)).item() for seed in range(2000)]
    found = np.bincount(drawn, minlength=50) / len(drawn)
    assert not found[shares == 0].any()
    assert np.abs(found - shares).max() < 0.03
    near = [draw_tokens(sample, scores + 1e-4, before, (seed, 4)).item() for seed in range(200)]
    assert near == drawn[:200]  # the same noise


def test_a_token_that_is_most_probable_can_be_taken_whatever_the_noise() -> None:
    """As GPT-SoVITS ends speech; others are drawn as ever, after the penalty."""
    scores = np.zeros((1, 9), np.float32)
    scores[0, 4] = 0.1
    drawn = {
        greedy: {
            draw_tokens(Sample(logits="logits", greedy=greedy), scores, [], (seed,)).item()
            for seed in range(50)
        }
        for greedy in (None, 3, 4)
    }
    assert drawn[4] == {4}
    assert drawn[3] == drawn[None]
    assert len(drawn[None]) > 5
    again = Sample(logits="logits", greedy=4, repetition_penalty=3)
    scores += 0.09
    said = {draw_tokens(again, scores, [np.array([[4]])], (seed,)).item() for seed in range(50)}
    assert len(said) > 5


def test_a_prompt_counts_as_drawn(copied: Callable[..., Path]) -> None:
    """Here its tokens are those of the text, which are then hardly said."""
    old = 'sample.token = { logits = "logits", temperature = 0.9, top_k = 40 }'
    new = old.replace("top_k = 40", 'repetition_penalty = 100, after = "read"')
    path = copied("tokens", old, new)
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Identity", ["ids"], ["read"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("read", 7, [1, "L"]))
    onnx.save(model, path)
    contract, read, counts = path.with_name("contract.toml"), {*_ids(TEXT), 31}, list[int]()
    stated = contract.read_text("utf-8")
    for ending in (', after = "read"', ""):
        contract.write_text(stated.replace(', after = "read"', ending), encoding="utf-8")
        voice: Any = load(path)
        said = [voice.generate_tokens(TEXT, seed=seed).ids[2:, 0].tolist() for seed in range(6)]
        counts.append(sum(token in read for tokens in said for token in tokens))
        assert voice.parts[""].lengths == ({"read"} if ending else set())
    assert counts[0] < 0.8 * counts[1]
    contract.write_text(stated.replace('after = "read"', 'after = "none"'), encoding="utf-8")
    with pytest.raises(ModelError, match=r"no token can be drawn of 'logits'.*none"):
        load(path).synthesize(TEXT, seed=0)


def test_prefill_and_decode_keep_their_weights_in_one_file(
    tokens: Any, files: Path, tmp_path: Path
) -> None:
    graphs = ("prefill.onnx", "decode.onnx", "decoder.onnx")
    original = sum((files / "tokens" / n).stat().st_size for n in (*graphs, "shared.data"))
    small, folder = compress(tokens, "int8-dynamic"), tmp_path / "small"
    saved: Any = load(small.save(folder))
    assert saved.manifest.source.size_bytes == original
    assert (folder / "shared.data").stat().st_size < 0.55 * 559_104
    sizes = [(folder / name).stat().st_size for name in (*graphs, "shared.data")]
    assert saved.manifest.size_bytes == sum(sizes)
    assert {file.name for file in saved.files().weights} == {*graphs, "shared.data"}
    for name in graphs:
        onnxruntime.InferenceSession(folder / name)
    said = [voice.synthesize(TEXT, seed=3).samples for voice in (small, saved, tokens)]
    assert np.array_equal(said[0], said[1])
    error = np.abs(said[0] - said[2]).max()
    assert 0 < error < 0.1 * np.abs(said[2]).max()


def test_both_read_what_the_reference_said(tokens: Any) -> None:
    """Scores along given tokens are torch's of the whole; tokens of others are refused."""
    assert isinstance(tokens, Language)
    said = tokens.generate_tokens(TEXT, seed=1)
    torch.manual_seed(0)
    model = LanguageModel().eval()
    prompt = [*_ids(TEXT), 31]
    with torch.no_grad():
        whole = model(torch.tensor([[*prompt, *said.ids[1:-1, 0]]]))[0][0, len(prompt) - 1 :]
    whole[1:] -= model.begins
    assert np.allclose(tokens.logits(TEXT, said)[:, 0], whole.numpy(), atol=1e-4)
    shorter = type(said)(ids=said.ids[:3], chosen=said.chosen[:2])
    with pytest.raises(ModelError, match="the tokens are not ones of"):
        tokens.logits(TEXT, shorter)


def test_the_end_and_the_parting_are_measured() -> None:
    before = np.log(np.array([[[0.5, 0.25, 0.25]], [[0.25, 0.25, 0.5]]], np.float32))
    after = before.copy()
    after[:, 0, 2] += 0.5  # odds of token 2 against the others
    found = compare_scores([(before, after, np.ones((2, 1), bool), 2)])
    assert found.stop_shift == pytest.approx(0.5, abs=1e-6)
    first = np.array([[0], [5], [6], [7]])
    assert steps_together(first, first) is None
    assert steps_together(first, np.array([[0], [5], [9], [7]])) == 1
    assert steps_together(first, first[:3]) == 2


@pytest.mark.filterwarnings("ignore:no choice of formats")  # it draws other tokens
@pytest.mark.slow
def test_a_language_model_is_calibrated_on_what_it_said(tokens: Any, tmp_path: Path) -> None:
    calls = list(tokens.calibration_calls([TEXT], seed=2, part="decode"))
    assert [call["past_key_0"].shape[2] - 13 for call in calls][:4] == [0, 1, 2, 4]
    every = list(tokens.calibration_calls([TEXT], seed=2, part="decode", every=True))
    said = tokens.generate_tokens(TEXT, seed=2).ids[1:, 0]
    assert [int(call["token"][0, 0]) for call in every] == said[: len(every)].tolist()
    texts = write_set(tmp_path / "few.toml", ["a bat.", "see me", "one more of it"] * 5)
    small: Any = compress(tokens, "int8", calibration=texts)
    assert small.manifest.counts["MatMul int8/dynamic"] == 18


@pytest.mark.slow
def test_a_pair_is_evaluated_step_by_step(tokens: Any, files: Path, tmp_path: Path) -> None:
    suite = {"version": 1, "name": "few", "language": "en-us", "recognizer": "none"}
    suite |= {"normalizer": "en-v1", "seeds": [0]}
    suite |= {"card": dict.fromkeys(("summary", "source", "licence", "composition"), "s")}
    suite |= {"utterances": [{"text": text} for text in ("a bat.", "hello there.")]}
    found = evaluate(
        files / "tokens" / "prefill.onnx",
        compress(tokens, "int4-weight-only"),
        suite=Suite.model_validate_json(json.dumps(suite)),
        options=EvaluationOptions(work=tmp_path / "work", timing_texts=1, timing_runs=1),
    )
    scores: Any = found.teacher_forced
    assert 0 < scores.kl_nats < 0.1
    assert scores.stop_shift != 0
    assert scores.steps_together is None or 0 <= scores.steps_together <= 40


def test_the_first_graph_can_loop_until_a_number(latents: Any) -> None:
    """As torch does it: rounds after the end are kept, and the one behind them is not."""
    torch.manual_seed(0)
    step = LatentStep().eval()
    sound = np.sin(np.arange(16_000) / 20).astype(np.float32)
    voice = torch.from_numpy(resample(sound, 16_000, 8_000))[None]
    latent, count, audio, end = torch.zeros(1, 8), torch.zeros(1), list[Any](), 50
    with torch.no_grad():
        for number in range(50):
            inputs = (torch.tensor([_ids(TEXT)]), voice, latent, torch.zeros(1, 8), count)
            samples, stop, latent, count = step(*inputs)
            end = min(end, number + 2) if stop > 0.5 else end
            if number >= end:
                break
            audio.append(samples.numpy().reshape(-1))
    spoken = latents.synthesize(TEXT, seed=None).samples
    assert np.allclose(spoken, np.concatenate(audio), atol=1e-3)
    with pytest.raises(ModelError, match=r"cannot be streamed|runs in a loop"):
        next(latents.stream(TEXT, seed=5))


def test_latents_are_read_alike(latents: Any) -> None:
    assert issubclass(type(latents), LatentModel)
    said = latents.generate_latents(TEXT, seed=4)
    assert np.isnan(said[0]).all()
    reading = latents.read_latents(TEXT, said)
    assert reading.threshold == 0.5
    assert (
        len(reading.stop) == len(said) == len(latents.synthesize(TEXT, seed=4).samples) // HOP + 1
    )
    assert (reading.stop > 0.5).tolist() == [False] * (len(said) - 3) + [True] * 3
    quiet = latents.generate_latents(TEXT, seed=None)
    answers = latents.read_latents(TEXT, quiet).latents
    assert np.allclose(answers[:-1], quiet[1:], atol=1e-5)  # told what it said itself
    with pytest.raises(ModelError, match="the latents are not ones of"):
        latents.read_latents(TEXT, said[1:])


def test_the_recording_goes_with_the_artifact(latents: Any, files: Path, tmp_path: Path) -> None:
    saved: Any = load(compress(latents, "int8-weight-only").save(tmp_path / "small"))
    assert saved.speaking.prompt.audio == tmp_path / "small" / "reference.wav"
    other = np.zeros(8_000, np.float32)
    write_wav(tmp_path / "quiet.wav", Audio(samples=other, sample_rate=8_000))
    quiet = saved.speaking_as(Speaking(prompt=Prompt(audio=tmp_path / "quiet.wav")))
    first, second = (v.synthesize(TEXT, seed=0).samples for v in (saved, quiet))
    assert not np.array_equal(first[:HOP], second[:HOP])
    wav, said = str(tmp_path / "out.wav"), str(files / "said.wav")
    step = str(files / "latents" / "step.onnx")
    assert main(["synthesize", step, TEXT, "--reference", said, "--output", wav]) == 0


_PAST = 'role = "state"\noutput = "present_*"'
_LATENT = 'latent = "new"'


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("tokens", _PAST, f"{_PAST}\nshape = [1, 2, 0, 8]", r"shape \[1, 2, 0, 8\], but the graph"),
        ("tokens", _PAST, f"{_PAST}\nshape = [1, 0]", r"begins with shape \[1, 0\], but"),
        ("tokens", _PAST, f"{_PAST}\nshape = [1, 2, {10**15}, 32]", "cannot be made: .* more than"),
        ("tokens", '"present_*"', '"kept_*"', "has no output 'kept_key_0'"),
        ("tokens", '"token"\ntoken', '"end"\ntoken', "reads 'end', which no round of it makes"),
        ("tokens", 'loop = "speech"', 'loop = "speach"', "needs a table"),
        ("tokens", "join = 1", "join = 5", "of 'token' cannot be joined for 'codes': axis 5"),
        ("tokens", "longest = 40", "longest = 1000000000", "longest: Input should be less than"),
        ("tokens", "token = 63", "token = 64", r"shape \[1, 13, 64\], .*; 64, which ends"),
        ("tokens", "token = 63", "", "an 'output' ends a loop by a 'token'"),
        ("tokens", "last = true\n", "", r"gives shape \[1, 13\] to input 'token int64 \[1, 1\]'"),
        ("latents", "rate = 8000", "rate = 8000", "like a recording, and there is none"),
        ("latents", "rate = 8000", "rate = 8", "rate: Input should be greater than"),
        ("latents", 'next = "new"', 'next = "old"', "reads 'old', which no round of it makes"),
        (
            *("latents", _LATENT, f'{_LATENT}\n[flow.moved]\ninput = "old"\noutput = "new"'),
            "no input 'old' that a flow could move",
        ),
    ],
)
def test_what_is_wrong_gets_one_line(
    copied: Callable[..., Path],
    refused: Callable[..., str],
    tmp_path: Path,
    *,
    name: str,
    old: str,
    new: str,
    message: str,
) -> None:
    path = copied(name, old, new)
    assert re.search(message, refused("synthesize", path, TEXT, "--output", tmp_path / "a.wav"))


def test_a_state_that_doubles_is_stopped(copied: Callable[..., Path]) -> None:
    """Thirty rounds would make 4 GB of four bytes."""
    path = copied("latents", 'role = "recording"\nrate = 8000', 'role = "constant"\nvalue = 1.0')
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Concat", ["count", "count"], ["twice"], axis=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("twice", 1, ["N"]))
    model.graph.input[4].type.tensor_type.shape.dim[0].dim_param = "C"
    onnx.save(model, path)
    contract = path.with_name("contract.toml")
    text = contract.read_text("utf-8").replace('output = "counted"', 'output = "twice"')
    contract.write_text(text.replace("above = 0.5", "above = 1e9"), encoding="utf-8")
    with pytest.raises(ModelError, match=r"step.onnx' returns too much in a loop: .* more than"):
        load(path).synthesize(TEXT, seed=0)


def test_a_graph_in_several_places_carries_its_state_along(
    tokens: Any, copied: Callable[..., Path]
) -> None:
    """The first round before the loop, by the same graph, is the first round of the loop."""
    start = CONTRACT.index('[[then]]\ngraph = "decode.onnx"')
    step = CONTRACT[start : CONTRACT.index('[[then]]\ngraph = "decoder.onnx"')]
    first = step.replace('loop = "speech"\n', "")
    voice: Any = load(copied("tokens", step, first + step))
    assert [*voice.parts] == ["", "decode", "decoder"]
    assert len({*voice.files().weights}) == 4
    for seed in (None, 1):
        said = [v.synthesize(TEXT, seed=seed).samples for v in (tokens, voice)]
        assert np.array_equal(said[0], said[1][: len(said[0])])
    rounds = list(voice.calibration_calls([TEXT], seed=1, part="decode", every=True))
    past = [call["past_key_0"].shape[2] for call in rounds]
    assert past == [*range(13, 13 + len(past))]
