"""The benchmark of the vocoder: who is judged by what, and when an order is shown."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.clips import read_clips, read_sentences, split
from benchmarks.vocoder import __main__ as command
from benchmarks.vocoder import contestants
from benchmarks.vocoder.contestants import FP32, NAIVE, OURS
from benchmarks.vocoder.judge import QUANTITIES, Judged, Quantity, order_is_shown

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
