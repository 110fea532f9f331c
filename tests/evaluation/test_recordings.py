"""Audio that any program wrote is judged like that of two models, by its texts' names."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress import evaluate_audio, read_gates
from tts_compress.audio import Audio, write_wav
from tts_compress.cli import main
from tts_compress.errors import EvaluationError, RecipeError
from tts_compress.evaluation import evaluate, gate
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.recordings import read_lines
from tts_compress.evaluation.suite import Suite, SuiteText
from tts_compress.models.base import GraphModel
from tts_compress.models.execution import Execution

_TEXTS = ("Yes.", "Good day.", "Hello there.")
_WORDS = {f"u{n:02d}": text for n, text in enumerate(_TEXTS)}
_SILENT_EARS = EvaluationOptions(recognizer="none", timing_runs=1, timing_texts=1)


@pytest.fixture(scope="module")
def spoken(tiny: GraphModel) -> dict[str, Audio]:
    """Return the tiny voice's speech of the texts, as another program would leave it."""
    return {
        name: Audio(samples=tiny.synthesize(text, seed=0).samples, sample_rate=tiny.sample_rate)
        for name, text in _WORDS.items()
    }


def _write(folder: Path, audios: Mapping[str, Audio]) -> Path:
    for name, audio in audios.items():
        folder.mkdir(parents=True, exist_ok=True)
        write_wav(folder / f"{name}.wav", audio, encoding="FLOAT")
    return folder


def _changed(audio: Audio, samples: Any) -> Audio:
    return Audio(samples=np.asarray(samples, np.float32), sample_rate=audio.sample_rate)


def _noisy(audio: Audio) -> Audio:
    noise = np.random.default_rng(0).standard_normal(len(audio.samples))
    return _changed(audio, audio.samples + 3e-3 * noise)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_folders_have_the_values_that_the_models_have(
    spoken: dict[str, Audio], tiny_path: Path, small_suite: Suite, tmp_path: Path
) -> None:
    """Sound is the same whichever way it came; size and speed are not there."""
    texts = tmp_path / "texts.tsv"
    lines = [f"{name}\t{text}\t{text}" for name, text in _WORDS.items()]
    texts.write_text("\n".join(lines), encoding="utf-8")
    folder = _write(tmp_path / "fp32", spoken)
    report = evaluate_audio(folder, folder, texts, output=tmp_path / "report", options=_SILENT_EARS)
    utterances = tuple(SuiteText(text=text, spoken=text) for text in _TEXTS)
    suite = small_suite.model_copy(update={"utterances": utterances, "seeds": (0,)})
    models = evaluate(tiny_path, tiny_path, suite=suite, options=_SILENT_EARS)
    assert report.signal == models.signal
    assert report.health == models.health
    assert {**report.damage.counts, **models.damage.counts} == {}
    assert report.damage.rate.below == models.damage.rate.below == pytest.approx(0.632, abs=1e-3)
    assert (report.size, report.latency, report.memory) == (None, None, None)
    written = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "Recordings of the candidate against those of the reference" in written
    assert "| Word error rate | n/a | n/a | not judged |" in written
    rows = gate(report, read_gates("cost")).rows
    assert not any(row.passed for row in rows)


