"""Files that `torch.save` wrote, some with other first bytes, read without running what is in them.

GPT-SoVITS marks newer synthesizers by two bytes in the place of a zip archive's `PK`.
"""

from __future__ import annotations

import io
import os
import pathlib
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ArtifactError, MissingExtraError, ModelError, first_line
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["ZIP", "TorchFile", "read_header", "read_torch_file", "write_torch_file"]

ZIP = b"PK"
"""What a file of `torch.save` begins with, where nobody marked it."""

_DEPTH = 16
_ITEMS = 100_000
"""Nobody's file has more, or nests them deeper; a pickle can hold a dictionary that contains
itself, or the same one a billion times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFile:
    """What a file holds."""

    header: bytes
    """Its first two bytes: `PK`, or a mark."""

    content: dict[str, Any]
    """By section, with upstream's and the operating system's classes as plain data."""


class _Attributes:
    """Stands for `utils.HParams`, the class that upstream's settings are pickled as."""

    def __init__(self) -> None:
        self.state: Any = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unmarked(io.FileIO):
    """A file that is read as if it began as a zip archive does."""

    def readinto(self, buffer: Any, /) -> int:
        """Read bytes, with `PK` in the first two places."""
        at = self.tell()
        size = super().readinto(buffer) or 0
        view = memoryview(buffer)
        for place in range(at, min(len(ZIP), at + size)):
            view[place - at] = ZIP[place]
        return size


def read_header(path: Path) -> bytes:
    """Return a file's first two bytes.

    Raises:
        ModelError: There is no such file, or it is empty.
    """
    try:
        with path.open("rb") as file:
            header = file.read(len(ZIP))
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}") from error
    if len(header) < len(ZIP):
        raise ModelError(f"'{path}' is empty or cut off; fetch it again")
    return header


def read_torch_file(path: Path, *, mapped: bool = False) -> TorchFile:
    """Read a file's sections; nothing in it is executed.

    Args:
        path: The file, whatever its first two bytes are.
        mapped: Leave tensors on the disk where the file allows it, for a glance at them: the
            file must not change while they are used.

    Raises:
        ModelError: There is no such file, it is damaged, or it holds what is not plain data.
        MissingExtraError: torch is not installed.
    """
    header = read_header(path)
    try:
        content = _load(path, mapped=mapped and header == ZIP)
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, not sections by name")
        counter = count()
        plain = {str(name): _plain(value, str(name), counter) for name, value in content.items()}
    # Arbitrary bytes make the reader fail in arbitrary ways (IndexError, struct.error, …).
    except (MissingExtraError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"'{path}' is no checkpoint that is safe to read: {first_line(error)}"
        ) from error
    return TorchFile(header=header, content=plain)


def write_torch_file(path: Path, content: Mapping[str, Any], *, header: bytes) -> None:
    """Write sections as `torch.save` does, behind other first bytes; the same give the same bytes.

    Args:
        path: The file; one that is there is replaced, and never seen half-written.
        content: Tensors and plain data.
        header: Two bytes: `PK`, or a mark.

    Raises:
        ArtifactError: The file cannot be written.
    """
    import torch

    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            torch.save(dict(content), file)
            file.seek(0)
            file.write(header)
        partial.replace(path)
    # On a full disk torch's own writer fails, with an error that is no OSError.
    except (OSError, RuntimeError) as error:
        raise ArtifactError(f"cannot write '{path}': {first_line(error)}") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def _load(path: Path, *, mapped: bool) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", GPT_SOVITS.extra) from error
    with torch.serialization.safe_globals(_harmless()):
        if mapped:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        with io.BufferedReader(_Unmarked(path)) as file:
            return torch.load(file, map_location="cpu", weights_only=True)


def _harmless() -> list[Any]:
    """Return the classes that settings may hold, by the names that files give them.

    A path of the other operating system cannot be made as such, so all become pure ones.
    """
    names: list[Any] = [(_Attributes, "utils.HParams")]
    for module in ("pathlib", "pathlib._local"):  # the second since Python 3.13
        for flavour in (pathlib.PurePosixPath, pathlib.PureWindowsPath):
            names.append((flavour, f"{module}.{flavour.__name__}"))
            names.append((flavour, f"{module}.{flavour.__name__.removeprefix('Pure')}"))
    return names


def _plain(value: Any, name: str, counter: Iterator[int], depth: int = 0) -> Any:
    """Return settings and tensors as dictionaries, lists, strings and numbers."""
    if depth > _DEPTH or next(counter) > _ITEMS:
        raise ValueError(f"section {name!r} holds more than any settings or weights do")
    if isinstance(value, _Attributes):
        value = value.state
    if isinstance(value, dict):
        return {str(key): _plain(item, name, counter, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, name, counter, depth + 1) for item in value]
    if isinstance(value, pathlib.PurePath):
        return value.as_posix()
    if value is None or isinstance(value, str | int | float) or _is_tensor(value):
        return value
    raise TypeError(f"section {name!r} holds a {type(value).__name__}")


def _is_tensor(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
