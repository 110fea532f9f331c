"""Predicted opinion scores are those of Microsoft's own code."""

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.evaluation.metrics.tones import gliding_tone
from tts_compress.audio import Audio, finite_samples, read_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import Evaluation
from tts_compress.evaluation.metrics import opinion
from tts_compress.evaluation.metrics.opinion import METRICS, open_networks, score_samples
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.store import find_analyzer
from tts_compress.numerics.spectra import slaney_filters

_NAMES = ("dnsmos_signal", "dnsmos_background", "dnsmos_overall", "dnsmos_p808", "plcmos")


@pytest.fixture(scope="module")
def networks(listen: Path) -> list[Any]:
    """Open the networks of the wheel."""
    if opinion._MEASURE.settings(EvaluationOptions()) is None:
        pytest.skip(f"not in {listen}: pip install --target {listen} speechmos==0.0.1.1")
    return open_networks()


# By `dnsmos.run` and `PLCMOS.get_mos` of speechmos 0.0.1.1, with librosa 0.11.0 and numpy's legacy
# seed 0.
_TONE = (1.731671, 1.446778, 1.299814, 2.330726, 3.097240)
_LONG = (3.573851, 3.172640, 2.814358, 3.668577, 4.170589)


@pytest.mark.slow
def test_scores_of_a_tone_are_upstreams(networks: list[Any]) -> None:
    found = score_samples(networks, gliding_tone())
    assert [found[name] for name in _NAMES] == pytest.approx(_TONE, abs=2e-4)


@pytest.mark.slow
def test_scores_of_a_recording_are_upstreams(networks: list[Any], assets: Path) -> None:
    """Longer than 9.01 s, it is taken in steps of a second; the tone is repeated up to that."""
    clip = read_wav(assets / "speech-ljspeech32" / "wavs" / "LJ001-0002.wav")
    samples = np.tile(finite_samples(clip, 16_000), 7)
    found = score_samples(networks, samples)
    assert [found[name] for name in _NAMES] == pytest.approx(_LONG, abs=2e-4)


@pytest.mark.slow
def test_silence_has_scores(networks: list[Any]) -> None:
    audio = Audio(samples=np.zeros(0, np.float32), sample_rate=8_000)
    assert np.isfinite([*opinion._score(networks, audio).values()]).all()


@pytest.mark.parametrize("samples", [[], [np.nan, 9.0] * 8000])
def test_networks_hear_a_second_or_more_of_numbers(
    samples: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opinion, "score_samples", lambda _, samples: samples)
    audio = Audio(samples=np.array(samples, np.float32), sample_rate=16_000)
    found: Any = opinion._score([], audio)
    assert len(found) == 16_000
    assert np.abs(found).max() <= 1.0


def test_without_the_networks_there_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(opinion, "version", missing)
    assert opinion._MEASURE.settings(EvaluationOptions()) is None
    run: Any = SimpleNamespace(measurements=lambda _: None, pairs=[])
    assert [metric.compute(run) for metric in METRICS[1:]] == [None] * 5


def test_each_score_is_compared_by_its_name() -> None:
    before = {name: 3.0 + place for place, name in enumerate(_NAMES)}
    after = {name: 0.5 + place for place, name in enumerate(_NAMES)}
    found = 12 * [{"reference": before, "candidate": after}]
    run: Any = SimpleNamespace(measurements=lambda _: found, blocks=[*range(12)])
    for metric in METRICS[1:]:
        scores = metric.compute(run)
        assert (scores.reference, scores.candidate) == (before[metric.name], after[metric.name])
        assert [row.trend for row in metric.table_rows(scores, None)] == ["worse"]


def test_filters_on_slaneys_scale_have_area_one() -> None:
    """Wide ones, that many bins sample; below 1 kHz they are evenly spaced."""
    filters = slaney_filters(16_000, 4096, 40)
    areas = filters.sum(axis=1) * 16_000 / 4096
    assert areas == pytest.approx(1.0, abs=0.03)
    peaks = filters.argmax(axis=1) * 16_000 / 4096
    low = peaks[peaks < 950]
    assert np.diff(low) == pytest.approx(float(np.diff(low).mean()), abs=8.0)


