"""A voice ready to speak, a kind of voice, and the official tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tts_compress.audio import Audio
from tts_compress.errors import MissingExtraError, ModelError, TextError, model_errors, needing
from tts_compress.models.base import Objective, Prompt, check_text
from tts_compress.models.pretrained import quiet
from tts_compress.models.stand_ins import load, resample
from tts_compress.models.transformers.files import VoiceOptions, VoiceSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice in memory, ready to speak."""

    system: System
    """Its kind."""

    root: Any
    """The official model, with any of its modules exchanged."""

    tokenizer: Any
    """The official tokenizer."""

    options: VoiceOptions

    source: VoiceSource
    """The files of the voice."""

    prompt: Prompt
    """The recording to speak by, if there is one, and what is said in it."""

    processor: Any = None
    """The official processor, of kinds that are spoken to by one."""

    speech: Tensor | None = None
    """Latents of the speaker's speech, shape `[T, D]`, of kinds that go on from them."""

    def speaker(self, size: int) -> Tensor:
        """Return the embedding of the speaker, shape `[1, size]`, on the model's device."""
        return torch.from_numpy(self.source.read_speaker(size)).to(self.root.device)

    def speak(self, text: str) -> Audio:
        """Return the audio of the official code, with the noise that torch draws."""
        with model_errors(f"the model cannot speak {text[:40]!r}"), quiet():
            samples = self.system.speak(self, text).float().cpu().numpy()
        return Audio(samples=samples, sample_rate=self.system.sample_rate(self.source))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKind:
    """How a language model of tokens is compared, along tokens that another one drew."""

    generate: Callable[[Voice, str], tuple[Tensor, Tensor]]
    """Speaks a text; returns the row that begins speech and those that were drawn after it, shape
    `[S + 1, K]` for K codebooks, and the samples, shape `[T]`."""

    read: Callable[[Voice, str, Tensor], Tensor]
    """Returns the scores of what follows each row but the last, shape `[S, K, V]`."""

    special: Callable[[Any], Sequence[int]]
    """Returns the tokens that are no sound, by the configuration; the first ends speech."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of voice."""

    class_name: str
    """The official class in `transformers`."""

    vocoder: str = ""
    """The official class of the vocoder, where that is a model of its own; it becomes a child of
    the first, `vocoder`."""

    roles: Mapping[str, str]
    """Role of each component, by its name below the official model, in the order data flows."""

    objectives: tuple[Objective, ...]
    """Distillation objectives, in the order data flows."""

    sample_rate: Callable[[VoiceSource], int]
    """Returns the samples per second, Hz."""

    writes_latents: bool = False
    """True if it is compared along latents that another model spoke."""

    tokens: TokenKind | None = None
    """For kinds that are compared along tokens."""

    prepare: Callable[[Voice], Voice] = lambda voice: voice
    """Returns the voice with what all texts share, such as its processor."""

    speak: Callable[[Voice, str], Tensor]
    """Returns the samples of a text, float32 of shape `[T]`, by the official code.

    Raises `TextError` where the text has nothing to speak or is too long.
    """


EXTRA = "transformers-tts"


def read_tokenizer(directory: Path) -> Any:
    """Return the official tokenizer of a voice's folder."""
    import transformers

    with model_errors(f"no tokenizer can be read from '{directory}'"), _packages(), quiet():
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)


def read_processor(voice: Voice, class_name: str) -> Any:
    """Return an official processor by the settings in the voice's folder, with its codec.

    Args:
        voice: What it is of.
        class_name: The official class in `transformers`.
    """
    import transformers

    settings, directory = voice.source.read_processor(), voice.source.directory
    stated = {"chat_template": voice.tokenizer.chat_template, **settings}
    with model_errors(f"no processor can be read from '{directory}'"), quiet():
        read = transformers.AutoFeatureExtractor.from_pretrained
        parts = [read(directory, local_files_only=True), voice.tokenizer]
        official = getattr(transformers, class_name)
        if (codec := getattr(voice.root, "vocoder", None)) is None:
            return official.from_args_and_dict(parts, stated)
        processor = official.from_args_and_dict(parts, {**stated, "audio_tokenizer": None})
        # Its constructor refuses a class that the package offers with torchaudio only.
        processor.audio_tokenizer = codec
        return processor


def inputs_of(voice: Voice, conversation: list[dict[str, Any]], **options: Any) -> Any:
    """Return the official inputs of a conversation, on the model's device."""
    inputs = voice.processor.apply_chat_template(
        conversation, tokenize=True, return_dict=True, return_tensors="pt", **options
    )
    return inputs.to(voice.root.device)


def said(text: str, role: str = "user") -> dict[str, Any]:
    """Return what somebody says in a conversation, as chat templates take it."""
    return {"role": role, "content": [{"type": "text", "text": text}]}


def count_steps(voice: Voice, text: str, inputs: Any, positions: int, least: int) -> int:
    """Return how many steps speech may take: what the settings allow, and positions leave."""
    room = positions - int(inputs["input_ids"].shape[1])
    if room < least:
        raise TextError(
            f"{text[:40]!r}… leaves no room for its speech in {positions} positions; "
            "give a shorter text or recording"
        )
    return min(voice.root.generation_config.max_new_tokens or room, room)


def read_recording(path: Path, sample_rate: int) -> npt.NDArray[np.float32]:
    """Return a recording at a sample rate (Hz), its channels averaged, shape `[T]`."""
    with model_errors(f"cannot read audio from '{path}'"):
        samples, stated = load(path)
    averaged = resample(samples.mean(dim=0, keepdim=True), stated, sample_rate)
    converted: npt.NDArray[np.float32] = averaged[0].numpy()
    return converted


def tokenize(voice: Voice, text: str, rows: int, longest: int, **options: Any) -> dict[str, Tensor]:
    """Return the official model's inputs for a text, on its device."""
    tokenizer = voice.tokenizer
    check_text(text)
    _require_romanizer(tokenizer, text)
    with model_errors(f"the tokenizer cannot read {text[:40]!r}"), _packages(), quiet():
        inputs = dict(tokenizer(text, return_tensors="pt", **options))
    ids = inputs["input_ids"]
    if not 0 < ids.shape[1] <= longest:
        raise TextError(
            f"{text[:40]!r}… has {ids.shape[1]} tokens; give a text of 1 to {longest}"
            if ids.shape[1]
            else f"the voice knows no symbol of {text[:40]!r}; give a text of its language"
        )
    if (highest := int(ids.max())) < rows:
        return {name: tensor.to(voice.root.device) for name, tensor in inputs.items()}
    unknown = ids[0, ids[0].argmax()].item() == getattr(tokenizer, "unk_token_id", None)
    if unknown:
        raise TextError(f"{text[:40]!r} holds symbols that the voice does not know; leave them out")
    raise ModelError(
        f"the tokenizer gives token {highest}, and the model knows {rows}; "
        "give the files that belong together"
    )


@contextmanager
def _packages() -> Iterator[None]:
    """Name the package that transformers asks for, in pages of advice."""
    try:
        yield
    except ImportError as error:
        named = re.search(r"requires the (\S+) library", str(error))
        raise MissingExtraError(named[1] if named else error.name or "?", EXTRA) from error


def _require_romanizer(tokenizer: Any, text: str) -> None:
    """Refuse a text that transformers would leave half out, with a remark, without a package."""
    if text.isascii() or not getattr(tokenizer, "is_uroman", False):
        return
    with needing(EXTRA):
        import uroman  # noqa: F401
