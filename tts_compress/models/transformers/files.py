"""The files of a voice of transformers: a folder as `save_pretrained` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError, model_errors
from tts_compress.models.base import ModelFiles, Prompt
from tts_compress.models.feeds import open_arrays, read_array
from tts_compress.models.files import REFERENCE, REFERENCE_TEXT, find_prompt, read_json
from tts_compress.models.pretrained import CONFIG, find_folder, find_weights, list_files
from tts_compress.models.speakers import MAX_SPEAKERS, NO_SPEAKERS
from tts_compress.reading import check_file, open_file

TOKENIZER = "tokenizer_config.json"

PROCESSOR, PREPROCESSOR = "processor_config.json", "preprocessor_config.json"
"""Settings of the official processor, of kinds that are spoken to by one."""

SPEAKER = "speaker.npy"
"""Optional file with the embedding of the speaker, or with latents of its speech."""

PRESET = "speaker.npz"
"""Optional file with the voice preset of Bark: tokens of a speech to go on from."""

KINDS = (
    "bark",
    "csm",
    "dia",
    "fastspeech2_conformer_with_hifigan",
    "gradium_phonon_tts",
    "higgs_audio_v2",
    "pocket_tts",
    "speecht5",
    "vibevoice",
    "vits",
)
"""Values of `model_type` in `config.json` that are spoken with."""

_RECORDED = ("higgs_audio_v2", "pocket_tts", "vibevoice")
"""Kinds that speak in the voice of a recording."""

_VOCODERS = {
    "dia": ("dac", "descript/dac_44khz"),
    "gradium_phonon_tts": ("pocket_tts_audio_tokenizer", ""),
    "higgs_audio_v2": ("higgs_audio_v2_tokenizer", "bosonai/higgs-audio-v2-tokenizer"),
    "pocket_tts": ("pocket_tts_audio_tokenizer", "eustlb/pocket-tts-audio-tokenizer"),
    "speecht5": ("speecht5_hifigan", "microsoft/speecht5_hifigan"),
}
"""Kinds whose vocoder is a model of its own: its `model_type`, and the one on the hub that
transformers' pipeline or processor takes where the processor's settings name none."""

VOCODER = "vocoder"
"""Folder of the vocoder within that of the voice, where it is a model of its own."""

VOCODER_CONFIG = "vocoder_config.json"
"""Its settings in an artifact, whose one file of weights holds both."""

_FETCHED = ("*.json", "*.jinja", "*.model", "*.safetensors", "merges.txt", "vocab.txt")
_MAX_SPEAKER_BYTES = 1 << 22
_PROMPTS = {"semantic_prompt": 1, "coarse_prompt": 2, "fine_prompt": 2}  # dimensions by name


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceOptions:
    """Choices of the user."""

    speaker: str | None = None
    """Name of the speaker; None where none was chosen."""


@dataclass(frozen=True, kw_only=True)
class VoiceSource:
    """The folder that a voice is read from."""

    directory: Path

    vocoder: Path | None = None
    """Folder of the vocoder, where that is a model of its own."""

    options = VoiceOptions()

    @property
    def prompt(self) -> Prompt:
        """The recording beside the weights, of a kind that speaks by one."""
        return find_prompt(self.directory) if self.is_recorded else Prompt()

    @property
    def is_recorded(self) -> bool:
        """True if it speaks in the voice of a recording."""
        return self.kind in _RECORDED

    def read_config(self) -> dict[str, Any]:
        """Return the content of `config.json`, checked."""
        path = self._existing(CONFIG)
        config = read_json(path)
        kind = config.get("model_type") if isinstance(config, dict) else None
        if kind not in KINDS:
            raise ModelError(
                f"'{path}' is of a model of type {kind!r}; accepted: {', '.join(KINDS)}"
            )
        checked: dict[str, Any] = config
        return checked

    @property
    def kind(self) -> str:
        """The `model_type` in `config.json`."""
        return str(self.read_config()["model_type"])

    @property
    def vocoder_config(self) -> Path:
        """The vocoder's settings, where that is a model of its own: its own file, or a copy."""
        copied = self.directory / VOCODER_CONFIG
        return copied if self.vocoder is None else self.vocoder / CONFIG

    def sample_rate(self, vocoder: str | None, default: int) -> int:
        """Return the samples per second, Hz.

        Args:
            vocoder: Key of the vocoder's settings in `config.json`; empty for a file of its own,
                None where the settings of the whole voice state the rate, and `feature_extractor`
                where those of the processor do.
            default: What the official settings say where nothing is stated.
        """
        path = self.directory / (PROCESSOR if vocoder == "feature_extractor" else CONFIG)
        path = self.vocoder_config if vocoder == "" else path
        settings = read_json(path)
        if vocoder and isinstance(settings, dict):
            settings = settings.get(vocoder)
        rate: Any = None
        if isinstance(settings, dict):
            rate = settings.get("sampling_rate", settings.get("sample_rate", default))
        if type(rate) is not int or rate <= 0:
            raise ModelError(f"'{path}' has the sampling rate {rate!r:.40}, not Hz")
        return rate

    def read_speaker(self, size: int) -> npt.NDArray[np.float32]:
        """Return the embedding of the speaker, shape `[1, size]`; zeros without a file of it."""
        path = self.directory / SPEAKER
        if not path.is_file():
            return np.zeros((1, size), np.float32)
        with model_errors(f"'{path}' is no embedding of a speaker"):
            values = _read_finite(path)
            if values.size != size:
                raise ValueError(f"give {size} numbers, not shape {values.shape}")
        return values.reshape(1, size)

    def read_speech(self, size: int) -> npt.NDArray[np.float32]:
        """Return the latents of the speaker's speech, shape `[T, size]`."""
        path = self.directory / SPEAKER
        if not path.is_file():
            recording = f"{REFERENCE} or " if self.is_recorded else ""
            raise ModelError(
                f"'{self.directory}' holds no voice; put {recording}{SPEAKER} with latents of "
                f"its speech, shape [frames, {size}], beside the weights"
            )
        with model_errors(f"'{path}' holds no latents of speech"):
            values = _read_finite(path)
            if values.ndim != 2 or not len(values) or values.shape[1] != size:
                raise ValueError(f"give rows of {size} numbers, not shape {values.shape}")
        return values

    def read_preset(self) -> dict[str, npt.NDArray[np.int64]] | None:
        """Return the tokens of the voice preset, by the names of Bark's prompts; None without."""
        path = self.directory / PRESET
        if not path.is_file():
            return None
        with model_errors(f"'{path}' is no voice preset"):
            check_file(path, _MAX_SPEAKER_BYTES)
            with open_arrays(path, _MAX_SPEAKER_BYTES) as stored:
                arrays = {name: stored[name] for name in _PROMPTS}
            for name, dimensions in _PROMPTS.items():
                if arrays[name].ndim != dimensions or arrays[name].dtype.kind not in "iu":
                    raise ValueError(f"give integers of {dimensions} dimensions as {name!r}")
            return {name: values.astype(np.int64) for name, values in arrays.items()}

    @property
    def speakers(self) -> Mapping[str, int]:
        """Ids of the speakers by name, which is a number; empty for a voice of one."""
        config = self.read_config()
        nested = config.get("model_config")
        count = (nested if isinstance(nested, dict) else config).get("num_speakers")
        count = 1 if count is None else count
        if type(count) is not int or not 0 <= count <= MAX_SPEAKERS:
            raise ModelError(
                f"'{self.directory / CONFIG}' has num_speakers {count!r:.40}; "
                f"give an integer from 1 to {MAX_SPEAKERS}"
            )
        if count <= 1:
            return NO_SPEAKERS
        return MappingProxyType({str(number): number for number in range(count)})

    @property
    def language(self) -> str | None:
        """Language of the texts by the tokenizer's settings, such as `deu`; None where unstated."""
        settings = _read_settings(self._existing(TOKENIZER))
        if settings.get("tokenizer_class") == "FastSpeech2ConformerTokenizer":
            return "en-us"  # its phonemes are g2p-en's
        if settings.get("phonemize") is True:
            return "en-us"  # transformers phonemizes texts of every voice as American English
        stated = settings.get("language")
        return stated if isinstance(stated, str) and stated else None

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of files of a speaker that may lie beside the weights."""
        return (SPEAKER, PRESET, *((REFERENCE, REFERENCE_TEXT) if self.is_recorded else ()))

    def read_processor(self) -> dict[str, Any]:
        """Return the settings of the official processor, without those of its parts."""
        return _read_settings(self._existing(PROCESSOR))

    def files(self) -> ModelFiles:
        """Return the voice's files."""
        listed = list_files(self.directory)
        chosen = (self.directory / name for name in self.beside)
        settings = (*listed.settings, *(path for path in chosen if path.is_file()))
        if self.vocoder is None:
            return replace(listed, settings=settings)
        parts = list_files(self.vocoder)
        return ModelFiles(
            weights=(*listed.weights, *parts.weights), settings=(*settings, *parts.settings)
        )

    def check(self) -> None:
        """Refuse a folder that is not one of a voice."""
        find_weights(self.directory)
        self.read_config()
        self._existing(TOKENIZER)
        if self.vocoder is not None:
            find_weights(self.vocoder)
            kind = read_json(self._existing(CONFIG, self.vocoder)).get("model_type")
            if kind != (accepted := _VOCODERS[self.kind][0]):
                raise ModelError(f"'{self.vocoder}' is of type {kind!r}; accepted: {accepted}")

    def _existing(self, name: str, directory: Path | None = None) -> Path:
        path = (directory or self.directory) / name
        if not path.is_file():
            raise ModelError(
                f"'{path.parent}' holds no {name}; give a folder that save_pretrained of the "
                "model and of its tokenizer wrote"
            )
        return path


