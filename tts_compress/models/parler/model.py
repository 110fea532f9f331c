"""Parler-TTS: a language model over the codes of an audio codec; the voice is described by text.

The files of a model lie here or on a hub, and the official objects are read from them.
"""

import copy
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TextError, first_line, model_errors, raising
from tts_compress.folders import temporary_folder
from tts_compress.models.base import ModelFiles, Objective, Prompt, Tokens, check_text
from tts_compress.models.files import read_json
from tts_compress.models.options import Options
from tts_compress.models.parler import FAMILY
from tts_compress.models.pretrained import (
    CONFIG,
    GENERATION,
    build_empty,
    find_folder,
    find_weights,
    list_files,
    load_pretrained,
    quiet,
    write_settings,
)
from tts_compress.models.stand_ins import offer_audiotools
from tts_compress.models.torch_model import (
    WEIGHTS,
    LoadedRoot,
    Table,
    TorchFamilyModel,
    restore_weights,
)
from tts_compress.models.torch_noise import paired_noise
from tts_compress.reading import read_text

DESCRIPTION = "description.txt"

_FETCHED = ["*.json", "*.model", "*.safetensors", "merges.txt", "vocab.txt", DESCRIPTION]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerOptions(Options):
    """Options of sampling; None stands for the value in the model's `generation_config.json`."""

    limits: ClassVar = {
        "temperature": (1e-4, 100.0),
        "max_length": (1, 100_000),
        "min_new_tokens": (0, 100_000),
    }

    temperature: float | None = None
    """Divides the scores before they become probabilities."""

    max_length: int | None = None
    """Steps after which speech ends in any case; the first makes no sound."""

    min_new_tokens: int | None = None
    """Steps before speech may end."""


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

    def files(self) -> ModelFiles:
        """Return the model's files."""
        return list_files(self.directory)

    def check(self) -> None:
        """Refuse a folder that is not one of a model."""
        find_weights(self.directory)  # refuses pickled ones
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


def find_source(location: str) -> ParlerSource:
    """Return the files in a folder, or of a name on the hub, fetched where they are not here."""
    directory = find_folder(location, "Parler-TTS", "parler-tts/parler-tts-mini-v1", _FETCHED)
    source = ParlerSource(directory=directory)
    source.check()
    return source


_TABLE = "embed_positions.weights"

_PREFIX = "description_"
"""Before the names of the description tokenizer's files, where it is another one."""


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


def load_networks(source: ParlerSource, layers: Sequence[LayerRecord]) -> LoadedRoot:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory = source.directory
    if (directory / MANIFEST_NAME).is_file():
        skeleton = build_skeleton(directory)
        root = restore_weights(skeleton, layers, directory / WEIGHTS, find_tables)
    else:
        root = load_root(directory)
    tokenizers = cache(lambda: load_tokenizers(directory, source.read_config()))
    return LoadedRoot(root=root, tokenizer=tokenizers)


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


