"""A training that was killed goes on as if nothing had happened."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tts_compress.errors import ArtifactError
from tts_compress.qat.optimization import CHECKPOINT_NAME
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.trainer import read_log


class _Stopped(Exception):  # noqa: N818  no error, a test's way out
    pass


@pytest.fixture
def run(toy: Any) -> Callable[..., Any]:
    """Return a function that trains the toy; `stop_at` ends it in the middle of that update."""

    def start(folder: Path | None, stop_at: int = 0, **changes: Any) -> Any:
        class Stopping(toy.Recorder):  # type: ignore[misc]
            def advance(self, stage: str, done: int, total: int) -> None:
                if stage == "train" and done == stop_at:
                    raise _Stopped
                super().advance(stage, done, total)

        restart = changes.pop("restart", False)
        options = TrainingOptions(**toy.OPTIONS | changes)
        run = TrainingRun(options=options, folder=folder, restart=restart, progress=Stopping())
        return toy.train(toy.make_task(), run)

    return start


@pytest.mark.slow
def test_killed_processes_end_with_the_same_bytes(
    toy_program: Path, toy: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    """Killed twice, in the first updates and between checkpoints."""
    folder = str(tmp_path / "killed")
    for kill_at in (3, 13):
        command = [sys.executable, str(toy_program), folder, str(kill_at)]
        killed = subprocess.run(command, check=False, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    command = [sys.executable, str(toy_program), folder, "0"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    expected = toy.digest(run(tmp_path / "whole"))
    assert json.loads(finished.stdout.splitlines()[-1]) == expected
    assert expected["steps"] > 0


@pytest.mark.parametrize("stop_at", [1, 5, 6, 19])
def test_stopped_at_any_update_it_ends_the_same(
    toy: Any, run: Callable[..., Any], tmp_path: Path, stop_at: int
) -> None:
    with pytest.raises(_Stopped):
        run(tmp_path, stop_at)
    assert toy.digest(run(tmp_path)) == toy.digest(run(None))


def test_best_is_kept_although_it_was_found_before_the_stop(
    toy: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    """A learning rate that rises until nothing gets better any more."""
    rising = {"steps": 48, "warm_up": 46, "learning_rate": 0.004, "averaging": 0.0}
    with pytest.raises(_Stopped):
        run(tmp_path, 31, **rising)
    found = toy.digest(run(tmp_path, **rising))
    assert found == toy.digest(run(None, **rising))
    assert 0 < found["steps"] < 30


def test_log_is_one_curve(run: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(_Stopped):
        run(tmp_path / "a", 14)
    run(tmp_path / "a")
    run(tmp_path / "b")
    curves = [
        [(e["step"], e["loss"]) for e in read_log(tmp_path / name) if e["event"] == "update"]
        for name in ("a", "b")
    ]
    assert curves[0] == curves[1]
    assert [step for step, _ in curves[0]] == list(range(1, 25))
    assert [e["step"] for e in read_log(tmp_path / "a") if e["event"] == "resume"] == [10]


def test_checkpoint_of_another_training_is_refused(
    toy: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    run(tmp_path)
    message = r"learning_rate 0\.001 there, 0\.002 here; repeat its options, or start anew"
    with pytest.raises(ArtifactError, match=message):
        run(tmp_path, learning_rate=0.002)
    task = toy.make_task("int8-qat")
    with pytest.raises(ArtifactError, match="of another training: other model"):
        toy.train(task, TrainingRun(options=TrainingOptions(**toy.OPTIONS), folder=tmp_path))
    changed = run(tmp_path, learning_rate=0.002, restart=True)
    assert toy.digest(changed) == toy.digest(run(None, learning_rate=0.002))


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"no tensors at all"])
def test_damaged_checkpoint_is_refused(
    run: Callable[..., Any], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / CHECKPOINT_NAME).write_bytes(content)
    with pytest.raises(ArtifactError, match=CHECKPOINT_NAME):
        run(tmp_path)
