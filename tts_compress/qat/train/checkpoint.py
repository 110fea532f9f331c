"""Keeping a training so that it can go on: one safetensors file, replaced whole."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import torch

from tts_compress.errors import ArtifactError, MissingExtraError
from tts_compress.qat.train.standing import Snapshot, Standing
from tts_compress.torch.layers.tensors_file import TensorsFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from tts_compress.qat.task import Task

__all__ = ["CHECKPOINT_NAME", "Checkpoints", "InFolder", "InMemory", "identity_of"]

CHECKPOINT_NAME = "checkpoint.safetensors"


class Checkpoints(Protocol):
    """Keeps the newest snapshot."""

    def save(self, snapshot: Snapshot) -> None:
        """Keep it in the place of the last."""

    def load(self) -> Snapshot | None:
        """Return the last; None if there is none."""


class InMemory:
    """Keeps the newest snapshot as long as the process lives."""

    def __init__(self) -> None:
        self._last: Snapshot | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Keep copies of its tensors."""
        copies = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
        self._last = Snapshot(standing=snapshot.standing, tensors=copies)

    def load(self) -> Snapshot | None:
        """Return the last."""
        return self._last


class InFolder:
    """Keeps the newest snapshot in a file; whoever is killed while writing leaves the last one.

    Args:
        folder: Of the file; must exist.
        identity: What training it is; a file of another is refused.
        writes: Whether this process is the one that writes.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], *, writes: bool = True) -> None:
        self._path = folder / CHECKPOINT_NAME
        self._identity = json.loads(json.dumps(identity))
        self._writes = writes

    def save(self, snapshot: Snapshot) -> None:
        """Write it beside the last one, then put it in its place.

        Raises:
            ArtifactError: The file cannot be written.
            MissingExtraError: safetensors is not installed.
        """
        if not self._writes:
            return
        try:
            from safetensors.torch import save_file
        except ImportError as error:
            raise MissingExtraError("safetensors", "torch") from error
        partial = self._path.with_suffix(".partial")
        stated = {"standing": asdict(snapshot.standing), "training": self._identity}
        metadata = {name: json.dumps(value) for name, value in stated.items()}
        # Tensors that share memory are no error of ours: each is written as it is.
        tensors = {name: tensor.contiguous().clone() for name, tensor in snapshot.tensors.items()}
        try:
            save_file(tensors, partial, metadata)
            with partial.open("rb") as file:
                os.fsync(file.fileno())
            partial.replace(self._path)
        except OSError as error:
            raise ArtifactError(f"cannot write '{self._path}': {error}") from error

    def drop(self) -> None:
        """Remove the file, if there is one."""
        if self._writes:
            self._path.unlink(missing_ok=True)

    def load(self) -> Snapshot | None:
        """Return what the file holds.

        Raises:
            ArtifactError: It cannot be read, or is of another training.
        """
        if not self._path.is_file():
            return None
        file = TensorsFile(self._path)
        try:
            found = json.loads(file.metadata["training"])
            standing = Standing(**json.loads(file.metadata["standing"]))
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"'{self._path}' is no checkpoint of a training ({error}); "
                "start anew with --restart"
            ) from error
        if found != self._identity:
            raise ArtifactError(
                f"'{self._path}' is of another training: {_differences(found, self._identity)}; "
                "repeat its options, or start anew with --restart"
            )
        return Snapshot(standing=standing, tensors={name: file.read(name) for name in file.names})


def identity_of(task: Task, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what distinguishes a training from others: student, examples, options.

    Args:
        task: Whose student is as it was made.
        options: Those that matter.
    """
    student = hashlib.sha256()
    for name, tensor in sorted(task.student.state_dict().items()):
        student.update(name.encode())
        _add(student, tensor)
    examples = hashlib.sha256()
    learned = task.train_examples()
    for example in (learned[0], learned[len(learned) - 1], task.held_out_examples()[0]):
        for tensor in (*example.inputs, *example.targets):
            _add(examples, tensor)
    return {
        "model": student.hexdigest(),
        "examples": examples.hexdigest(),
        "count": len(learned),
        **options,
    }


def _add(digest: Any, tensor: Tensor) -> None:
    digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())


def _differences(found: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(found, dict):
        return "it says nothing of itself"
    names = [name for name in (found | wanted) if found.get(name) != wanted.get(name)]
    hashes = {"model", "examples"}
    return ", ".join(
        f"other {name}"
        if name in hashes
        else f"{name} {found.get(name)} there, {wanted.get(name)} here"
        for name in names
    )
