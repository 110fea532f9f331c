"""Arrays in `.npy` and `.npz` files; nothing is allocated before the size that is declared."""

import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt
from numpy.lib import format as npy

from tts_compress.reading import MOST_ARRAY_BYTES, bounded_bytes, check_archive, open_file

UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, MemoryError, RuntimeError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError),
)
"""Raised by numpy and zipfile for damaged files."""

_NPY = b"\x93NUMPY"
_ENDING = ".npy"
_MOST_ARRAYS = 100_000
_MOST_FILE_BYTES = 1 << 36

_HEADERS: dict[Any, Callable[..., Any]] = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
}


class Arrays(Mapping[str, npt.NDArray[Any]]):
    """The arrays of an `.npz`, by name; each is read when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile, most_bytes: int) -> None:
        self._archive = archive
        self._most_bytes = most_bytes
        names = archive.namelist()
        if len(names) > _MOST_ARRAYS:
            raise ValueError(f"it holds {len(names)} files; at most {_MOST_ARRAYS} are accepted")
        if other := next((name for name in names if not name.endswith(_ENDING)), None):
            raise ValueError(f"it holds {other!r:.60}, which is no array")
        self._names = {name.removesuffix(_ENDING): name for name in names}

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        with self._archive.open(self._names[name]) as member:
            return read_array(member, self._most_bytes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def open_arrays(
    path: Path, most_bytes: int = MOST_ARRAY_BYTES, *, whole: bool = False
) -> Iterator[Arrays]:
    """Open an `.npz`.

    Args:
        path: The file.
        most_bytes: Largest single array.
        whole: All arrays together may have no more.

    Raises:
        UNREADABLE: The file, or an array when it is read, is damaged, too large, or pickled.
    """
    with open_file(path, _MOST_FILE_BYTES) as file, zipfile.ZipFile(file) as archive:
        if whole:
            check_archive(archive.infolist(), most_bytes)
        yield Arrays(archive, most_bytes)


def read_array(file: IO[bytes], most_bytes: int = MOST_ARRAY_BYTES) -> npt.NDArray[Any]:
    """Return the array of an open `.npy`.

    Raises:
        UNREADABLE: It is damaged, too large, or holds pickled objects.
    """
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format; 1.0 and 2.0 are read")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it is no plain array (pickled objects are never loaded)")
    if dtype.kind not in "biufc":
        raise ValueError(f"its values are of type {dtype!s:.60}; give numbers")
    bounded_bytes(shape, dtype.itemsize, most_bytes)
    file.seek(0)
    array: npt.NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def is_array(file: IO[bytes]) -> bool:
    """Return True if an open file begins as a `.npy` does; it is at its beginning again then."""
    beginning = file.read(len(_NPY))
    file.seek(0)
    return beginning == _NPY
