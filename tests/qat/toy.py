"""A training of a second, also as a program that can be killed: `toy.py FOLDER KILL_AT`."""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tts_compress import find_recipe
from tts_compress.artifact import TrainingRecord
from tts_compress.qat import trainer
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.prepare import prepare_qat
from tts_compress.qat.task import TrainingTask
from tts_compress.qat.training import module_task

OPTIONS: dict[str, Any] = {
    "steps": 24,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "warm_up": 2,
    "averaging": 0.5,
    "held_out_every": 6,
    "checkpoint_every": 5,
    "threads": 1,
}


class Toy(nn.Module):
    """Two layers, of which four bits for each weight leave little."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.second = nn.Conv1d(32, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[batch, 4, time - 1]` of `[batch, time, 64]`."""
        return self.second(torch.tanh(self.first(x)).mT)  # type: ignore[no-any-return]


def make_task(scheme: str = "int4-weight-only", *, learned_ranges: bool = False) -> TrainingTask:
    """Return the same task every time: 20 inputs of two lengths."""
    torch.manual_seed(0)
    teacher = Toy().eval()
    source = torch.Generator().manual_seed(1)
    batches = [torch.randn(1, 5 + i % 2, 64, generator=source) for i in range(20)]
    recipe = find_recipe("module", scheme)
    # The second layer has few channels, which schemes of eight bits leave alone.
    rules = tuple(rule.model_copy(update={"min_channels": 1}) for rule in recipe.component)
    every = recipe.model_copy(update={"component": rules})
    student = prepare_qat(teacher, every, learned_ranges=learned_ranges).module
    return module_task(teacher, student, batches, held_out=0.2)


class Recorder:
    """Records the reported progress, and kills the process at an update on request."""

    def __init__(self, kill_at: int = 0) -> None:
        self.lines: list[str] = []
        self.stages: list[tuple[str, int, int]] = []
        self._kill_at = kill_at

    def advance(self, stage: str, done: int, total: int) -> None:
        """Note a step."""
        self.stages.append((stage, done, total))
        if stage == "train" and done == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def status(self, stage: str, text: str) -> None:
        """Ignore what changes with each step."""

    def message(self, line: str) -> None:
        """Note a line."""
        self.lines.append(line)


class Trained(NamedTuple):
    """A trained student, and how it was trained."""

    student: nn.Module
    record: TrainingRecord


def train(task: TrainingTask, run: TrainingRun) -> Trained:
    """Train a task's student."""
    return Trained(task.student, trainer.train(task, run))


def digest(trained: Trained) -> dict[str, Any]:
    """Return everything that two equal trainings have in common."""
    found = hashlib.sha256()
    for name, tensor in sorted(trained.student.state_dict().items()):
        found.update(name.encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"student": found.hexdigest(), "before": trained.record.before} | {
        "after": trained.record.after,
        "steps": trained.record.steps,
    }


def main(folder: Path, kill_at: int, changes: dict[str, Any]) -> None:
    """Train, and print the digest if nothing happens."""
    torch.set_num_threads(1)  # the teacher's outputs, too, depend on the order of sums
    trained = train(
        make_task(),
        TrainingRun(
            options=TrainingOptions(**OPTIONS | changes), folder=folder, progress=Recorder(kill_at)
        ),
    )
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(digest(trained)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]) if sys.argv[3:] else {})
