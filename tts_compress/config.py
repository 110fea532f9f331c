"""The project's data files: where they are, and strict reading of TOML.

In TOML files every key is known, every value has the right type, and every file has a version.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from tts_compress.errors import RecipeError, raising
from tts_compress.reading import read_toml

_PACKAGE = Path(__file__).parent


class Config(BaseModel):
    """A table of a TOML file: immutable, and an unknown key or a wrong type is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ConfigFile(Config):
    """A whole TOML file."""

    version: Literal[1]
    """Format version of the file."""


class Card(Config):
    """Origin of texts, for people who audit a result."""

    summary: str
    source: str
    licence: str
    composition: str


IDS = "ids:"
"""Beginning of a text that consists of ids of tokens."""

_File = TypeVar("_File", bound=ConfigFile)


def is_ids(text: str) -> bool:
    """Return True for a text of ids, which a voice of the source `ids` takes as numbers alone."""
    return not text.removeprefix(IDS).strip("0123456789/ ")


def table_model(name: str, keys: Mapping[str, Any], *, strict: bool = False) -> type[BaseModel]:
    """Return the model of a table by the types of its keys; a mapping is a table inside it.

    A tuple is a type and its default; further keys of the table may be anything.
    """
    fields: dict[str, Any] = {
        key: kind
        if isinstance(kind, tuple)
        else (table_model(key, kind, strict=strict) if isinstance(kind, Mapping) else kind, ...)
        for key, kind in keys.items()
    }
    return create_model(name, __config__=ConfigDict(strict=strict), **fields)


def read_config(path: Path, kind: type[_File]) -> _File:
    """Read a TOML file as `kind`."""
    return parse_config(read_table(path), kind, f"'{path}'")


def read_table(path: Path) -> str:
    """Return a TOML file as JSON: in strict mode only a JSON array makes a tuple."""
    with raising(RecipeError, f"cannot read '{path}'", OSError, ValueError, TypeError):
        return json.dumps(read_toml(path))


def parse_config(text: str, kind: type[_File], name: str) -> _File:
    """Return a JSON table as `kind`."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        label = kind.__name__.removeprefix("_")
        problems = describe_problems(error, kind)
        raise RecipeError(f"{name} is not a valid {label}: {problems}") from error


def describe_problems(error: ValidationError, whole: type[BaseModel] | None = None) -> str:
    """Return wrong keys with their problems, the first five and how many more, on one line.

    A list whose items were all wrong is not short as well. With the model of the whole file, a key
    that stands in the wrong table is told where it belongs.
    """
    problems = error.errors()
    parents = {problem["loc"][:end] for problem in problems for end in range(len(problem["loc"]))}
    lines = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'file'}: "
        + problem["msg"].removeprefix("Value error, ")
        + (_right_place(problem["loc"], whole) if problem["type"] == "extra_forbidden" else "")
        for problem in problems
        if problem["type"] != "too_short" or problem["loc"] not in parents
    ]
    more = [f"and {len(lines) - 5} more"] if len(lines) > 5 else []
    return "; ".join(lines[:5] + more)


def _right_place(loc: tuple[int | str, ...], whole: type[BaseModel] | None) -> str:
    """Return the end of an error that says where a file has an unknown key, if anywhere."""
    *tables, key = loc
    fields = {} if whole is None else whole.model_fields
    if tables:
        return (
            f"; write {key!r} above [{tables[0]}], outside of all tables" if key in fields else ""
        )
    for name, field in fields.items():
        if key in getattr(field.annotation, "model_fields", {}):
            return f"; write {key!r} below [{name}]"
    return ""


def _data_root(kind: str) -> Path:
    """Return `calib` or `eval`: inside the installed package, else beside it in a checkout."""
    packaged = _PACKAGE / f"_{kind}"
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind


def data_file(kind: str, name: str) -> Path:
    """Return the shipped TOML file `name` of a folder such as `calib/recipes` or `eval/gates`.

    A `name` that is itself a path to an existing file is returned as it is, so every place that
    takes a shipped name also takes a user's own file.
    """
    if name.endswith(".toml"):
        if _is_file(path := Path(name)):
            return path
        raise RecipeError(f"no file '{name}'; give an existing .toml file or a shipped name")
    root, folder = kind.split("/")
    shipped = _data_root(root) / folder / f"{name}.toml"
    if _is_file(shipped) and shipped.parent.name == folder:
        return shipped
    names = ", ".join(data_names(kind)) or "none"
    raise RecipeError(
        f"no {folder} named {name!r}; shipped: {names}; or give a path to a .toml file"
    )


def data_names(kind: str) -> list[str]:
    """Return the sorted names of the shipped TOML files in a folder such as `eval/suites`."""
    root, folder = kind.split("/")
    return sorted(path.stem for path in (_data_root(root) / folder).glob("*.toml"))


def demo_voice() -> Path:
    """Return the embedded demo voice's ONNX file."""
    return _PACKAGE / "voices" / "demo.onnx"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, or a folder that cannot be read
        return False
