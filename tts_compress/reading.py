"""Files that a user names: read only where they are regular files of a sensible size.

Every reader raises `OSError` or `ValueError`, whatever a file holds; callers turn them into errors
of their own, which name the file.
"""

import json
import math
import os
import re
import stat
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

MOST_TEXT_BYTES = 1 << 26
"""Largest JSON, TOML or other text; reports of a thousand utterances have 2 MB."""

MOST_MODEL_BYTES = (1 << 31) - 1
"""Largest ONNX graph with its weights: the most that protocol buffers hold."""

MOST_AUDIO_BYTES = 1 << 31
"""Largest recording: an hour in stereo, at 48 kHz and 32 bits, has 1.4 GB."""

MOST_ARRAY_BYTES = 1 << 26
"""Largest array that a model is called with; half an hour of 80 mel bands, 100 times a second, has
58 MB."""

MOST_WEIGHTS_BYTES = 1 << 40
"""Largest checkpoint; the package that opens it accounts for every byte of it."""

_MOST_TOML_BYTES = 1 << 23
_MOST_LEVELS = 100
_MOST_AXES = 32

_TOML_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+', re.DOTALL
)
_JSON_STRING = re.compile(r'"(?:\\.|[^"\\])*+"', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_LONG_KEY = re.compile(rf"(?<![\w-])[\w-]++(?:[ \t]*\.[ \t]*[\w-]++){{{_MOST_LEVELS}}}")


def open_file(path: Path | str, most_bytes: int) -> IO[bytes]:
    """Open a regular file for reading, without waiting for the other end of a pipe.

    Args:
        path: The file, or a link to it.
        most_bytes: Largest size.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    file = os.fdopen(handle, "rb") if stat.S_ISREG(os.fstat(handle).st_mode) else None
    if file is None:
        os.close(handle)
        raise ValueError("it is no regular file; give one")
    if (size := os.fstat(handle).st_size) > most_bytes:
        file.close()
        raise ValueError(f"it has {size:,} bytes; at most {most_bytes:,} are accepted")
    return file


def check_file(path: Path | str, most_bytes: int) -> None:
    """Refuse what `open_file` does, for files that another package opens."""
    open_file(path, most_bytes).close()


def read_bytes(path: Path | str, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """Return a regular file's content."""
    with open_file(path, most_bytes) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # it grew, or the system states no size for it
        raise ValueError(f"it has more than {most_bytes} bytes, which is the most accepted")
    return content


def read_text(path: Path | str, most_bytes: int = MOST_TEXT_BYTES) -> str:
    """Return a regular file's text, in UTF-8, with the ends of lines as they are read by `open`.

    A byte order mark, as editors on Windows write it, is no part of the text.
    """
    try:
        text = read_bytes(path, most_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is not in UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}); save "
            "it in UTF-8"
        ) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, most_bytes: int = MOST_TEXT_BYTES) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_text(path, most_bytes))


def parse_json(text: str | bytes) -> Any:
    """Return the content of a JSON text."""
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    _check_levels(_JSON_STRING.sub("", text))
    return json.loads(text)


def read_toml(path: Path | str) -> dict[str, Any]:
    """Return the content of a TOML file."""
    text = read_text(path, _MOST_TOML_BYTES)
    bare = _TOML_STRING.sub("x", text)
    _check_levels(bare)
    if _LONG_KEY.search(bare):  # the parser's time grows with the square of a key's parts
        raise ValueError(f"a key has more than {_MOST_LEVELS} parts")
    return tomllib.loads(text)


def bounded_bytes(shape: Iterable[object], item_bytes: int, most_bytes: int) -> int:
    """Return the size of an array that a file declares, before anything is allocated for it.

    Args:
        shape: Its axes.
        item_bytes: Size of one value.
        most_bytes: Largest size.
    """
    sizes: list[Any] = list(shape)
    if len(sizes) > _MOST_AXES:
        raise ValueError(f"an array of {len(sizes)} axes; at most {_MOST_AXES} are accepted")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in sizes):
        raise ValueError(f"an array of shape {sizes!r:.80}; axes are whole numbers from 0 on")
    total: int = math.prod(sizes) * item_bytes
    if total > most_bytes:
        raise ValueError(f"an array of shape {sizes!r:.80} has more than {most_bytes} bytes")
    return total


def check_archive(entries: Iterable[zipfile.ZipInfo], most_bytes: int) -> None:
    """Refuse a zip archive that unpacks to more than a size."""
    if sum(entry.file_size for entry in entries) > most_bytes:
        raise ValueError(f"it unpacks to more than {most_bytes} bytes")


def _check_levels(text: str) -> None:
    """Refuse brackets that are nested too deeply in a text without its strings."""
    if text.count("[") + text.count("{") <= _MOST_LEVELS:
        return
    level = 0
    for bracket in _BRACKET.finditer(text):
        level += 1 if bracket[0] in "[{" else -1
        if level > _MOST_LEVELS:
            raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
