"""Style files: arrays that choose a voice."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, model_errors, raising
from tts_compress.models.contract.inputs import ROW, StyleInput
from tts_compress.models.feeds import UNREADABLE, is_array, open_arrays, read_array
from tts_compress.models.files import read_json
from tts_compress.reading import open_file

Folders = tuple[Path, ...]
"""Folders in which the files of a voice are looked for, in this order: the graph's comes first."""

_MOST_BYTES = 1 << 29
"""Largest style file, unpacked; Kokoro's has 28 MB for 54 voices."""


def find_file(names: str | tuple[str, ...], folders: Folders) -> Path:
    """Return the first file that fits a name or pattern."""
    return _find_files(names, folders)[0]


def style_files(role: StyleInput, folders: Folders) -> list[Path]:
    """Return the files of styles: one of all voices, or one for each."""
    files = _find_files(role.file, folders)
    return files if role.key is not None else files[:1]


def _find_files(names: str | tuple[str, ...], folders: Folders) -> list[Path]:
    """Return the files that fit the first name or pattern that any fits, by name."""
    patterns = (names,) if isinstance(names, str) else names
    for pattern in patterns:
        for folder in folders:
            if files := sorted(path for path in folder.glob(pattern) if path.is_file()):
                return files
    raise ModelError(
        f"no file '{' or '.join(patterns)}' in '{folders[-1]}'; put it beside the graph"
    )


def read_styles(role: StyleInput, folders: Folders) -> Mapping[str, Samples]:
    """Return the arrays of a style file, or of the files of one kind, by voice."""
    files = style_files(role, folders)
    path = files[0]
    if role.key is not None:
        styles = {file.stem: _read_json(file, role.key) for file in files}
    else:
        with raising(ModelError, f"cannot read styles from '{path}'", *UNREADABLE):
            styles = _read(path, role)
    for name, array in styles.items():
        if role.shape and not _fits(array.shape, role.shape):
            raise ModelError(
                f"'{path}': voice {name!r:.60} has shape {list(array.shape)}; the contract states "
                f"{list(role.shape)}, 0 for any above 1"
            )
        if not array.size or not np.isfinite(array).all():
            raise ModelError(f"'{path}': voice {name!r:.60} is empty or not finite")
    if not styles:
        raise ModelError(f"'{path}' holds no voices")
    return styles


def choose_row(rule: str, style: Samples, *, tokens: int, text: int) -> Samples:
    """Return what a rule chooses of a voice's array.

    Args:
        rule: A rule as a contract states it, such as `voice[len(tokens)]`.
        style: The voice's array.
        tokens: Number of symbols, without what is added to them.
        text: Number of characters.
    """
    counted, less = counted_by(rule)
    if counted is None:
        return style
    row = (tokens if counted == "tokens" else text) - less
    chosen: Samples = style[min(max(row, 0), len(style) - 1)]
    return chosen


def counted_by(rule: str) -> tuple[str | None, int]:
    """Return what a rule counts, `tokens` or `text` or None, and what it takes off the number."""
    parts = re.fullmatch(ROW, rule)
    assert parts is not None, "the schema checks rules"
    return parts["counted"], int(bool(parts["less"]))


def _fits(shape: tuple[int, ...], stated: tuple[int, ...]) -> bool:
    pairs = list(zip(shape, stated, strict=False))
    return len(shape) == len(stated) and all(n == w if w else n > 1 for n, w in pairs)


def _read_json(path: Path, key: str) -> Samples:
    """Return an array of a voice that a `.json` holds as a table of `dims` and `data`."""
    table = read_json(path)
    with model_errors(f"'{path}' holds no array {key!r} of `dims` and `data`"):
        stated = table[key]
        return np.array(stated["data"], np.float32).reshape([int(n) for n in stated["dims"]])


def _read(path: Path, role: StyleInput) -> dict[str, Samples]:
    with open_file(path, _MOST_BYTES) as file:
        if is_array(file):
            return {path.stem: read_array(file, _MOST_BYTES).astype(np.float32)}
    if not zipfile.is_zipfile(path):
        return _read_plain(path, role)
    with open_arrays(path, _MOST_BYTES, whole=True) as arrays:
        return {name: np.asarray(array, np.float32) for name, array in arrays.items()}


def _read_plain(path: Path, role: StyleInput) -> dict[str, Samples]:
    free = role.shape.count(0)
    if not role.shape or free > bool(role.speakers):
        raise ValueError("it is no .npz, and the contract states no `shape` of a voice")
    values = np.fromfile(path, "<f4")
    # One free size follows from the number of names.
    size = int(np.prod([n for n in role.shape if n])) * (len(role.speakers) if free else 1)
    if not values.size or values.size % size:
        raise ValueError(f"its {values.size} values are no multiple of the {size} of a voice")
    count = len(role.speakers) if free else -1
    voices = values.reshape(count, *(n or -1 for n in role.shape)).astype(np.float32)
    names = role.speakers or tuple(str(number) for number in range(len(voices)))
    if len(names) != len(voices):
        raise ValueError(f"it holds {len(voices)} voices, and the contract names {len(names)}")
    return dict(zip(names, voices, strict=True))
