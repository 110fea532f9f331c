"""F5-TTS models by what names them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.models.f5.config import check_vocoder_config, read_config
from tts_compress.models.f5.files import F5Source, download_release, find_files
from tts_compress.models.f5.loaded import load_source
from tts_compress.models.f5.model import F5Model
from tts_compress.models.lazy import Lazy
from tts_compress.models.options import split_location
from tts_compress.models.saved import find_manifest, layers_of

if TYPE_CHECKING:
    from tts_compress.artifact import Manifest

__all__ = ["open_f5"]


def open_f5(location: str, spec: str, manifest: Manifest | None = None) -> F5Model:
    """Return a model by its place; weights are read when they are first needed.

    Args:
        location: A directory, or a name that the f5_tts package knows; `?nfe_step=16&speed=1.2`
            behind it sets options of `F5Options`.
        spec: What the user named the model by.
        manifest: What the manifest in the folder says, where that was read already.

    Raises:
        ModelError: There is no such model, a file of it is missing or malformed, or an option is.
        ArtifactError: An artifact was altered after it was saved.
        MissingExtraError: f5_tts is not installed and a name was given.
    """
    name, given = split_location(location, "nfe_step=16&speed=1.2")
    directory = Path(name)
    if directory.is_dir():
        manifest = manifest or find_manifest(directory, F5Model.family)
        files = find_files(directory)
    elif directory.exists() or len(directory.parts) != 1:
        raise ModelError(
            f"'{name}' is no directory; an F5-TTS model is a directory or a name such as "
            "'F5TTS_v1_Base'"
        )
    else:
        files = download_release(name)
    config = read_config(files.config)
    check_vocoder_config(files.vocoder_config)
    source = F5Source(paths=files, config=config)
    return F5Model(
        spec=spec,
        source=source,
        options=config.options.changed(given, repr(spec)),
        prompt=files.prompt,
        loaded=Lazy(lambda: load_source(source, layers_of(manifest))),
        manifest=manifest,
    )
