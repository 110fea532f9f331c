"""The description of a kind of voice: its official class, and how that speaks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.files import VoiceOptions, VoiceSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice in memory, ready to speak."""

    root: Any
    """The official model, with any of its modules exchanged."""

    tokenizer: Any
    """The official tokenizer."""

    options: VoiceOptions

    source: VoiceSource
    """The files of the voice."""


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

    speak: Callable[[Voice, str], Tensor]
    """Returns the samples of a text, float32 of shape `[T]`, by the official code.

    Raises `TextError` where the text has nothing to speak or is too long.
    """
