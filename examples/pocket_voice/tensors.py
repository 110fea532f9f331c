"""Tensors in files: nothing is pickled, and a file is there whole or not at all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from tts_compress.artifact import atomic_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor


def write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write tensors and a description in JSON."""
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as part:
        save_file(whole, part, {"about": json.dumps(about, ensure_ascii=False)})


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and description."""
    with safe_open(path, "pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
        return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118


def joined(name: str, rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return one tensor of many that differ in length, and their lengths."""
    return {name: torch.cat(list(rows)), f"{name}.lengths": torch.tensor([len(r) for r in rows])}


def split(name: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    """Return the tensors that `joined` put together."""
    return list(torch.split(tensors[name], tensors[f"{name}.lengths"].tolist()))
