"""Where the data folders are: the only place that knows."""

from __future__ import annotations

from pathlib import Path

from tts_compress.errors import RecipeError

__all__ = ["data_file", "data_names", "demo_voice"]

_PACKAGE = Path(__file__).parent


def _data_root(kind: str) -> Path:
    """Return `calib` or `eval`: inside the installed package, else beside it in a checkout."""
    packaged = _PACKAGE / f"_{kind}"
    return packaged if packaged.is_dir() else _PACKAGE.parent / kind


def data_file(kind: str, name: str) -> Path:
    """Return the shipped TOML file `name` of a folder such as `calib/recipes` or `eval/gates`.

    A `name` that is itself a path to an existing file is returned as it is, so every place that
    takes a shipped name also takes a user's own file.

    Raises:
        RecipeError: Neither exists; the message lists the shipped names.
    """
    if name.endswith(".toml"):
        if _is_file(own := Path(name)):
            return own
        raise RecipeError(f"no file '{name}'; give an existing .toml file or a shipped name")
    root, folder = kind.split("/")
    shipped = _data_root(root) / folder / f"{name}.toml"
    if _is_file(shipped) and shipped.parent.name == folder:
        return shipped
    known = ", ".join(data_names(kind)) or "none"
    raise RecipeError(
        f"no {folder} named {name!r}; shipped: {known}; or give a path to a .toml file"
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
    except OSError:  # a name too long to be one, a folder nobody may look into
        return False