def find_source(location: str) -> VoiceSource:
    """Return the files in a folder, or of a name on the hub, fetched where they are not here.

    Args:
        location: The folder or name; a comma and the vocoder's may follow, where it has one. It is
            the folder `vocoder` in the voice's else, or the one of transformers' pipeline.
    """
    folder, comma, named = location.partition(",")
    if Path(location).is_dir():
        folder, comma, named = location, "", ""
    source = VoiceSource(directory=_fetch(folder, "facebook/mms-tts-eng"))
    kind, directory = source.kind, source.directory
    if kind in _VOCODERS and not (directory / VOCODER_CONFIG).is_file():
        within, (_, published) = directory / VOCODER, _VOCODERS[kind]
        default = str(within) if within.is_dir() else _stated_codec(directory) or published
        source = replace(source, vocoder=_fetch(named or default, published or "owner/name"))
    elif comma:
        raise ModelError(f"'{folder}' needs no vocoder; leave ',{named}' out")
    source.check()
    return source


def _stated_codec(directory: Path) -> str:
    """Return the name of the codec that the processor's settings state; empty without."""
    path = directory / PROCESSOR
    stated = _read_settings(path).get("audio_tokenizer") if path.is_file() else None
    name = stated.get("audio_tokenizer_name_or_path") if isinstance(stated, dict) else None
    return name if isinstance(name, str) else ""


def _read_settings(path: Path) -> dict[str, Any]:
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise ModelError(f"'{path}' holds no settings; fetch it again")
    return settings


def _read_finite(path: Path) -> npt.NDArray[np.float32]:
    with open_file(path, _MAX_SPEAKER_BYTES) as file:
        values = read_array(file, _MAX_SPEAKER_BYTES)
    if not np.isfinite(values.astype(np.float64)).all():
        raise ValueError("its numbers are not finite")
    return np.ascontiguousarray(values, np.float32)


def _fetch(name: str, example: str) -> Path:
    beside = (SPEAKER, PRESET, REFERENCE, REFERENCE_TEXT)
    return find_folder(name, "transformers", example, (*_FETCHED, *beside))