_MEASURE = opinion._USERS


def _write(
    path: Path,
    shape: Sequence[int | str] = (1, "time"),
    *,
    inputs: int = 1,
    kind: int = TensorProto.FLOAT,
    rate: str | None = "16000",
    reduced: bool = True,
) -> Path:
    """Write a network whose score is 100 times the mean of the absolute samples."""
    scale = numpy_helper.from_array(np.array(100.0, np.float32), "scale")
    cast = helper.make_node("Cast", ["in0"], ["x"])
    cast.attribute.append(helper.make_attribute("to", TensorProto.FLOAT))
    mean = helper.make_node("ReduceMean" if reduced else "Identity", ["positive"], ["mean"])
    if reduced:
        mean.attribute.append(helper.make_attribute("keepdims", 0))
    nodes = [cast, helper.make_node("Abs", ["x"], ["positive"]), mean]
    nodes.append(helper.make_node("Mul", ["mean", "scale"], ["score"]))
    given = [helper.make_tensor_value_info(f"in{i}", kind, list(shape)) for i in range(inputs)]
    scores = helper.make_tensor_value_info("score", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "mos", given, [scores], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if rate is not None:
        helper.set_model_props(model, {"sample_rate": rate})
    onnx.save(model, path)
    return path


def _audio(level: float, rate: int = 16_000, seconds: float = 2.0) -> Audio:
    return Audio(samples=np.full(int(seconds * rate), level, np.float32), sample_rate=rate)


def _score(given: str, audio: Audio) -> float | None:
    settings = _MEASURE.settings(EvaluationOptions(mos=given))
    assert settings is not None
    score: Callable[[Audio], float | None] = _MEASURE.open(settings)
    return score(audio)


@pytest.mark.parametrize("shape", [(1, "time"), ("batch", "time"), ("time",)])
def test_each_form_of_input_is_scored(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    path = _write(tmp_path / "mos.onnx", shape)
    assert _score(str(path), _audio(0.03)) == pytest.approx(3.0, abs=1e-4)
    assert _score(str(path), _audio(2.0)) == pytest.approx(100.0), "in [-1, 1], as players play it"


def test_the_rate_is_in_the_file_or_given(tmp_path: Path) -> None:
    """Audio of another rate is resampled; a name may hold an @."""
    path = _write(tmp_path / "my@mos.onnx", rate=None)
    tone = 0.05 * np.sin(2 * np.pi * 200 * np.arange(48_000) / 24_000)
    audio = Audio(samples=tone.astype(np.float32), sample_rate=24_000)
    for rate in (8_000, 48_000):
        settings = _MEASURE.settings(EvaluationOptions(mos=f"{path}@{rate}"))
        assert settings is not None
        assert settings["sample_rate"] == str(rate)
        assert _score(f"{path}@{rate}", audio) == pytest.approx(10.0 / np.pi, abs=0.02)
    stated = _write(tmp_path / "stated.onnx", rate="24000")
    assert _score(f"{stated}@24000", audio) == _score(str(stated), audio)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_broken_audio_is_no_error(tmp_path: Path, value: float) -> None:
    path = str(_write(tmp_path / "mos.onnx"))
    for seconds in (0.0, 0.001, 1.0):
        score = _score(path, _audio(value, seconds=seconds))
        assert score is not None
        assert np.isfinite(score)


@pytest.mark.parametrize(
    ("ways", "problem"),
    [
        ({"inputs": 2}, r"has in0 tensor\(float\) .*in1.*; one input of float32 samples"),
        ({"kind": TensorProto.INT64}, r"has in0 tensor\(int64\)"),
        ({"shape": (1, 1, "time")}, r"has in0 .*'time'\]"),
        ({"shape": (1, 16_000)}, r"\[1, 16000\]"),
        ({"shape": (2, "time")}, r"\[2, 'time'\]"),
        ({"reduced": False}, "gives a second of silence no score"),
        ({"rate": None}, "is stated as nothing; give one from 8000 to 96000 Hz"),
        ({"rate": "fast"}, "is stated as fast"),
        ({"rate": "16"}, "is stated as 16;"),
    ],
)
def test_another_network_is_refused_in_one_line(
    tmp_path: Path, ways: dict[str, Any], problem: str
) -> None:
    path = _write(tmp_path / "mos.onnx", **ways)
    with pytest.raises(EvaluationError, match=problem) as caught:
        _score(str(path), _audio(0.0))
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match=r"there is no file '.*'; give --mos"):
        _MEASURE.settings(EvaluationOptions(mos=str(tmp_path / "none.onnx")))
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(EvaluationError, match="not a readable ONNX file"):
        _MEASURE.settings(EvaluationOptions(mos=str(tmp_path / "text.onnx@16000")))
    path = _write(tmp_path / "mos.onnx", rate="24000")
    with pytest.raises(EvaluationError, match="is stated as 16000 and 24000"):
        _MEASURE.settings(EvaluationOptions(mos=f"{path}@16000"))
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(EvaluationError, match="keeps weights in other files"):
        _MEASURE.settings(EvaluationOptions(mos=str(path)))
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(EvaluationError, match="2,147,483,648 bytes"):
        _MEASURE.settings(EvaluationOptions(mos=str(path)))


@pytest.mark.slow
def test_a_network_that_never_ends_is_ended(tmp_path: Path) -> None:
    """It was tried in the program itself, which then ignored Ctrl-C and every limit."""
    path = _write(tmp_path / "mos.onnx")
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    kinds = {"turn": TensorProto.INT64, "going": TensorProto.BOOL, "held": TensorProto.FLOAT}
    given = [
        helper.make_tensor_value_info(name, kind, None if name == "held" else [])
        for name, kind in kinds.items()
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}_on"]) for name in ("going", "held")]
    results = [
        helper.make_tensor_value_info(f"{one.name}_on", kinds[one.name], None) for one in given[1:]
    ]
    state = helper.make_graph(nodes, "forever", given, results)
    loop = helper.make_node("Loop", ["", "yes", "x"], ["looped"], body=state)
    model.graph.node.insert(1, loop)
    model.graph.node[2].input[0] = "looped"
    onnx.save(model, path)
    options = EvaluationOptions(mos=str(path), timeout_s=2.0)
    with pytest.raises(EvaluationError, match=r"measure 'mos' did not answer 'load' within 2 s"):
        find_analyzer(_MEASURE, options)


def test_scores_come_with_the_network_and_the_interval(tmp_path: Path) -> None:
    path = _write(tmp_path / "mos.onnx")
    found = [{"reference": 3.0, "candidate": 2.5}] * 12 + [{"reference": 3.0, "candidate": None}]
    run: Any = SimpleNamespace(
        measurements=lambda _: found, blocks=[*range(13)], options=EvaluationOptions(mos=str(path))
    )
    metric = METRICS[0]
    scores = metric.compute(run)
    assert (scores.network, scores.sample_rate) == ("mos.onnx", 16_000)
    assert (scores.reference, scores.candidate, scores.interval) == (3.0, 2.5, (-0.5, -0.5))
    (row,) = metric.table_rows(scores, None)
    assert (row.label, row.trend) == ("Opinion by mos.onnx", "worse")
    del found[:12], run.blocks[:12]
    with pytest.raises(EvaluationError, match="scores no audio"):
        metric.compute(run)


def test_a_wrong_network_fails_before_anything_is_spoken(
    evaluated: Callable[..., Evaluation], recorder: Any
) -> None:
    with pytest.raises(EvaluationError, match=r"there is no file 'none\.onnx'"):
        evaluated(options={"mos": "none.onnx", "progress": recorder})
    assert {stage for stage, *_ in recorder.steps} == {"open"}
