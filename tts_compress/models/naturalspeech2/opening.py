"""NaturalSpeech2 models by what names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.models.base import Prompt
from tts_compress.models.lazy import Lazy
from tts_compress.models.naturalspeech2.loaded import load_source
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model
from tts_compress.models.naturalspeech2.source import NS2Source
from tts_compress.models.options import split_location
from tts_compress.models.saved import find_manifest, layers_of

if TYPE_CHECKING:
    from tts_compress.artifact import Manifest

__all__ = ["open_naturalspeech2"]


def open_naturalspeech2(
    location: str, spec: str, manifest: Manifest | None = None
) -> NaturalSpeech2Model:
    """Return a model; weights and the clone are read when they are first needed.

    Args:
        location: The folder of a checkpoint, of a saved model or of an artifact;
            `?inference_step=20` behind it sets the steps.
        spec: What the user named the model by.
        manifest: What the manifest in the folder says, where that was read already.

    Raises:
        ModelError: There is no such model, its folder is not complete, or the option is wrong.
        ArtifactError: An artifact was altered after it was saved.
    """
    name, given = split_location(location, "inference_step=20")
    directory = Path(name)
    manifest = manifest or find_manifest(directory, NaturalSpeech2Model.family)
    source = NS2Source(directory=directory)
    source.check()
    return NaturalSpeech2Model(
        spec=spec,
        source=source,
        options=source.options().changed(given, repr(spec)),
        prompt=Prompt(audio=source.reference()),
        loaded=Lazy(lambda: load_source(source, layers_of(manifest))),
        manifest=manifest,
    )