@pytest.mark.slow
def test_arrays_and_a_port_are_told_apart(spoken: dict[str, Audio], tmp_path: Path) -> None:
    """The port adds noise, and compression nothing."""
    noisy = {name: _noisy(audio) for name, audio in spoken.items()}
    options = EvaluationOptions(recognizer="none", port=_write(tmp_path / "port", noisy))
    report = evaluate_audio(spoken, noisy, _WORDS, options=options)
    assert report.blame is not None
    values = {part.component: part.values["distortion.value"] for part in report.blame.parts}
    assert [part.component for part in report.blame.parts] == ["port", "quantization"]
    assert values["port"] == pytest.approx(report.distortion.value)
    assert values["quantization"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_seeds_are_folders_and_give_the_floors(spoken: dict[str, Audio], tmp_path: Path) -> None:
    louder = {name: _changed(audio, 0.99 * audio.samples) for name, audio in spoken.items()}
    for seed, audios in enumerate((spoken, louder)):
        _write(tmp_path / "fp32" / f"seed{seed}", audios)
    report = evaluate_audio(tmp_path / "fp32", [spoken, louder], _WORDS, options=_SILENT_EARS)
    assert report.suite.seeds == (0, 1)
    assert [(one.index, one.seed) for one in report.utterances][:3] == [(0, 0), (0, 1), (1, 0)]
    assert report.distortion.other_seeds_db > 0.0


@pytest.mark.slow
def test_single_renderings_with_other_noise_have_no_distortion(
    spoken: dict[str, Audio], tiny: GraphModel
) -> None:
    after = {name: tiny.synthesize(text, seed=1) for name, text in _WORDS.items()}
    report = evaluate_audio(spoken, after, _WORDS, options=_SILENT_EARS)
    assert report.distortion is None
    assert any("a folder for each seed" in warning for warning in report.warnings)
    rows = {row.gate.metric: row for row in gate(report, read_gates("default")).rows}
    row = rows["distortion.interval.1"]
    assert not row.passed
    assert "a folder for each seed" in (row.reason or "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "u0.wav\tOne dog.\nu1\tTwo dogs.\tone dog\n"),
        ("a.csv", "u0|One dog.\nu1|Two dogs.|one dog\n"),
        ("a.lst", "u0|Prompt.|p.wav|One dog.\nu1|Prompt.|p.wav|Two dogs.|x.wav\n"),
        (
            "a.jsonl",
            '{"name": "u0", "text": "One dog."}\n{"name": "u1.wav", "text": "Two dogs."}\n',
        ),
        ("a.toml", 'utterances = [{name="u0", text="One dog."}, {name="u1", text="Two dogs."}]'),
    ],
)
def test_texts_are_read_from_what_people_have(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    lines = read_lines(path)
    assert [(line.name, line.text) for line in lines] == [("u0", "One dog."), ("u1", "Two dogs.")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "at least 1 item"),
        ("a.tsv", "One dog.", "no tab and no | between name and text: 'One dog.'"),
        ("a.tsv", "u0\tOne.\nu0.wav\tTwo.", "the name 'u0' occurs twice"),
        ("a.csv", "u0|Is it one|two|or three?", "4 cells, and the third names no .wav file"),
        ("a.jsonl", "{", "cannot read the texts"),
        ("a.jsonl", '{"text": "One."}', "name"),
        ("a.toml", "x = 1", "utterances"),
    ],
)
def test_wrong_texts_are_told_in_a_line(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RecipeError) as raised:
        read_lines(path)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def _wav(value: float, rate: int) -> bytes:
    return Audio(samples=np.full(900, value, np.float32), sample_rate=rate).to_wav()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("u00.wav", None, "has no recording of 'u00'"),
        ("other.WAV", _wav(1, 16_000), "has recordings that no text names: 'other'"),
        ("u00.wav", _wav(1, 8_000), "recordings of 'u00' are at 8000 and 16000 Hz"),
        ("u00.wav", _wav(0, 16_000), "the reference's recording of 'u00' is silent"),
        ("u00.wav", b"RIFF", "cannot read audio from"),
    ],
)
def test_recordings_that_do_not_fit_are_told_in_a_line(
    spoken: dict[str, Audio],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    name: str,
    content: bytes | None,
    message: str,
) -> None:
    few = dict(list(spoken.items())[:2])
    reference, candidate = (_write(tmp_path / name, few) for name in ("fp32", "int8"))
    (reference / name).unlink(missing_ok=True)
    if content is not None:
        (reference / name).write_bytes(content)
    texts = tmp_path / "texts.jsonl"
    rows = [{"name": name, "text": _WORDS[name]} for name in few]
    texts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    arguments = ["--texts", str(texts), "--recognizer", "none", "--output", str(tmp_path / "out")]
    assert main(["evaluate", "--audio", str(reference), str(candidate), *arguments]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert not (tmp_path / "out" / "report.json").exists()


def test_what_only_models_or_only_recordings_have_is_refused(
    spoken: dict[str, Audio], tiny_path: Path, tmp_path: Path
) -> None:
    options = EvaluationOptions(recognizer="none", blame=True)
    with pytest.raises(EvaluationError, match="no components to blame"):
        evaluate_audio(spoken, spoken, _WORDS, options=options)
    for stated, name in (
        ({"seeds": (0,)}, "seeds"),
        ({"speaker": "a"}, "speaker"),
        ({"execution": Execution(device="cuda")}, "device"),
    ):
        options = EvaluationOptions(recognizer="none", **stated)
        with pytest.raises(EvaluationError, match=f"were spoken before; leave the {name}"):
            evaluate_audio(spoken, spoken, _WORDS, options=options)
    options = EvaluationOptions(recognizer="none", port=tmp_path)
    with pytest.raises(EvaluationError, match="for models, `blame` finds"):
        evaluate(tiny_path, tiny_path, options=options)


def test_folders_of_seeds_have_the_same_names(spoken: dict[str, Audio], tmp_path: Path) -> None:
    """They were paired as they are sorted: 0 with 1, and `s10` with `s2`."""
    few, texts = dict(list(spoken.items())[:1]), {"u00": "One."}
    for name in ("a/0", "a/1", "b/1", "b/2"):
        _write(tmp_path / name, few)
    with pytest.raises(EvaluationError, match=r"b' has no folder '0', which .*a' has"):
        evaluate_audio(tmp_path / "a", tmp_path / "b", texts, options=_SILENT_EARS)
    with pytest.raises(EvaluationError, match="1 seeds and the reference 2"):
        evaluate_audio([few, few], few, texts, options=_SILENT_EARS)
    (tmp_path / "a" / "0" / "u00.wav").write_bytes(b"RIFF")
    with pytest.raises(EvaluationError, match="cannot read audio from"):
        evaluate_audio(tmp_path / "a", tmp_path / "a", texts, options=_SILENT_EARS)


@pytest.mark.parametrize("samples", [np.zeros(9, np.int16), np.zeros((9, 2), np.float32), [0.0]])
def test_samples_of_another_kind_are_told_in_a_line(samples: Any) -> None:
    audio = Audio(samples=samples, sample_rate=16_000)
    spoken: Any = {"u00": audio if isinstance(samples, np.ndarray) else samples}
    with pytest.raises(EvaluationError, match=r"recording of 'u00' has samples of .*float32"):
        evaluate_audio(spoken, spoken, {"u00": "One."}, options=_SILENT_EARS)