def load_tokenizers(directory: Path, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the tokenizers of texts and of descriptions; both are the same one in many models.

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
            return text, _read_tokenizer(folder, rows)
    if len(text) <= (rows or 0):
        return text, text
    if not (name := encoder.get("_name_or_path")):
        raise ModelError(
            f"the tokenizer in '{directory}' has {len(text)} tokens, more than the text encoder "
            f"knows; put the description's own tokenizer there, as '{_PREFIX}tokenizer.json' …"
        )
    return text, _read_tokenizer(name, rows)


def write_tokenizers(text: Any, description: Any, directory: Path) -> None:
    """Write the files that `load_tokenizers` reads."""
    text.save_pretrained(directory)
    if description is text:
        return
    with temporary_folder() as folder:
        description.save_pretrained(folder)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerSpeech:
    """The official object with what it needs to speak."""

    root: Any
    """`ParlerTTSForConditionalGeneration`, with any of its modules exchanged."""

    tokenizers: tuple[Any, Any]
    """Those of texts and of descriptions."""

    description: str

    options: ParlerOptions
    """Differences from the model's settings."""

    def speak(self, text: str, *, streamer: Any = None) -> Audio:
        """Return the audio of the official `generate`, with the noise that torch draws."""
        longest = self.options.max_length
        if longest is not None and longest < 2 * self.codebooks:
            raise ModelError(
                f"max_length is {longest}; {self.codebooks} codebooks need at least "
                f"{2 * self.codebooks}"
            )
        inputs = self.inputs(text, self.longest)
        # Settings may exclude each other, exchanged modules may have other shapes, …
        with model_errors(f"the model cannot speak {text[:40]!r}"), quiet():
            sound = self.root.generate(**inputs, **self.options.stated(), streamer=streamer)
        samples = sound.detach().float().cpu().numpy().reshape(-1)
        return Audio(samples=samples, sample_rate=int(self.root.config.sampling_rate))

    @property
    def codebooks(self) -> int:
        """Tokens per step."""
        return int(self.root.decoder.num_codebooks)

    @property
    def longest(self) -> int:
        """The most steps that speech can have, the first included."""
        settings = self.root.generation_config
        if settings.max_new_tokens is not None:
            return int(settings.max_new_tokens) + 1  # wins over any max_length
        return int(self.options.max_length or settings.max_length)

    def inputs(self, text: str, steps: int) -> dict[str, torch.Tensor]:
        """Return the official object's inputs for a text and this many steps of speech."""
        check_text(text)
        of_texts, of_descriptions = self.tokenizers
        said = of_texts(text, return_tensors="pt")
        how = of_descriptions(self.description, return_tensors="pt")
        # Text and speech share the decoder's positions unless the text has attention of its own.
        positions = int(self.root.config.decoder.max_position_embeddings)
        room = positions if self.root.prompt_cross_attention else positions - steps
        if said.input_ids.shape[1] > room:
            raise TextError(
                f"{text[:40]!r}… has {said.input_ids.shape[1]} tokens and the model has room for "
                f"{max(room, 0)} beside {steps} steps of speech; give a shorter text"
            )
        inputs = {
            "input_ids": how.input_ids,
            "attention_mask": how.attention_mask,
            "prompt_input_ids": said.input_ids,
            "prompt_attention_mask": said.attention_mask,
        }
        return {name: tensor.to(self.root.device) for name, tensor in inputs.items()}

    def tokens(self, text: str) -> Tokens:
        """Return the tokens that `speak` would make audio of."""
        taken: list[torch.Tensor] = []  # of each step, [K]; the first is the start, [K, 1]
        self.speak(text, streamer=SimpleNamespace(put=taken.append, end=lambda: None))
        raw = torch.stack([ids.reshape(-1) for ids in taken], dim=1)  # [K, S + 1]
        special = self.root.generation_config
        _, forced = self.root.decoder.build_delay_pattern_mask(
            raw[:, :1],
            bos_token_id=special.bos_token_id,
            pad_token_id=special.pad_token_id,
            max_length=self.longest,
        )
        forced = forced[:, : raw.shape[1]]
        ids = torch.where(forced == -1, raw, forced)
        # Every token that is forced, and the one that ends a codebook, is behind the codec's own.
        sounds = ids < int(self.root.config.audio_encoder.codebook_size)
        return Tokens(ids=ids.T.numpy().copy(), chosen=sounds[:, 1:].T.numpy().copy())

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the tokens before it, shape `[S, K, V]`."""
        steps = len(tokens.ids) - 1
        limit = int(self.root.config.decoder.vocab_size)  # its embedding has one row more
        fits = tokens.ids.ndim == 2 and tokens.ids.shape[1] == self.codebooks and steps > 0
        if not fits or tokens.ids.min() < 0 or tokens.ids.max() > limit:
            raise ModelError(
                f"tokens of shape {tokens.ids.shape} are not ones of this model, which has "
                f"{self.codebooks} codebooks and tokens from 0 to {limit}"
            )
        inputs = self.inputs(text, steps)
        read = torch.from_numpy(np.ascontiguousarray(tokens.ids[:-1].T)).to(self.root.device)
        with model_errors(f"the model cannot read {text[:40]!r}"), quiet(), torch.inference_mode():
            scores = self.root(**inputs, decoder_input_ids=read, use_cache=False).logits
        # The text's positions come first where text and speech share the decoder's.
        logits: npt.NDArray[np.float32] = scores[:, -steps:].float().cpu().permute(1, 0, 2).numpy()
        return np.ascontiguousarray(logits)


DEFAULT_DESCRIPTION = (
    "A woman speaks at a moderate pace with a clear and natural voice, close to the microphone, "
    "and nothing else can be heard."
)
"""Description of the voice where neither the prompt nor the model's folder has one."""


class ParlerModel(TorchFamilyModel[ParlerSource, ParlerOptions, LoadedRoot]):
    """A Parler-TTS model, from its files or compressed in memory.

    It is opened from a folder that the official `save_pretrained` wrote, with the tokenizer's files
    and optionally `description.txt`; from a name on the model hub; or from an artifact's folder.
    Speech ends where the model ends it, and after `max_length` steps in any case.
    """

    family = FAMILY.name
    example = "temperature=0.7"
    find = find_source
    read = load_networks
    tables = find_tables
    roles: ClassVar = {
        "text_encoder": "description encoder",
        "enc_to_dec_proj": "projection of the description",
        "embed_prompts": "text embedding",
        "decoder": "speech language model",
        "audio_encoder": "audio codec",
    }

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        codec = self.source.read_config()["audio_encoder"]
        rate = codec.get("sampling_rate")
        if not isinstance(rate, int) or rate <= 0:
            raise ModelError(f"the codec of '{self.spec}' has the sampling rate {rate!r}, not Hz")
        return rate

    @property
    def description(self) -> str:
        """Description of the voice: the prompt's, else the folder's, else a common one."""
        return self.prompt.description or DEFAULT_DESCRIPTION

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        config = self.source.read_config()
        return {
            "sample rate": f"{self.sample_rate} Hz",
            "codebooks": config["decoder"].get("num_codebooks"),
            "codec": config["audio_encoder"].get("model_type"),
            "description": self.description,
        }

    def objectives(self) -> tuple[Objective, ...]:
        """Return the distillation objectives, in the order data flows."""
        # The codec of transformers has its decoder one level higher than DAC's own.
        codec: Any = self.root().get_submodule("audio_encoder")
        codec_decoder = "model.decoder" if hasattr(codec, "model") else "decoder"
        said = Objective(module="text_encoder", loss="mse", outputs=(0,), encodes="description")
        # Scores of the codebooks; text may share the decoder's positions with speech.
        decoder = Objective(module="decoder", loss="kl", outputs=(0,), steps_of="input_ids")
        sound = Objective(module=f"audio_encoder.{codec_decoder}", loss="waveform")
        return (said, decoder, sound)

    def with_prompt(self, prompt: Prompt) -> "ParlerModel":
        """Return this model with another description; recordings are not used by this system."""
        if prompt.description is None:
            return self
        if not (description := prompt.description.strip()):
            raise ModelError("the description is empty; say in words how to speak, or leave it out")
        return replace(self, prompt=replace(self.prompt, description=description))

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak as `synthesize` does and return the tokens."""
        speech = self._speech()
        with paired_noise(seed):
            return speech.tokens(text)

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of each step after the given tokens before it, shape `[S, K, V]`."""
        return self._speech().logits(text, tokens)

    def _speech(self) -> ParlerSpeech:
        return ParlerSpeech(
            root=self.root(),
            tokenizers=self.loaded.tokenizer(),
            description=self.description,
            options=self.options,
        )

    def _write(self, directory: Path) -> None:
        """Write what the official `from_pretrained` reads, where nothing is compressed."""
        root: Any = self.root()
        write_settings(root, directory / CONFIG)
        settings = copy.deepcopy(root.generation_config)
        with model_errors(f"the options of {self.spec!r} do not go with its {GENERATION}"), quiet():
            settings.update(**self.options.stated())
            settings.save_pretrained(directory)
        of_texts, of_descriptions = self.loaded.tokenizer()
        write_tokenizers(of_texts, of_descriptions, directory)
        (directory / DESCRIPTION).write_text(f"{self.description}\n", encoding="utf-8")
