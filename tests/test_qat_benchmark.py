"""The benchmark of training without data runs, and reports what it found."""

import json
from pathlib import Path

import pytest

from benchmarks.qat import main


def test_without_recordings_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--assets", str(tmp_path), "--report", str(tmp_path / "qat")]) == 0
    assert "skipped" in capsys.readouterr().out
    assert not (tmp_path / "qat.json").exists()


@pytest.mark.filterwarnings("ignore:.* dB signal-to-noise")  # why it is trained
@pytest.mark.slow
def test_training_is_compared_with_what_it_began_from(assets: Path, tmp_path: Path) -> None:
    stem = tmp_path / "report" / "qat"
    arguments = ["--assets", str(assets), "--contestants", "min-max", "min-max-qat"]
    arguments += ["--steps", "16", "--clips", "2", "--batch-size", "1", "--threads", "1"]
    arguments += ["--output", str(tmp_path / "out"), "--report", str(stem)]
    assert main(arguments) == 0
    plain, trained = json.loads(stem.with_suffix(".json").read_text())["contestants"]
    assert (plain["name"], trained["name"]) == ("min-max", "min-max-qat")
    assert trained["distance_db"] < plain["distance_db"]
    assert plain["options"] is plain["time_ratio"] is None
    assert trained["options"]["steps"] == 16
    assert trained["curve"][-1][1] < trained["curve"][0][1]
    assert trained["time_ratio"] > 0
    table = stem.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| `min-max-qat` | 8 | {trained['distance_db']:.3f} | 16 |" in table
    assert "With the very same operators in integers, training leaves" in table
    assert "<svg" in stem.with_suffix(".svg").read_text(encoding="utf-8")
