"""Voices of the benchmark other than Piper's: how they are built, called and compared."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.contestants import fp32_contestant, make_contestant
from benchmarks.fidelity import Spoken, compare, run_held, speak
from benchmarks.sentences import Lengths
from benchmarks.timing import Plan, measure_memory, summarize, time_in_turns
from benchmarks.voices import VOICES
from benchmarks.voices import kokoro as kokoro_voice
from benchmarks.voices import matcha as matcha_voice
from benchmarks.voices.voice import DURATIONS, BenchVoice, built, imported_in_part
from tests.graphs import make_model, make_node
from tests.models.contract.conftest import build_vocoder, build_voice
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.progress import Silent


def _chain(folder: Path) -> Path:
    """Write a tiny voice with the inputs of icefall's Matcha, and its vocoder."""
    scalar = (TensorProto.FLOAT, [1])
    inputs: dict[str, tuple[int, list[Any]]] = {
        "x": (TensorProto.INT64, ["N", "L"]),
        "x_length": (TensorProto.INT64, ["N"]),
        "noise_scale": scalar,
        "length_scale": scalar,
    }
    roles = {"tokens": "x", "noise": "noise_scale", "speed": "length_scale"}
    metadata = {"sample_rate": "16000", "pad_id": "0", "use_eos_bos": "0"}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model-steps-3.onnx"
    onnx.save(build_voice(inputs, roles, "mel", metadata=metadata, mel=True), path)
    onnx.save(build_vocoder(), folder / "hifigan_v2.onnx")
    lines = [f"{chr(97 + number)} {number}\n" for number in range(26)]
    (folder / "tokens.txt").write_text("".join(lines), encoding="utf-8")
    return path


def _open(path: Path) -> GraphModel:
    voice = load(path)
    assert isinstance(voice, GraphModel)
    return voice


def _held(_: onnx.GraphProto) -> Mapping[str, str]:
    """The graph has no durations; the ids stand for them, which are the same in all."""
    return {DURATIONS: "encoder.tokens"}


_TINY = BenchVoice(name="tiny", spec=lambda work: str(_chain(work)), held=_held)


@pytest.mark.slow
def test_a_chain_is_made_timed_and_compared_as_one(tmp_path: Path) -> None:
    voice = _open(Path(_TINY.spec(tmp_path / "voice")))
    sentences = _TINY.sentences(voice, Lengths(seconds=(), tokens=(5,)))
    files = voice.files().weights
    fp32 = fp32_contestant(files)
    assert fp32.graphs == ("model-steps-3.onnx", "hifigan_v2.onnx")
    assert fp32.size_bytes() == sum(file.stat().st_size for file in files)
    made = [
        make_contestant("scheme", "int8-dynamic", files, tmp_path / "work"),
        make_contestant("peer", "dynamic-quint8", files, tmp_path / "work"),
    ]
    assert [one.error for one in made] == [None, None]
    assert all(one.size_bytes() < fp32.size_bytes() for one in made)
    spoken = speak(fp32.path, sentences, _TINY)
    assert compare(spoken, speak(fp32.path, sentences, _TINY, spoken)).snr_db is None
    for one in made:
        found = compare(spoken, speak(one.path, sentences, _TINY, spoken))
        assert found.snr_db is not None
        assert 10 < found.snr_db < 80
    plan = Plan(threads=(1,), rounds=2, warm_ups=1)
    [[reference], *others] = time_in_turns([fp32, *made], sentences, 16_000, plan, Silent())
    # Five ids and the blanks before, between and behind them; 64 samples each.
    assert sentences[0].tokens == 11
    assert reference.audio_s == pytest.approx(11 * 64 / 16_000)
    assert all(timing.length_change == 0 for [timing] in others)
    assert measure_memory(fp32, sentences[0]) > 0


def test_a_voice_that_predicts_no_durations_is_compared_by_its_sound(tmp_path: Path) -> None:
    """As Pocket-TTS and ZipVoice do."""
    voice = BenchVoice(name="tiny", spec=lambda _: "", held=lambda _: {})
    path = _chain(tmp_path / "chain")
    sentences = voice.sentences(_open(path), Lengths(seconds=(), tokens=(5,)))
    spoken = speak(path, sentences, voice)
    found = compare(spoken, speak(path, sentences, voice, spoken, noise=1))
    assert found.kept_durations is None
    assert found.duration_change is None
    assert found.snr_db is not None


def _branching() -> onnx.ModelProto:
    """Return a graph whose branches, too, read what is doubled: |x| doubled, plus its negative."""
    bodies = [
        helper.make_graph(
            [make_node(operator, "doubled", name)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None])],
        )
        for operator, name in (("Neg", "then"), ("Identity", "else"))
    ]
    nodes = [
        make_node("Add", "x x", "doubled"),
        make_node("Abs", "doubled", "size"),
        make_node("If", "yes", "chosen", then_branch=bodies[0], else_branch=bodies[1]),
        make_node("Add", "size chosen", "made"),
    ]
    # Before opset 15, which brings an operator that casts to the type of another tensor.
    return make_model(
        nodes, {"x": [None], "yes": (TensorProto.BOOL, [])}, {"made": [None]}, opset=14
    )


