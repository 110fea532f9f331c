"""Upstream's `tts_infer.yaml`: which files make up a model."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.pretrained import pretrained, pretrained_names
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.gpt_sovits.versions import VERSIONS
from tts_compress.models.settings_file import read_yaml

__all__ = ["StatedFiles", "read_config_file"]

_SECTION = "custom"
"""Upstream speaks with it; the sections named by versions are what it resets it to."""

_KEYS = ("t2s_weights_path", "vits_weights_path", "bert_base_path", "cnhuhbert_base_path")


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedFiles:
    """What a configuration names."""

    t2s: Path
    sovits: Path
    bert: Path | None = None
    """None for the one in the clone."""

    hubert: Path | None = None
    """None for the one in the clone."""


def read_config_file(path: Path) -> StatedFiles:
    """Return the files that the section `custom` names.

    What it names relatively is looked for beside it, then in the clone it lies in, then in the
    one that the environment names. Where it names no weights, those that upstream publishes for
    its version are meant.

    Raises:
        ModelError: It cannot be read, has no such section, or names what is not there.
        MissingExtraError: PyYAML is not installed.
    """
    section = _section(path)
    version = section.get("version")
    if version not in VERSIONS:
        raise ModelError(
            f"'{path}': version is {version!r}; accepted are {', '.join(map(repr, VERSIONS))}"
        )
    stated = [_stated(path, section, key) for key in _KEYS]
    places = _places(path)
    t2s, sovits, bert, hubert = (_find(path, name, places) if name else None for name in stated)
    names = pretrained_names(version)
    return StatedFiles(
        t2s=t2s or pretrained(names[0]),
        sovits=sovits or pretrained(names[1]),
        bert=bert,
        hubert=hubert,
    )


def _section(path: Path) -> dict[str, Any]:
    content = read_yaml(path, GPT_SOVITS.extra)
    section = content.get(_SECTION) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise ModelError(
            f"'{path}' has no section '{_SECTION}'; it is to be like upstream's "
            "GPT_SoVITS/configs/tts_infer.yaml"
        )
    return section


def _stated(path: Path, section: dict[str, Any], key: str) -> str | None:
    value = section.get(key)
    if value is not None and (not isinstance(value, str) or "\0" in value):
        raise ModelError(f"'{path}': {key} is {value!r}; give a path")
    return value or None


def _places(path: Path) -> list[Path]:
    """Return where relative names are looked for."""
    folder = path.resolve().parent
    clones = [p for p in folder.parents if all((p / m).is_file() for m in GPT_SOVITS.markers)]
    named = os.environ.get(GPT_SOVITS.variable)
    return [folder, *clones[:1], *([Path(named).expanduser().resolve()] if named else [])]


def _find(path: Path, name: str, places: list[Path]) -> Path:
    for place in places:
        with suppress(OSError, RuntimeError):  # a name too long to be one, nobody's home
            if (found := place / Path(name).expanduser()).exists():
                return found
    where = " or ".join(f"'{place}'" for place in places)
    raise ModelError(
        f"'{path}' names '{name}', which is not in {where}; relative names are looked for there: "
        f"name the clone by --checkout DIR or {GPT_SOVITS.variable}, or give an absolute path"
    )
