"""Systems we can load: `base.py` is the protocol, `tts_compress/families.py` the list."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.config import demo_voice
from tts_compress.errors import ModelError
from tts_compress.families import FAMILIES, MODEL_SPECS, TORCH_FAMILIES

if TYPE_CHECKING:
    from tts_compress.artifact import Manifest
    from tts_compress.models.base import Model, TTSModel

__all__ = ["load", "open_model"]

_ACCEPTED = f"{MODEL_SPECS}, or 'onnx:' and the path of a bare graph"


def load(spec: str | Path) -> TTSModel:
    """Return the speaking model that a spec names; weights are read when they are first needed.

    Args:
        spec: `demo`, a path to a voice's `.onnx`, to a training `.ckpt` or to a saved artifact's
            directory, optionally with the family in front (`piper:voice.onnx`); for the other
            systems the family and what it is opened from (`f5-tts:F5TTS_v1_Base`).

    Raises:
        ModelError: There is no such model, it is not what the spec says, or it is a bare graph.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: An optional package is needed to read it.
    """
    from tts_compress.models.base import TTSModel

    found = open_model(spec)
    if not isinstance(found, TTSModel):
        raise ModelError(
            f"{str(spec)[:80]!r} is a bare ONNX graph, which speaks no texts; "
            "it can be compressed and inspected"
        )
    return found


def open_model(spec: str | Path, *, bare: bool = False) -> Model:
    """Return any model that a spec names, also one that speaks no texts.

    Args:
        spec: As for `load`, or `onnx:` and the path of a graph of any kind, or an artifact of one.
        bare: An `.onnx` without a voice's configuration beside it is a bare graph too.

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
        path = Path(location)
        if separator and family in TORCH_FAMILIES and not (path / MANIFEST_NAME).is_file():
            return _open_torch(family, location, text)
        if family == "onnx" and separator and not path.is_dir():
            return _open_graph(path, text, _manifest_beside(path))
        if bare and path.suffix == ".onnx" and not path.with_name(f"{path.name}.json").exists():
            return _open_graph(path, text, _manifest_beside(path))
        return _open_any(location, text)
    except (OSError, UnicodeError) as error:
        raise ModelError(f"cannot load {text[:80]!r}: {error}; accepted: {_ACCEPTED}") from error


def _open_torch(family: str, location: str, spec: str, manifest: Manifest | None = None) -> Model:
    found = TORCH_FAMILIES[family]
    model: Model = getattr(import_module(found.package), found.opener)(location, spec, manifest)
    return model


def _open_graph(path: Path, spec: str, manifest: Manifest | None) -> Model:
    from tts_compress.models.graph_file import GraphFile
    from tts_compress.models.onnx_model import OnnxModel

    return OnnxModel(GraphFile(path=path, spec=spec, manifest=manifest))


def _manifest_beside(path: Path) -> Manifest | None:
    """Return the manifest of the artifact that a file belongs to, if it does."""
    if not path.with_name(MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(path.parent)
    return manifest if path.name in manifest.files else None  # or another model's folder


def _open_any(location: str, spec: str) -> Model:
    from tts_compress.models.graph_file import GraphFile
    from tts_compress.models.piper import PiperModel

    if location == "demo":
        return PiperModel(GraphFile(path=demo_voice(), spec=spec))
    path = Path(location)
    if path.is_dir():
        return _open_artifact(path, spec)
    if path.suffix == ".onnx":
        manifest = _manifest_beside(path)
        if manifest is not None and manifest.family == "onnx":
            return _open_graph(path, spec, manifest)
        return PiperModel(GraphFile(path=path, spec=spec, manifest=manifest))
    if path.suffix == ".ckpt":
        from tts_compress.models.piper_checkpoint import load_checkpoint

        return load_checkpoint(path, spec=spec)
    problem = "unknown kind of file" if path.exists() else "no such model"
    raise ModelError(f"{problem}: {spec!r}; accepted: {_ACCEPTED}")


def _open_artifact(directory: Path, spec: str) -> Model:
    from tts_compress.models.graph_file import GraphFile
    from tts_compress.models.piper import PiperModel

    if not (directory / MANIFEST_NAME).is_file():
        raise ModelError(f"'{directory}' holds no {MANIFEST_NAME}; give {_ACCEPTED}")
    manifest = read_manifest(directory)
    if manifest.family in TORCH_FAMILIES:
        return _open_torch(manifest.family, str(directory), spec, manifest)
    graphs = [name for name in manifest.files if name.endswith(".onnx")]
    if manifest.family not in FAMILIES or len(graphs) != 1:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}; upgrade")
    path = directory / graphs[0]
    if manifest.family == "onnx":
        return _open_graph(path, spec, manifest)
    return PiperModel(GraphFile(path=path, spec=spec, manifest=manifest))
