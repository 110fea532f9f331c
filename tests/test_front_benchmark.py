"""The benchmark of speed against sound: what is best, the table, and a voice measured whole."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clips import read_clips, read_sentences, split
from benchmarks.contestants import Contestant
from benchmarks.front.__main__ import Settings, Voice, main, measure, timed_sentence
from benchmarks.front.report import Row, VoiceFigures, front, write_figures
from benchmarks.sentences import Sentence, run_request
from benchmarks.timing import Plan
from benchmarks.vocoder import __main__ as command
from benchmarks.vocoder import contestants
from benchmarks.vocoder.contestants import FP32, NAIVE, OURS
from benchmarks.vocoder.judge import QUANTITIES, Judged, Quantity, order_is_shown
from tests.processors.emulation import NATIVE
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load
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


def test_a_voice_by_contract_is_timed_on_a_text_of_the_suite(assets: Path) -> None:
    """Its graph need not hold the rounding of durations that Piper's have."""
    voice, suite = load(assets / "trained-voices" / "hfc" / "hfc.onnx"), read_suite("en-quick")
    assert isinstance(voice, GraphModel)
    sentence = timed_sentence(voice, suite)
    assert sentence.name in {utterance.text for utterance in suite.utterances}
    assert set(sentence.feeds) == set(sentence.request["feeds"]) == {"tokens", "length_scale"}


def _settings(work: Path) -> Settings:
    suite = read_suite("en-quick")
    few = [text for text in suite.utterances if text.text.startswith(("A thick", "Watch"))]
    return Settings(
        suite=suite.model_copy(update={"utterances": tuple(few), "seeds": (0,)}),
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


@pytest.mark.slow
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
    figures = measure(voice, _same(path), _settings(tmp_path))
    copy, _ = figures.rows
    assert figures.texts == [clip.name for clip in clips]
    assert copy.metrics is not None
    assert copy.metrics["distortion"]["value"] == 0.0
    assert copy.metrics["duration"]["ratio"] == 1.0


_LOWER = Quantity(name="distance", label="", better="lower")
_HIGHER = Quantity(name="score", label="", better="higher")


def _judged(ours: float, naive: float, noise: float = 0.01) -> Judged:
    """Return values of 32 clips whose differences from FP32 have these means."""
    random = np.random.default_rng(0)
    fp32 = random.normal(3, 1, 32)  # clips differ by far more than vocoders do
    means = {FP32: 0.0, OURS: ours, NAIVE: naive}
    distances = {
        name: fp32 + mean + (random.normal(0, noise, 32) if mean else 0)
        for name, mean in means.items()
    }
    values = {name: {"distance": row, "score": -row} for name, row in distances.items()}
    return Judged(values=values, words=np.full(32, 10), coded_db=0.0, recognizer="")


@pytest.mark.parametrize("quantity", [_LOWER, _HIGHER])
@pytest.mark.parametrize(
    ("ours", "naive", "noise", "shown"),
    [
        (0.1, 1.0, 0.01, True),
        (1.0, 0.1, 0.01, False),
        (-0.1, 1.0, 0.01, False),  # better than FP32
        (0.1, 0.1001, 0.01, False),  # as bad as ours
        (0.01, 1.0, 0.5, False),  # FP32 and ours cannot be told apart
    ],
)
def test_an_order_is_shown_where_no_intervals_touch(
    quantity: Quantity, ours: float, naive: float, noise: float, shown: bool
) -> None:
    assert order_is_shown(_judged(ours, naive, noise), quantity) is shown


def test_shares_are_of_words() -> None:
    """A clip of many words weighs more."""
    words = Quantity(name="word_errors", label="", better="lower", share=True)
    rows = {"a": np.array([3.0, 0.0]), "b": np.array([0.0, 3.0])}
    values = {name: {"word_errors": row} for name, row in rows.items()}
    judged = Judged(values=values, words=np.array([6, 24]), coded_db=0.0, recognizer="")
    assert judged.mean("a", words) == judged.mean("b", words) == pytest.approx(0.1)
    change = judged.change("a", "b", words)
    assert (change.low, change.mean, change.high) == pytest.approx((-0.5, 0.0, 0.125))


def test_every_clip_is_judged_once_and_never_by_what_it_calibrated(assets: Path) -> None:
    clips = read_clips(assets, 7)
    folds = split(clips)
    judged = [clip.name for fold in folds for clip in fold.judged]
    assert sorted(judged) == [clip.name for clip in clips]
    for fold in folds:
        assert not {c.name for c in fold.judged} & {c.name for c in fold.calibration}
    assert all(len(clip.recording.samples) == 256 * clip.mel.shape[-1] for clip in clips)
    assert clips[1].transcript == "in being comparatively modern"


@pytest.mark.slow
def test_sentences_calibrate_nothing_and_each_is_judged_once(assets: Path) -> None:
    pytest.importorskip("piper")
    clips, sentences = read_clips(assets, 4), read_sentences(3)
    folds = split(clips, sentences)
    judged = [clip.name for fold in folds for clip in fold.judged]
    assert sorted(judged) == sorted(clip.name for clip in (*clips, *sentences))
    calibrating = {clip.name for fold in folds for clip in fold.calibration}
    assert calibrating == {clip.name for clip in clips}
    assert sentences[1].transcript == "several bees buzzed above the purple clover"


def test_without_the_vocoder_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--assets", str(tmp_path), "--report", str(tmp_path / "v")]) == 0
    assert "skipped" in capsys.readouterr().out
    assert not (tmp_path / "v.json").exists()


@pytest.mark.slow
def test_our_int8_is_between_fp32_and_stock_int8(
    assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Path(sys.prefix) / "listen"
    if not (wheel / "speechmos").is_dir():
        pytest.skip(f"not in {wheel}: pip install --target {wheel} speechmos==0.0.1.1")
    monkeypatch.syspath_prepend(str(wheel))
    monkeypatch.setenv("PYTHONPATH", str(wheel))
    stem = tmp_path / "report" / "vocoder"
    arguments = ["--assets", str(assets), "--clips", "5", "--output", str(tmp_path / "out")]
    arguments += ["--report", str(stem), "--sentences", "6", "--others"]
    command.main(arguments)
    document = json.loads(stem.with_suffix(".json").read_text())
    found = document["contestants"]
    assert set(found) == {"recording", FP32, OURS, NAIVE}
    assert all(set(row["against_fp32"]) == {q.name for q in QUANTITIES} for row in found.values())
    for quantity, worse in (("distortion_db", 1), ("log_mel_db", 1), ("dnsmos_overall", -1)):
        harm = [worse * found[n]["against_fp32"][quantity]["mean"] for n in (OURS, NAIVE)]
        assert 0 < 4 * harm[0] < harm[1]
    assert found[OURS]["values"]["log_mel_db"] != found[FP32]["values"]["log_mel_db"]
    table = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert f"- log-mel distance to the recording, dB: `{NAIVE}`\n" in table
    kept = stem.with_suffix(".json").read_bytes()
    monkeypatch.setattr(contestants, "least_times", None)  # nothing is made again
    command.main(arguments)
    assert stem.with_suffix(".json").read_bytes() == kept
