"""The two tokenizers of a Parler-TTS model: for the text, and for the description of the voice."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tts_compress.errors import ModelError, first_line
from tts_compress.models.parler.package import load_packages, quiet

_PREFIX = "description_"
"""Before the names of the description tokenizer's files, where it is another one."""

_MARK = f"{_PREFIX}tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizers:
    """Official tokenizer objects; both are the same one in many models."""

    text: Any
    description: Any


def load_tokenizers(directory: Path, config: Mapping[str, Any]) -> Tokenizers:
    """Return the tokenizers of a model's folder.

    The description has its own where files with the prefix `description_` are there, or where the
    text's tokenizer knows more tokens than the text encoder: then it is the one of the text encoder
    that the configuration names, which may have to be fetched.
    """
    text = _read(str(directory), "vocab_size", config)
    if (directory / _MARK).is_file():
        with TemporaryDirectory() as folder:
            for path in directory.glob(f"{_PREFIX}*"):
                shutil.copyfile(path, Path(folder, path.name.removeprefix(_PREFIX)))
            description = _read(folder, "text_encoder", config)
        return Tokenizers(text=text, description=description)
    encoder = config["text_encoder"]
    if len(text) <= encoder.get("vocab_size", 0):
        return Tokenizers(text=text, description=text)
    name = encoder.get("_name_or_path")
    if not name:
        raise ModelError(
            f"the tokenizer in '{directory}' has {len(text)} tokens, more than the text encoder "
            f"knows; put the description's own tokenizer there, as '{_PREFIX}tokenizer.json' …"
        )
    return Tokenizers(text=text, description=_read(name, "text_encoder", config))


def write_tokenizers(tokenizers: Tokenizers, directory: Path) -> None:
    """Write the files that `load_tokenizers` reads."""
    tokenizers.text.save_pretrained(directory)
    if tokenizers.description is tokenizers.text:
        return
    with TemporaryDirectory() as folder:
        tokenizers.description.save_pretrained(folder)
        for path in Path(folder).iterdir():
            shutil.copyfile(path, directory / f"{_PREFIX}{path.name}")


def _read(source: str, limit: str, config: Mapping[str, Any]) -> Any:
    """Return a tokenizer whose tokens all have a row in the embedding that `limit` names."""
    _, transformers = load_packages()
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    # Read by code that was written for its authors' own files.
    except Exception as error:
        raise ModelError(
            f"no tokenizer can be read from '{source}': {first_line(error)}"
        ) from error
    stated = config.get(limit)
    rows = stated.get("vocab_size") if isinstance(stated, dict) else stated
    if not isinstance(rows, int) or len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer in '{source}' has {len(tokenizer)} tokens, and the model knows {rows}; "
            "give the files that belong together"
        )
    return tokenizer
