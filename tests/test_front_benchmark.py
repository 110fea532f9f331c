"""The benchmark of speed against sound: what is best, the table, and a voice measured whole."""

import json
from pathlib import Path

import pytest

from benchmarks.clips import read_clips
from benchmarks.contestants import Contestant
from benchmarks.front.__main__ import Settings, Voice, main, measure
from benchmarks.front.report import Row, VoiceFigures, front, write_figures
from benchmarks.sentences import Sentence, run_request
from benchmarks.timing import Plan
from tests.processors.emulation import NATIVE
from tts_compress.evaluation.gates import read_gates
from tts_compress.evaluation.suite import read_suite
from tts_compress.models.base import GraphModel
from tts_compress.progress import Silent


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    points = [(1.0, 0.0), (2.0, 0.4), (1.5, 0.5), (3.0, 2.0), (3.0, 1.0), (0.9, 0.05)]
    assert front(points) == [(1.0, 0.0), (2.0, 0.4), (3.0, 1.0)]


def _figures(timing: dict[str, object] | None) -> VoiceFigures:
    """Return two candidates with 12 s and 4 s of making, and one that could not be made."""
    metrics = {"distortion": {"value": 0.42, "interval": [-0.001, 0.5]}}
    fast = Row(
        kind="scheme",
        name="int8@fast",
        size_ratio=3.5,
        seconds=4.0,
        metrics=metrics,
        rises_db=[1.0, None, 5.0, 2.0],
        moved=[True, False, False, True],
        failed=["damage.hiss.utterances"],
        timing=timing,
    )
    good = Row(kind="scheme", name="int8@good", seconds=12.0, metrics=metrics, rises_db=[None] * 4)
    return VoiceFigures(
        name="voice",
        processor="native",
        size_bytes=10_000_000,
        suite="en-quick",
        words=False,
        texts=["a", "b", "the | worst", "d"],
        environment={
            "processor": {"model": "CPU", "integer_kernels": "VNNI"},
            "packages": {"onnxruntime": "1"},
        },
        rows=(fast, good, Row(kind="peer", name="static", error="it | broke")),
    )


def test_a_table_states_every_figure(tmp_path: Path) -> None:
    timing = {"ratio_median": 2.5, "ratio_min": 2.25, "interval": [2.0, 3.0]}
    json_path, table, picture = write_figures([_figures(timing)], tmp_path / "voices")
    rows = [line for line in table.read_text("utf-8").splitlines() if line.startswith("| int8")]
    assert rows == [
        "| int8 --quality fast | 3.50× | 2.50× (2.00 … 3.00) | 2.25× | 0.42 (0.00 … 0.50) | "
        "+2.0, +5.0 (the worst) | 2 | fails: damage.hiss | 4 s (1.0×) |",
        "| int8 --quality good | 0.00× | – | – | 0.42 (0.00 … 0.50) | – | 0 | "
        "passes | 12 s (3.0×) |",
    ]
    assert "| static | failed: it   broke |" in table.read_text("utf-8")
    assert "without word errors" in table.read_text("utf-8")
    assert "<svg" in picture.read_text("utf-8")
    [voice] = json.loads(json_path.read_text())["voices"]
    again = VoiceFigures.from_json(json.dumps(voice))
    assert write_figures([again], tmp_path / "again")[1].read_bytes() == table.read_bytes()


def test_nothing_is_drawn_of_what_was_not_timed(tmp_path: Path) -> None:
    paths = write_figures([_figures(None)], tmp_path / "voices")
    assert [path.suffix for path in paths] == [".json", ".md"]


def test_voices_that_lack_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = ["--assets", str(tmp_path), "--output", str(tmp_path / "out")]
    assert main([*folders, "--only", "hfc", "--report", str(tmp_path / "voices")]) == 0
    assert "skipped" in capsys.readouterr().out
    assert json.loads((tmp_path / "voices.json").read_text()) == {"voices": []}


def _settings(work: Path, *, words: bool = False) -> Settings:
    suite = read_suite("en-quick")
    few = [text for text in suite.utterances if text.text.startswith(("A thick", "Watch"))]
    return Settings(
        suite=suite.model_copy(update={"utterances": tuple(few), "seeds": (0,)}),
        gates=read_gates("default"),
        words=words,
        plan=Plan(threads=(1,), rounds=2, warm_ups=1),
        processor=NATIVE,
        work=work,
        progress=Silent(),
    )


def _same(path: Path) -> list[Contestant]:
    """Return a graph against itself, and against one that does not exist."""
    return [
        Contestant(kind="reference", name="fp32", path=path, graphs=(path.name,)),
        Contestant(kind="scheme", name="copy", path=path, graphs=(path.name,)),
        Contestant(kind="peer", name="none", path=path, graphs=(path.name,), error="not made"),
    ]


def test_a_voice_against_itself_loses_nothing(tiny: GraphModel, tmp_path: Path) -> None:
    [path] = tiny.files().weights
    [call] = tiny.calibration_calls(["Watch your step."], seed=0)
    feeds = {n: v for n, v in call.items() if n in {"input", "input_lengths", "scales"}}
    voice = Voice(
        name="tiny",
        files=(path,),
        sample_rate=tiny.sample_rate,
        sentence=Sentence(name="s", tokens=1, feeds=feeds, request=run_request(feeds)),
    )
    figures = measure(voice, _same(path), _settings(tmp_path))
    copy, missing = figures.rows
    assert missing.error == "not made"
    assert missing.timing is None
    assert copy.metrics is not None
    assert copy.metrics["distortion"]["value"] == 0.0
    assert "wer" not in copy.metrics
    assert copy.moved == [False, False]
    assert set(copy.rises_db) <= {0.0, None}
    assert copy.failed == ["distortion.interval.1"], "two texts give no interval"
    assert copy.timing is not None
    assert copy.timing["ratio_min"] > 0


@pytest.mark.slow
def test_a_vocoder_plays_its_clips(assets: Path, tmp_path: Path) -> None:
    path = assets / "hifigan-v2-ljspeech" / "generator_v2.fp32.onnx"
    clips = read_clips(assets, 4)[1::2]
    feeds = {"mel": clips[0].mel}
    voice = Voice(
        name="vocoder",
        files=(path,),
        sample_rate=22_050,
        sentence=Sentence(name="s", tokens=0, feeds=feeds, request=run_request(feeds)),
        clips=clips,
    )
    figures = measure(voice, _same(path), _settings(tmp_path, words=True))
    copy, _ = figures.rows
    assert figures.texts == [clip.name for clip in clips]
    assert not figures.words, "a vocoder has no words"
    assert copy.metrics is not None
    assert copy.metrics["distortion"]["value"] == 0.0
    assert copy.metrics["duration"]["ratio"] == 1.0
