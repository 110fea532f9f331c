"""Folders in the format of `save_pretrained`, here or on a model hub."""

import re
from collections.abc import Sequence
from pathlib import Path

from tts_compress.artifact import MANIFEST_NAME
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles
from tts_compress.models.files import read_json

CONFIG = "config.json"
GENERATION = "generation_config.json"

_WEIGHTS = "model.safetensors"
_INDEX = f"{_WEIGHTS}.index.json"


def find_folder(place: str, kind: str, example: str, fetched: Sequence[str]) -> Path:
    """Return a folder, or that of a name on the hub, fetched where it is not here.

    Args:
        place: The folder's path, or the name.
        kind: Kind of the model, for errors.
        example: Example of a name on the hub, for errors.
        fetched: Patterns of the files that are fetched.

    Raises:
        ModelError: There is neither, or the hub does not give it.
        MissingExtraError: huggingface_hub is not installed.
    """
    directory = Path(place)
    if directory.is_dir():
        return directory
    parts = place.split("/")
    if len(parts) != 2 or not all(re.fullmatch(r"[\w.-]*\w[\w.-]*", part) for part in parts):
        raise ModelError(
            f"no {kind} model at '{place}'; give a folder with {CONFIG} and {_WEIGHTS}, "
            f"or a name on the hub such as '{example}'"
        )
    from huggingface_hub import snapshot_download

    # A name nobody has, no network, a full disk: each is an error of another package.
    with model_errors(f"there is no folder {place!r}, and the hub does not give it"):
        return Path(snapshot_download(place, allow_patterns=list(fetched)))


def find_weights(directory: Path) -> tuple[Path, ...]:
    """Return the files with a model's weights; pickled ones are refused.

    Raises:
        ModelError: There are none, or one that an index names is not there.
    """
    if (directory / _WEIGHTS).is_file():
        return (directory / _WEIGHTS,)
    if (directory / _INDEX).is_file():
        return _shards(directory / _INDEX)
    pickled = directory / "pytorch_model.bin"
    problem = "only pickled weights, which can run code," if pickled.is_file() else "no weights"
    raise ModelError(f"'{directory}' holds {problem} instead of {_WEIGHTS}; fetch or convert it")


def list_files(directory: Path) -> ModelFiles:
    """Return the files of a model's folder.

    Raises:
        ModelError: The weights are missing.
    """
    settings = [
        path
        for path in sorted(directory.iterdir())
        if path.suffix in {".json", ".model", ".txt"} and path.name != MANIFEST_NAME
    ]
    return ModelFiles(weights=find_weights(directory), settings=tuple(settings))


def _shards(index: Path) -> tuple[Path, ...]:
    try:
        names = set(read_json(index)["weight_map"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"cannot read '{index}': {error}") from error
    for name in names:
        # A name of another kind could lead out of the folder.
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"'{index}' names {name!r}, which is not a plain file name")
        if not index.with_name(name).is_file():
            raise ModelError(f"'{index}' names '{name}', which is not there; fetch it")
    if not names:
        raise ModelError(f"'{index}' names no files; fetch it again")
    return tuple(index.with_name(name) for name in sorted(names))
