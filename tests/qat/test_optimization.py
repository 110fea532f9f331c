"""The order of the training examples."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tts_compress.errors import ArtifactError, QuantizationError
from tts_compress.qat.optimization import batch_indices, rate_share, spread
from tts_compress.qat.options import CHECKPOINT_NAME, TrainingOptions, TrainingRun
from tts_compress.qat.task import Example, joined
from tts_compress.qat.trainer import read_log


def test_every_example_comes_once_before_any_comes_again() -> None:
    places = [place for step in range(7) for place in batch_indices(10, 3, step, seed=0)]
    assert sorted(places[:10]) == sorted(places[10:20]) == list(range(10))
    assert places[:10] != places[10:20]


def test_batches_follow_from_seed_and_step_alone() -> None:
    later = [batch_indices(10, 4, step, seed=3) for step in range(9)]
    assert batch_indices(10, 4, 8, seed=3) == later[8]
    assert [batch_indices(10, 4, step, seed=4) for step in range(9)] != later


def test_batches_may_be_larger_than_everything_there_is() -> None:
    assert Counter(batch_indices(3, 7, 0, seed=0)).total() == 7
    assert set(Counter(batch_indices(3, 6, 5, seed=0)).values()) == {2}


def test_twice_the_batch_is_two_batches() -> None:
    twice = [place for step in range(4) for place in batch_indices(11, 8, step, seed=0)]
    once = [index for step in range(8) for index in batch_indices(11, 4, step, seed=0)]
    assert twice == once


def _example(length: int, value: float) -> Example:
    tensor = torch.full((1, length), value)
    return Example(inputs=(tensor,), targets=(tensor + 1, tensor + 2))


def test_examples_of_equal_shapes_are_joined() -> None:
    batches = list(joined([_example(3, 0), _example(2, 1), _example(3, 2)]))
    assert [size for _, size in batches] == [2, 1]
    first, second = (batch for batch, _ in batches)
    assert first.inputs[0][:, 0].tolist() == [0, 2]
    assert first.targets[1][:, 0].tolist() == [2, 4]
    assert second.inputs[0].shape == (1, 2)


def test_what_has_no_axis_to_be_joined_along_stays_alone() -> None:
    """Nor does what has another first axis: the first of an LSTM's output is the time."""
    for other in (torch.tensor(2.0), torch.ones(5, 1, 3)):
        example = Example(inputs=(torch.ones(1, 3), other), targets=())
        assert [size for _, size in joined([example, example])] == [1, 1]


def test_examples_to_judge_by_are_spread() -> None:
    assert spread(range(3), 16) == [0, 1, 2]
    assert spread(range(100), 4) == [12, 37, 62, 87]


def test_learning_rate_rises_and_falls() -> None:
    options = TrainingOptions(steps=100, warm_up=10)
    shares = [rate_share(options, step) for step in range(101)]
    assert shares[:11] == sorted(shares[:11])
    assert shares[10] == 1
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[100] == pytest.approx(0.01)


def test_learning_rate_falls_with_time_where_that_is_used_up_sooner() -> None:
    options = TrainingOptions(steps=100, warm_up=10, minutes=2.0)
    assert rate_share(options, 10, 60.0) == pytest.approx(rate_share(options, 55))
    assert rate_share(options, 55, 6.0) == rate_share(options, 55)
    assert rate_share(options, 55, 600.0) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"steps": 0}, "steps is 0; give 1 or more"),
        ({"batch_size": -1}, "batch_size is -1; give 1 or more"),
        ({"clip": float("nan")}, "clip is nan; give 0 or more"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; give a number above 0"),
        ({"learning_rate": float("inf")}, "learning_rate is inf; give a number above 0"),
        ({"averaging": 1.0}, r"averaging is 1\.0; give 0 or more, below 1"),
        ({"threads": 0}, "threads is 0; give 1 to 4096, or leave it out"),
        ({"loss": "l1"}, "loss is l1; give mse, kl or waveform"),
        ({"steps": 0, "patience": -2}, "steps is 0.*patience is -2"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(QuantizationError, match=problem):
        TrainingOptions(**changes)


def test_identity_is_all_that_changes_results() -> None:
    usual = TrainingOptions()
    assert TrainingOptions(threads=2, checkpoint_every=7).identity() == usual.identity()
    for changes in ({"steps": 7}, {"seed": 1}, {"learning_rate": 1e-5}, {"learned_ranges": False}):
        assert TrainingOptions(**changes).identity() != usual.identity()


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
    toy_program: Path, whole: Any, tmp_path: Path
) -> None:
    """Killed twice, in the first updates and between checkpoints."""
    folder = str(tmp_path / "killed")
    for kill_at in (3, 13):
        command = [sys.executable, str(toy_program), folder, str(kill_at)]
        killed = subprocess.run(command, check=False, capture_output=True, text=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    command = [sys.executable, str(toy_program), folder, "0"]
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    expected, _ = whole
    assert json.loads(finished.stdout.splitlines()[-1]) == expected
    assert expected["steps"] > 0


@pytest.fixture(scope="module")
def whole(toy: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return the digest and the curve of a training that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    run = TrainingRun(options=TrainingOptions(**toy.OPTIONS), folder=folder)
    return toy.digest(toy.train(toy.make_task(), run)), _curve(folder)


def _curve(folder: Path) -> list[tuple[int, float]]:
    return [(e["step"], e["loss"]) for e in read_log(folder) if e["event"] == "update"]


@pytest.mark.parametrize(("stop_at", "resumed"), [(1, 0), (6, 5), (19, 15)])
def test_stopped_at_any_update_it_ends_the_same(
    toy: Any, run: Callable[..., Any], whole: Any, tmp_path: Path, stop_at: int, resumed: int
) -> None:
    with pytest.raises(_Stopped):
        run(tmp_path, stop_at)
    digest, curve = whole
    assert toy.digest(run(tmp_path)) == digest
    assert _curve(tmp_path) == curve
    assert [step for step, _ in curve] == list(range(1, 25))
    assert [e["step"] for e in read_log(tmp_path) if e["event"] == "resume"] == [resumed]


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


def test_checkpoint_of_another_training_is_refused(
    toy: Any, run: Callable[..., Any], tmp_path: Path
) -> None:
    few = {"steps": 5}
    run(tmp_path, **few)
    message = r"learning_rate 0\.001 there, 0\.002 here; repeat its options, or start anew"
    with pytest.raises(ArtifactError, match=message):
        run(tmp_path, **few, learning_rate=0.002)
    task = toy.make_task("int8-qat")
    with pytest.raises(ArtifactError, match="of another training: other model"):
        toy.train(task, TrainingRun(options=TrainingOptions(**toy.OPTIONS | few), folder=tmp_path))
    changed = run(tmp_path, **few, learning_rate=0.002, restart=True)
    assert toy.digest(changed) == toy.digest(run(None, **few, learning_rate=0.002))


def test_a_checkpoint_is_written_out_by_a_handle_that_may_write(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to write out what was opened for reading."""
    handles = list[bool]()
    monkeypatch.setattr(os, "fsync", lambda handle: handles.append(os.write(handle, b"") == 0))
    run(tmp_path, steps=5)
    assert handles


@pytest.mark.parametrize("content", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"no tensors at all"])
def test_damaged_checkpoint_is_refused(
    run: Callable[..., Any], tmp_path: Path, content: bytes
) -> None:
    (tmp_path / CHECKPOINT_NAME).write_bytes(content)
    with pytest.raises(ArtifactError, match=CHECKPOINT_NAME):
        run(tmp_path)