def test_held_tensors_are_given_to_all_that_read_them() -> None:
    feeds: dict[str, Any] = {"x": np.array([-1.0, 3.0], np.float32), "yes": np.array(True)}
    made, own = run_held(_branching(), {"both": "doubled"}, None, feeds, "graph")
    assert made.tolist() == [4.0, 0.0]
    assert own["both"].tolist() == [-2.0, 6.0]
    given = {"both": np.array([-5.0, -7.0])}
    made, own = run_held(_branching(), {"both": "doubled"}, given, feeds, "graph")
    assert made.tolist() == [10.0, 14.0]
    assert own["both"].tolist() == [-2.0, 6.0]


def test_a_graph_without_a_held_tensor_is_refused() -> None:
    with pytest.raises(ModelError, match="'graph' has no tensor 'pitch'"):
        run_held(_branching(), {"pitch": "pitch"}, None, {}, "graph")


def test_seconds_are_kept_where_only_the_last_digits_differ() -> None:
    """Frames are whole numbers, but some systems predict seconds."""

    def spoken(*durations: float) -> Spoken:
        audio = Audio(samples=np.ones(2_048, np.float32), sample_rate=16_000)
        return Spoken(audio=audio, own={DURATIONS: np.array(durations)})

    reference = [spoken(3.0), spoken(1.2345678)]
    assert compare(reference, [spoken(3.0), spoken(1.2345679)]).kept_durations == 1.0
    assert compare(reference, [spoken(3.0), spoken(1.2349)]).kept_durations == 0.5
    assert compare(reference, [spoken(4.0), spoken(1.2345678)]).kept_durations == 0.5


def test_ratios_come_with_an_interval_of_turns() -> None:
    reference, own = [60.0, 62.0, 61.0, 90.0], [30.0, 31.0, 30.5, 45.0]
    timing = summarize("20 tokens", 1, (own, 1.0), (reference, 1.0))
    assert timing.interval == pytest.approx((2.0, 2.0))  # a disturbance hit both
    noisy = summarize("20 tokens", 1, ([33.0, 28.0, 29.0, 47.0], 1.0), (reference, 1.0))
    assert noisy.interval is not None
    assert noisy.interval[0] < 2.0 < noisy.interval[1]
    assert summarize("20 tokens", 1, ([30.0], 1.0), ([60.0], 1.0)).interval is None


def test_a_missing_package_is_one_line_that_installs_it(tmp_path: Path) -> None:
    spec = built("a.onnx", lambda _: None, [], ["numpy", "surely_missing"], "surely-missing==1.0")
    with pytest.raises(ModelError) as error:
        spec(tmp_path)
    assert "surely_missing is not installed" in str(error.value)
    assert str(error.value).endswith("run: pip install --no-deps surely-missing==1.0")
    assert "\n" not in str(error.value)


def test_a_package_is_imported_without_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "halfpackage"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imports everything')")
    (package / "inner.py").write_text("from halfpackage.heavy import name\nvalue = name + '!'")
    monkeypatch.syspath_prepend(tmp_path)
    with imported_in_part(("halfpackage",), {"halfpackage.heavy": {"name": "light"}}):
        import halfpackage.inner  # type: ignore[import-not-found]

        assert halfpackage.inner.value == "light!"
    assert not [name for name in sys.modules if name.startswith("halfpackage")]


def _build(build: Callable[[], None]) -> None:
    """Build a voice; skip where a package is missing."""
    try:
        build()
    except ModuleNotFoundError as error:
        pytest.skip(f"{error.name} is not installed")


def _check_built(path: Path, voice: BenchVoice) -> None:
    """Check that a voice is explained, deterministic under fed noise, and held."""
    model = _open(path)
    sentences = voice.sentences(model, Lengths(seconds=(1.0,), tokens=(6,)))
    reference = speak(path, sentences, voice)
    other = speak(path, sentences, voice, reference, noise=1)
    assert reference[0].own[DURATIONS].size >= 6
    assert np.abs(reference[0].audio.samples).max() > 1e-3
    assert compare(reference, speak(path, sentences, voice, reference)).snr_db is None
    assert compare(reference, other).snr_db is not None
    assert compare(reference, other).kept_durations == 1.0
    assert not voice.trained


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_kokoro_of_few_layers(tmp_path: Path) -> None:
    config: dict[str, Any] = dict(kokoro_voice.CONFIG) | {"n_layer": 1}
    config["plbert"] = config["plbert"] | {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
    }
    _build(partial(kokoro_voice.build, tmp_path, config))
    _check_built(tmp_path / "kokoro.onnx", VOICES["kokoro"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_matcha_of_few_channels(tmp_path: Path) -> None:
    config: dict[str, Any] = dict(matcha_voice.CONFIG)
    config["encoder"] = config["encoder"] | {"filter_channels": 32, "n_layers": 1}
    config["decoder"] = config["decoder"] | {"channels": [32, 32], "attention_head_dim": 16}
    _build(partial(matcha_voice.build, tmp_path, config, 32))
    _check_built(tmp_path / "model-steps-3.onnx", VOICES["matcha"])
