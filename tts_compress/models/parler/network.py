"""The files of a Parler-TTS model, here or on a hub, and the official objects read from them."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.errors import ModelError, first_line, model_errors, raising
from tts_compress.folders import temporary_folder
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.files import read_json
from tts_compress.models.pretrained import (
    CONFIG,
    GENERATION,
    build_empty,
    find_folder,
    find_weights,
    list_files,
    load_pretrained,
    quiet,
)
from tts_compress.models.stand_ins import offer_audiotools
from tts_compress.models.torch_model import WEIGHTS, Table, restore_weights
from tts_compress.reading import read_text

DESCRIPTION = "description.txt"

_FETCHED = ["*.json", "*.model", "*.safetensors", "merges.txt", "vocab.txt", DESCRIPTION]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerOptions:
    """Options of sampling; None stands for the value in the model's `generation_config.json`."""

    do_sample: bool | None = None
    """True to draw tokens by their probabilities; otherwise the most probable is taken."""

    temperature: float | None = None
    """Divides the scores before they become probabilities."""

    max_length: int | None = None
    """Steps after which speech ends in any case; the first makes no sound."""

    min_new_tokens: int | None = None
    """Steps before speech may end."""

    def given(self) -> dict[str, Any]:
        """Return the options that are not None, as keywords of `generate`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ParlerSource:
    """The folder that a model is read from."""

    directory: Path

    options = ParlerOptions()

    @property
    def prompt(self) -> Prompt:
        """The folder's own description of the voice, if it has one."""
        path = self.directory / DESCRIPTION
        if not path.is_file():
            return Prompt()
        with raising(ModelError, f"cannot read '{path}'"):
            text = read_text(path).strip()
        if not text:
            raise ModelError(f"'{path}' is empty; describe the voice in it, or remove it")
        return Prompt(description=text)

    def read_config(self) -> dict[str, Any]:
        """Return the content of `config.json`, checked."""
        path = self._existing(CONFIG)
        config: dict[str, Any] = read_json(path)
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind != "parler_tts":
            raise ModelError(
                f"'{path}' is of a model of type {kind!r}, not 'parler_tts'; give another folder"
            )
        parts = ("audio_encoder", "decoder", "text_encoder")
        lacking = [part for part in parts if not isinstance(config.get(part), dict)]
        if lacking:
            raise ModelError(f"'{path}' says nothing about {', '.join(lacking)}; fetch it again")
        return config

    def weights(self) -> tuple[Path, ...]:
        """Return the files with the weights; pickled ones are refused."""
        return find_weights(self.directory)

    def files(self) -> ModelFiles:
        """Return the model's files."""
        return list_files(self.directory)

    def check(self) -> None:
        """Refuse a folder that is not one of a model."""
        self.weights()
        self.read_config()
        self._existing(GENERATION)

    def _existing(self, name: str) -> Path:
        path = self.directory / name
        if not path.is_file():
            raise ModelError(
                f"'{path.parent}' holds no {name}; give a folder that "
                "ParlerTTSForConditionalGeneration.save_pretrained wrote"
            )
        return path


def find_source(place: str) -> ParlerSource:
    """Return the files in a folder, or of a name on the hub, fetched where they are not here."""
    directory = find_folder(place, "Parler-TTS", "parler-tts/parler-tts-mini-v1", _FETCHED)
    source = ParlerSource(directory=directory)
    source.check()
    return source


_TABLE = "embed_positions.weights"

