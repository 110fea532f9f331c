"""Amphion's configuration files: JSON with comments, each built on another one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["merge", "parse", "read_config_file"]

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])", re.DOTALL)

_BASE = "base_config"
_DEEPEST = 8
_LARGEST = 1 << 20
"""Characters; upstream's own files have some thousand."""


def parse(text: str) -> Any:
    """Return what JSON says that may have comments and commas behind the last item.

    Raises:
        ValueError: It is no such text.
    """
    if len(text) > _LARGEST:
        raise ValueError(f"it has {len(text)} characters; a configuration has fewer")
    # What stands in a string stays; the rest of a match is a comment, or a comma too many.
    plain = _COMMENT.sub(lambda match: match[1] or " ", text)
    try:
        return json.loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", plain))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with some values exchanged, section by section."""
    merged = dict(base)
    for name, value in changes.items():
        known = merged.get(name)
        nested = isinstance(value, dict) and isinstance(known, dict)
        merged[name] = merge(known, value) if nested and isinstance(known, dict) else value
    return merged


def read_config_file(path: Path, clone: Path) -> dict[str, Any]:
    """Return a configuration with those that it is built on.

    Args:
        path: The file.
        clone: The folder that the names of others are relative to.

    Raises:
        ModelError: A file cannot be read, or they are built on each other.
    """
    chain: list[dict[str, Any]] = []
    where = path
    while True:
        stated = _read(where)
        chain.append(stated)
        base = stated.get(_BASE)
        if base is None:
            break
        if not isinstance(base, str) or len(chain) > _DEEPEST:
            raise ModelError(
                f"'{where}': {_BASE} is {base!r}; it names another file, and at most {_DEEPEST} "
                "are built on each other"
            )
        where = clone / base
    merged: dict[str, Any] = {}
    for stated in reversed(chain):
        merged = merge(merged, stated)
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        stated = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # a decoding error is a ValueError, too
        raise ModelError(f"cannot read '{path}': {error}; give Amphion's JSON file") from error
    if not isinstance(stated, dict):
        raise ModelError(f"'{path}' holds a {type(stated).__name__}; sections by name are needed")
    return stated
