"""GPT-SoVITS models by what names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.models.gpt_sovits.loaded import load_source
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.gpt_sovits.options import GptSovitsOptions
from tts_compress.models.gpt_sovits.settings import SETTINGS, read_settings
from tts_compress.models.gpt_sovits.source import GptSovitsSource, artifact_source, open_source
from tts_compress.models.lazy import Lazy
from tts_compress.models.options import split_location
from tts_compress.models.recording import find_prompt
from tts_compress.models.saved import find_manifest, layers_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tts_compress.artifact import Manifest

__all__ = ["open_gpt_sovits", "open_gpt_sovits_artifact"]


def open_gpt_sovits(location: str, spec: str) -> GptSovitsModel:
    """Return a model; its weights are read, and upstream's code imported, when first needed.

    Args:
        location: Upstream's `tts_infer.yaml`, the paths of a T2S and a SoVITS model with a comma
            between, or an artifact's folder; `?text_lang=en&top_k=5` behind it sets options of
            `GptSovitsOptions`. A `reference.wav` and `reference.txt` beside the configuration or
            the T2S model are the recording to speak by and what is said in it.
        spec: What the user named the model by.

    Raises:
        ModelError: There is no such model, a file of it is missing or malformed, or an option is.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: A package is not installed.
    """
    place, given = split_location(location, "text_lang=en&top_k=5")
    options = GptSovitsOptions().changed(given, repr(spec))
    path = Path(place)
    if (manifest := find_manifest(path, GptSovitsModel.family)) is not None:
        return _open_saved(path, spec, manifest, given)
    source = open_source(place, spec)
    assert source.stated is not None, "it is no artifact"
    beside = path if path.is_file() else source.stated.t2s  # of a pair, the T2S model
    return _open(source, None, options, beside.parent)


def open_gpt_sovits_artifact(directory: Path, spec: str, manifest: Manifest) -> GptSovitsModel:
    """Return a saved artifact; its weights are read, and upstream's code imported, when needed.

    Args:
        directory: Where `save` wrote it.
        spec: What the user named it by.
        manifest: What its manifest says.

    Raises:
        ModelError: A file of it is missing or malformed.
    """
    return _open_saved(directory, spec, manifest, {})


def _open_saved(
    directory: Path, spec: str, manifest: Manifest, given: Mapping[str, Any]
) -> GptSovitsModel:
    source = artifact_source(directory, spec)
    path = directory / SETTINGS
    saved = GptSovitsOptions().changed(read_settings(path).options, f"'{path}'")
    return _open(source, manifest, saved.changed(given, repr(spec)), directory)


def _open(
    source: GptSovitsSource, manifest: Manifest | None, options: GptSovitsOptions, beside: Path
) -> GptSovitsModel:
    return GptSovitsModel(
        spec=source.spec,
        source=source,
        options=options,
        prompt=find_prompt(beside),
        loaded=Lazy(lambda: load_source(source, layers_of(manifest))),
        manifest=manifest,
    )
