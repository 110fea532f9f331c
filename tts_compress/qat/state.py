"""The state of a training, and checkpoints of it: one safetensors file, replaced whole."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from safetensors.torch import save_file
from torch import Tensor

from tts_compress.artifact import atomic_file
from tts_compress.errors import ArtifactError
from tts_compress.qat.task import TrainingTask, digest_tensors
from tts_compress.torch.layers.checkpoint import TensorFile

CHECKPOINT_NAME = "checkpoint.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Counts and losses of a training."""

    before: dict[str, float]
    """Terms of the loss on held-out examples before the first update: of post-training
    quantization."""

    best: dict[str, float]
    """Terms of the loss for the best average so far."""

    best_step: int = 0
    """Updates that made the best average; 0 where nothing was better than before."""

    step: int = 0
    """Updates so far."""

    seconds: float = 0.0
    """Time that these took, with evaluations."""

    rate_factor: float = 1.0
    """Halved by each recovery."""

    recoveries: int = 0
    stale: int = 0
    """Evaluations on held-out examples since the best one."""

    scaler: dict[str, Any] = field(default_factory=dict)
    """State of the gradient scaler in fp16; empty otherwise."""


Snapshot: TypeAlias = tuple[TrainingState, dict[str, Tensor]]
"""Everything that a training is resumed from: counts, and weights, averages, the best ones, the
optimizer's moments, states of random generators."""


class Checkpoints:
    """Keeps the newest snapshot; a process killed while writing leaves the last one.

    Args:
        folder: Folder of the file; must exist. None keeps the snapshot in memory.
        identity: Identity of the training; a file of another is refused.
        writes: True if this process is the one that writes.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], *, writes: bool = True
    ) -> None:
        self._path = None if folder is None else folder / CHECKPOINT_NAME
        self._identity = json.loads(json.dumps(identity))
        self._writes = writes
        self._last: Snapshot | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot in the place of the last."""
        # Tensors that share memory are no error of ours: each is written as it is.
        state, tensors = snapshot
        tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        if self._path is None:
            self._last = state, tensors
            return
        if not self._writes:
            return
        stated = {"state": asdict(state), "training": self._identity}
        metadata = {name: json.dumps(value) for name, value in stated.items()}
        with atomic_file(self._path) as partial:
            save_file(tensors, partial, metadata)
            with partial.open("rb") as file:
                os.fsync(file.fileno())

    def drop(self) -> None:
        """Remove the file, if there is one."""
        if self._writes and self._path is not None:
            self._path.unlink(missing_ok=True)

    def load(self) -> Snapshot | None:
        """Return the last snapshot; None if there is none."""
        if self._path is None or not self._path.is_file():
            return self._last
        file = TensorFile(self._path)
        try:
            stated = json.loads(file.metadata["training"])
            state = TrainingState(**json.loads(file.metadata["state"]))
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"'{self._path}' is no checkpoint of a training ({error}); "
                "start anew with --restart"
            ) from error
        if stated != self._identity:
            raise ArtifactError(
                f"'{self._path}' is of another training: {_differences(stated, self._identity)}; "
                "repeat its options, or start anew with --restart"
            )
        return state, {name: file.read(name) for name in file.names}


def identity_of(task: TrainingTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that identify a training: student, examples, options."""
    examples = (task.train[0], task.train[-1], task.held_out[0])
    return {
        "model": digest_tensors(task.student.state_dict().values()),
        "examples": digest_tensors(t for e in examples for t in (*e.inputs, *e.targets)),
        "count": len(task.train),
        **options,
    }


def _differences(stated: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(stated, dict):
        return "it does not state which"
    return ", ".join(
        f"other {name}"
        if name in {"model", "examples"}
        else f"{name} {stated.get(name)} there, {wanted.get(name)} here"
        for name in stated | wanted
        if stated.get(name) != wanted.get(name)
    )
