"""Systems we can load: `base.py` is the protocol, one file per family."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.errors import ModelError
from tts_compress.paths import demo_voice

if TYPE_CHECKING:
    from tts_compress.models.base import TTSModel

__all__ = ["FAMILIES", "load"]

FAMILIES = ("piper",)

_ACCEPTED = "'demo', a Piper voice (.onnx), a Piper training checkpoint (.ckpt), or an artifact"


def load(spec: str | Path) -> TTSModel:
    """Return the model that a spec names; weights are read when they are first needed.

    Args:
        spec: `demo`, a path to a voice's `.onnx`, to a training `.ckpt` or to a saved artifact's
            directory, optionally with the family in front (`piper:voice.onnx`).

    Raises:
        ModelError: There is no such model, or it is not what the spec says.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: An optional package is needed to read it.
    """
    text = str(spec)
    family, separator, location = text.partition(":")
    if not separator or family not in FAMILIES:
        location = text
    try:
        os.fsencode(location).decode()  # what is no UTF-8 cannot be written into a manifest
        return _load_piper(location, text)
    except (OSError, UnicodeError) as error:
        raise ModelError(f"cannot load {text[:80]!r}: {error}; accepted: {_ACCEPTED}") from error


def _load_piper(location: str, spec: str) -> TTSModel:
    from tts_compress.models.piper import PiperModel

    if location == "demo":
        return PiperModel(demo_voice(), spec=spec)
    path = Path(location)
    if path.is_dir():
        return _load_artifact(path, spec)
    if path.suffix == ".onnx":
        beside = path.with_name(MANIFEST_NAME)
        manifest = read_manifest(path.parent) if beside.is_file() else None
        if manifest is not None and path.name not in manifest.files:
            manifest = None  # another voice in the same folder
        return PiperModel(path, spec=spec, manifest=manifest)
    if path.suffix == ".ckpt":
        from tts_compress.models.piper_checkpoint import load_checkpoint

        return load_checkpoint(path, spec=spec)
    problem = "unknown kind of file" if path.exists() else "no such model"
    raise ModelError(f"{problem}: {spec!r}; accepted: {_ACCEPTED}")


def _load_artifact(directory: Path, spec: str) -> TTSModel:
    from tts_compress.models.piper import PiperModel

    if not (directory / MANIFEST_NAME).is_file():
        raise ModelError(f"'{directory}' holds no {MANIFEST_NAME}; give {_ACCEPTED}")
    manifest = read_manifest(directory)
    graphs = [name for name in manifest.files if name.endswith(".onnx")]
    if manifest.family not in FAMILIES or len(graphs) != 1:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}; upgrade")
    return PiperModel(directory / graphs[0], spec=spec, manifest=manifest)
