"""GPT-SoVITS models by what names them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.models.gpt_sovits.loaded import load_source
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.gpt_sovits.options import GptSovitsOptions
from tts_compress.models.gpt_sovits.settings import SETTINGS, read_settings
from tts_compress.models.gpt_sovits.source import artifact_source, open_source
from tts_compress.models.options import split_location
from tts_compress.models.recording import find_prompt
from tts_compress.models.torch_model import find_manifest, layers_of

if TYPE_CHECKING:
    from tts_compress.artifact import Manifest

__all__ = ["open_gpt_sovits"]


def open_gpt_sovits(location: str, spec: str, manifest: Manifest | None = None) -> GptSovitsModel:
    """Return a model; its weights are read, and upstream's code imported, when first needed.

    Args:
        location: Upstream's `tts_infer.yaml`, the paths of a T2S and a SoVITS model with a comma
            between, or an artifact's folder; `?text_lang=en&top_k=5` behind it sets options of
            `GptSovitsOptions`. A `reference.wav` and `reference.txt` beside the configuration or
            the T2S model are the recording to speak by and what is said in it.
        spec: What the user named the model by.
        manifest: What the manifest in the folder says, where that was read already.

    Raises:
        ModelError: There is no such model, a file of it is missing or malformed, or an option is.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: A package is not installed.
    """
    place, given = split_location(location, "text_lang=en&top_k=5")
    options = GptSovitsOptions().changed(given, repr(spec))
    path = Path(place)
    manifest = manifest or find_manifest(path, GptSovitsModel.family)
    if manifest is None:
        source = open_source(place, spec)
        assert source.stated is not None, "it is no artifact"
        # Of a pair, the T2S model.
        beside = (path if path.is_file() else source.stated.t2s).parent
    else:
        source, beside = artifact_source(path, spec), path
        options = _saved_options(path).changed(given, repr(spec))
    return GptSovitsModel(
        spec=spec,
        source=source,
        options=options,
        prompt=find_prompt(beside),
        load=cache(lambda: load_source(source, layers_of(manifest))),
        manifest=manifest,
    )


def _saved_options(directory: Path) -> GptSovitsOptions:
    path = directory / SETTINGS
    return GptSovitsOptions().changed(read_settings(path).options, f"'{path}'")
