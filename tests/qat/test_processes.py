"""Several processes on one machine: one training, with a larger batch."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.trainer import read_log


def _launch(program: Path, folder: Path, changes: dict[str, Any]) -> list[str]:
    """Run two processes as a launcher does, and return what each printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, str(program), str(folder), "0", json.dumps(changes)]
    running = [
        subprocess.Popen(
            command,
            env=os.environ | meeting | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    printed = []
    for process in running:
        out, problems = process.communicate(timeout=500)
        assert process.returncode == 0, problems
        printed.append(out)
    return printed


@pytest.mark.slow
def test_two_processes_train_like_one_with_twice_the_batch(
    toy: Any, toy_program: Path, tmp_path: Path
) -> None:
    """The learning rate follows the number of processes, so one alone is given twice as much."""
    printed = _launch(toy_program, tmp_path / "two", {"batch_size": 3, "accumulation": 2})
    assert printed[1] == ""
    alone = TrainingOptions(
        **toy.OPTIONS | {"batch_size": 12, "learning_rate": 2 * toy.OPTIONS["learning_rate"]}
    )
    expected = toy.train(toy.make_task(), TrainingRun(options=alone, folder=tmp_path / "one"))
    found = json.loads(printed[0].splitlines()[-1])
    assert found["steps"] == expected.record.steps > 0
    curves = [
        [event["loss"] for event in read_log(tmp_path / name) if "step" in event]
        for name in ("one", "two")
    ]
    assert len(curves[0]) == len(curves[1]) > 24
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    start = read_log(tmp_path / "two")[0]
    assert start["processes"] == 2
    again = _launch(toy_program, tmp_path / "two", {"batch_size": 3, "accumulation": 2})
    assert json.loads(again[0].splitlines()[-1]) == found
