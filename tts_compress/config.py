"""Strict reading of the project's TOML files: known keys, right types, a version in every file."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tts_compress.errors import RecipeError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Card", "Config", "ConfigFile", "describe_problems", "read_config"]


class Config(BaseModel):
    """A table of a TOML file: immutable, and an unknown key or a wrong type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ConfigFile(Config):
    """A whole TOML file."""

    version: Literal[1]
    """Format version of the file."""


class Card(Config):
    """Where texts come from, for people who audit a result."""

    summary: str
    source: str
    licence: str
    composition: str


_File = TypeVar("_File", bound=ConfigFile)


def read_config(path: Path, kind: type[_File]) -> _File:
    """Read a TOML file as `kind`.

    Raises:
        RecipeError: The file is missing, is not TOML, or breaks the schema; the message names
            every wrong key at once.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        # Read as JSON, because strict mode takes a tuple field from a JSON array only. A date,
        # which JSON does not know, is a TypeError; no file of ours holds one.
        text = json.dumps(table)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise RecipeError(f"cannot read '{path}': {error}") from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        problems = describe_problems(error)
        raise RecipeError(f"'{path}' is not a valid {kind.__name__}: {problems}") from error


def describe_problems(error: ValidationError) -> str:
    """Return every wrong key and what is wrong with it, on one line."""
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: {problem['msg']}"
        for problem in error.errors()
    )
