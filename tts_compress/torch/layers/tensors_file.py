"""Reading a safetensors file tensor by tensor.

The library maps the whole file into memory, and every page that was touched counts as the
process's own: loading would take twice the file. Here each tensor is read into its own memory.
The format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tts_compress.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["TensorsFile"]

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LONGEST_HEADER = 100_000_000
"""Bytes; the library's own limit."""


class TensorsFile:
    """A safetensors file of which tensors are read one by one.

    Args:
        path: The file.

    Raises:
        ArtifactError: It is no such file, or its header does not fit its content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._start, header = _read_header(path)
            self.metadata: dict[str, str] = dict(header.pop("__metadata__", None) or {})
            """What was written beside the tensors."""

            size = path.stat().st_size - self._start
            self._entries = {name: _entry(entry, size) for name, entry in header.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(
                f"'{path}' is not a readable safetensors file ({error}); compress the model again"
            ) from error

    @property
    def names(self) -> frozenset[str]:
        """The tensors' names."""
        return frozenset(self._entries)

    def read(self, name: str) -> Tensor:
        """Return a tensor, in memory of its own.

        Raises:
            ArtifactError: There is none of that name, or the file was cut short meanwhile.
        """
        if name not in self._entries:
            raise ArtifactError(
                f"'{self._path}' holds no tensor {name!r}; compress the model again"
            )
        kind, shape, start = self._entries[name]
        tensor = torch.empty(shape, dtype=kind)
        target = tensor.reshape(-1).view(torch.uint8).numpy()
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._start + start)
            view, done = memoryview(target), 0  # type: ignore[arg-type]
            while done < len(view):  # one call reads at most 2 GiB
                count = file.readinto(view[done:])
                if not count:
                    raise ArtifactError(f"'{self._path}' ends within tensor {name!r}")
                done += count
        return tensor


_Entry = tuple[torch.dtype, tuple[int, ...], int]


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"a header of {length} bytes")
        text = file.read(length)
    if len(text) < length:
        raise ValueError("the header is cut short")
    header: dict[str, Any] = json.loads(text)
    return 8 + length, header


def _entry(raw: Mapping[str, Any], size: int) -> _Entry:
    kind, shape = _TYPES[raw["dtype"]], tuple(int(n) for n in raw["shape"])
    start, end = (int(n) for n in raw["data_offsets"])
    if min((*shape, start), default=0) < 0 or end > size:
        raise ValueError("a tensor lies outside the file")
    # Without a product of numbers that an attacker chose: it could be astronomically large.
    expected = kind.itemsize
    for extent in shape:
        expected *= extent
        if expected > size and 0 not in shape:
            break
    if end - start != expected:
        raise ValueError("a tensor's shape does not fit its bytes")
    return kind, shape, start
