"""Models by what names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.gpt_sovits.model import GptSovitsModel
from tts_compress.models.gpt_sovits.options import GptSovitsOptions, split_location
from tts_compress.models.gpt_sovits.reference import find_prompt_files
from tts_compress.models.gpt_sovits.settings import SETTINGS, read_settings
from tts_compress.models.gpt_sovits.source import artifact_source, open_source
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS

if TYPE_CHECKING:
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
    place, given = split_location(location)
    options = GptSovitsOptions().changed(given, repr(spec))
    folder = Path(place)
    if (folder / MANIFEST_NAME).is_file():
        opened = open_gpt_sovits_artifact(folder, spec, read_manifest(folder))
        return opened.with_options(opened.options.changed(given, repr(spec)))
    source = open_source(place, spec)
    assert source.stated is not None, "it is no artifact"
    beside = folder if folder.is_file() else source.stated.t2s  # of a pair, the T2S model
    return GptSovitsModel(source, options=options, prompt=_prompt_in(beside.parent))


def open_gpt_sovits_artifact(directory: Path, spec: str, manifest: Manifest) -> GptSovitsModel:
    """Return a saved artifact; its weights are read, and upstream's code imported, when needed.

    Args:
        directory: Where `save` wrote it.
        spec: What the user named it by.
        manifest: What its manifest says.

    Raises:
        ModelError: A file of it is missing or malformed, or it is of another family.
    """
    if manifest.family != GPT_SOVITS.family:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}")
    source = artifact_source(directory, spec, manifest)
    path = directory / SETTINGS
    options = GptSovitsOptions().changed(read_settings(path).options, f"'{path}'")
    return GptSovitsModel(source, options=options, prompt=_prompt_in(directory))


def _prompt_in(directory: Path) -> Prompt:
    audio, text = find_prompt_files(directory)
    return Prompt(audio=audio, text=text if audio is not None else None)
