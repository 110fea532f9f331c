"""Damage to the files of a model's folder: functions that make functions of the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Damage = Callable[[Path], Any]

WEIGHTS = "model.safetensors"


def remove(name: str) -> Damage:
    """Remove a file."""
    return lambda folder: (folder / name).unlink()


def write(name: str, content: str | bytes) -> Damage:
    """Write a file."""
    written = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(written)


def replace(name: str, old: str, new: str) -> Damage:
    """Replace text that there is in a file."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")

    return change


def alter(name: str, **changes: Any) -> Damage:
    """Change settings in a JSON file; a name with `__` reaches into a section."""

    def change(folder: Path) -> None:
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
        for key, value in changes.items():
            section, _, inner = key.rpartition("__")
            (settings[section] if section else settings)[inner] = value
        (folder / name).write_text(json.dumps(settings), encoding="utf-8")

    return change


def edit_weights(change: Callable[[dict[str, Any]], Any]) -> Damage:
    """Change the tensors of the weights, in place."""

    def edit(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})

    return edit


def pickle_weights(folder: Path) -> None:
    """Leave only weights of the name that pickled ones have."""
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
