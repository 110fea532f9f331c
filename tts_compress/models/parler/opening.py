"""Parler-TTS models by what names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.models.base import Prompt
from tts_compress.models.lazy import Lazy
from tts_compress.models.parler.loaded import load_source
from tts_compress.models.parler.model import ParlerModel
from tts_compress.models.parler.source import ParlerSource
from tts_compress.models.parler.speech import ParlerOptions
from tts_compress.models.saved import find_manifest

if TYPE_CHECKING:
    from tts_compress.artifact import Manifest

__all__ = ["open_parler", "open_parler_artifact"]


def open_parler(location: str, spec: str) -> ParlerModel:
    """Return a model; its weights are read when they are first needed.

    Args:
        location: A folder that the official `save_pretrained` wrote, with the tokenizer's files and
            optionally `description.txt`, a name on the model hub, or an artifact's folder.
        spec: What the user named the model by.

    Raises:
        ModelError: There is no such model, or its folder is not complete.
        ArtifactError: An artifact was altered after it was saved.
    """
    return _open(location, spec, find_manifest(Path(location), ParlerModel.family))


def open_parler_artifact(directory: Path, spec: str, manifest: Manifest) -> ParlerModel:
    """Return a compressed model; its weights are read when they are first needed.

    Args:
        directory: Where `save` wrote it.
        spec: What the user named the model by.
        manifest: How it was compressed.

    Raises:
        ModelError: The folder is not complete.
    """
    return _open(str(directory), spec, manifest)


def _open(location: str, spec: str, manifest: Manifest | None) -> ParlerModel:
    source = ParlerSource(location=location)
    source.check()
    return ParlerModel(
        spec=spec,
        source=source,
        options=ParlerOptions(),
        prompt=Prompt(),
        loaded=Lazy(lambda: load_source(source, manifest)),
        manifest=manifest,
    )
