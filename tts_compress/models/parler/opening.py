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

__all__ = ["open_parler"]


def open_parler(location: str, spec: str, manifest: Manifest | None = None) -> ParlerModel:
    """Return a model; its weights are read when they are first needed.

    Args:
        location: A folder that the official `save_pretrained` wrote, with the tokenizer's files and
            optionally `description.txt`, a name on the model hub, or an artifact's folder.
        spec: What the user named the model by.
        manifest: What the manifest in the folder says, where that was read already.

    Raises:
        ModelError: There is no such model, or its folder is not complete.
        ArtifactError: An artifact was altered after it was saved.
    """
    manifest = manifest or find_manifest(Path(location), ParlerModel.family)
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