_PREFIX = "description_"
"""Before the names of the description tokenizer's files, where it is another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizers:
    """Official tokenizer objects; both are the same one in many models."""

    text: Any
    description: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerNetworks:
    """A Parler-TTS model in memory."""

    root: nn.Module
    """The official `ParlerTTSForConditionalGeneration`."""

    tokenizers: Callable[[], Tokenizers]
    """Returns them, read at the first call: `inspect` needs none."""

    def with_root(self, root: nn.Module) -> "ParlerNetworks":
        """Return another official object with the same tokenizers."""
        return replace(self, root=root)


def load_packages() -> tuple[Any, Any]:
    """Return the modules `parler_tts` and `transformers`."""
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    # Without DacModel before; from 4.50 a model no longer inherits `generate`'s machinery.
    if not (4, 45) <= (major, minor) < (4, 50):
        raise ModelError(
            f"transformers {transformers.__version__} is installed, and Parler-TTS runs with 4.45 "
            "to 4.49; in an environment of its own: pip install 'transformers==4.46.1'"
        )
    offer_audiotools()
    with quiet():  # the codec's command line, imported along, switches all user warnings off
        import parler_tts
    return parler_tts, transformers


def load_networks(source: ParlerSource, layers: Sequence[LayerRecord]) -> ParlerNetworks:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory = source.directory
    if (directory / MANIFEST_NAME).is_file():
        skeleton = build_skeleton(directory)
        root = restore_weights(skeleton, layers, directory / WEIGHTS, find_tables)
    else:
        root = load_root(directory)
    tokenizers = cache(lambda: load_tokenizers(directory, source.read_config()))
    return ParlerNetworks(root=root, tokenizers=tokenizers)


def find_tables(root: nn.Module) -> Iterator[Table]:
    """Yield the tables of positions, which are sines; in Parler-TTS mini one takes 17 MB."""
    for path, module in root.named_modules():
        if type(module).__name__ == "ParlerTTSSinusoidalPositionalEmbedding":
            table: Any = module
            computed = table.get_embedding(*table.weights.shape)
            yield Table(path=path, module=module, name="weights", computed=computed)


def load_root(directory: Path) -> nn.Module:
    """Return the model as `from_pretrained` loads it, in FP32 and `eval` mode."""
    parler, _ = load_packages()
    # A position table that older files lack is computed.
    official = parler.ParlerTTSForConditionalGeneration
    return _checked(load_pretrained(official, directory, (_TABLE,)), directory)


def build_skeleton(directory: Path) -> nn.Module:
    """Return the model that an artifact's settings describe, its weights without values."""
    parler, transformers = load_packages()

    def read() -> Any:
        return parler.ParlerTTSConfig.from_pretrained(directory, local_files_only=True)

    root = build_empty(directory, read, parler.ParlerTTSForConditionalGeneration)
    with model_errors(f"'{directory}' cannot be built"), quiet():
        root.generation_config = transformers.GenerationConfig.from_pretrained(
            directory, GENERATION, local_files_only=True
        )
    return _checked(root, directory)


def load_tokenizers(directory: Path, config: Mapping[str, Any]) -> Tokenizers:
    """Return the tokenizers of a model's folder.

    The description has its own where files with the prefix `description_` are there, or where the
    text's tokenizer knows more tokens than the text encoder: then it is the one of the text encoder
    that the configuration names, which may have to be fetched.
    """
    text = _read_tokenizer(directory, config.get("vocab_size"))
    encoder = config["text_encoder"]
    rows = encoder.get("vocab_size")
    if (directory / f"{_PREFIX}tokenizer_config.json").is_file():
        with temporary_folder() as folder:
            for path in directory.glob(f"{_PREFIX}*"):
                shutil.copyfile(path, Path(folder, path.name.removeprefix(_PREFIX)))
            return Tokenizers(text=text, description=_read_tokenizer(folder, rows))
    if len(text) <= (rows or 0):
        return Tokenizers(text=text, description=text)
    if not (name := encoder.get("_name_or_path")):
        raise ModelError(
            f"the tokenizer in '{directory}' has {len(text)} tokens, more than the text encoder "
            f"knows; put the description's own tokenizer there, as '{_PREFIX}tokenizer.json' …"
        )
    return Tokenizers(text=text, description=_read_tokenizer(name, rows))


def write_tokenizers(tokenizers: Tokenizers, directory: Path) -> None:
    """Write the files that `load_tokenizers` reads."""
    tokenizers.text.save_pretrained(directory)
    if tokenizers.description is tokenizers.text:
        return
    with temporary_folder() as folder:
        tokenizers.description.save_pretrained(folder)
        for path in Path(folder).iterdir():
            shutil.copyfile(path, directory / f"{_PREFIX}{path.name}")


def _read_tokenizer(source: Path | str, rows: object) -> Any:
    """Return a tokenizer whose tokens all have one of this many rows in an embedding."""
    _, transformers = load_packages()
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    # It is read by code that was written for its authors' own files, and may lack a package.
    except Exception as error:
        raise ModelError(
            f"no tokenizer can be read from '{source}': {first_line(error)}"
        ) from error
    if not isinstance(rows, int) or len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer in '{source}' has {len(tokenizer)} tokens, and the model knows {rows}; "
            "give the files that belong together"
        )
    return tokenizer


def _checked(root: Any, directory: Path) -> nn.Module:
    """Refuse settings that let speech end at once, or never."""
    settings = root.generation_config
    shortest = 2 * root.decoder.num_codebooks
    longest = settings.max_new_tokens or settings.max_length
    if not isinstance(longest, int) or longest < shortest:
        raise ModelError(
            f"'{directory / GENERATION}' has max_length {longest!r}; "
            f"a model of {root.decoder.num_codebooks} codebooks needs at least {shortest}"
        )
    checked: nn.Module = root
    return checked
