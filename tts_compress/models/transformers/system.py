"""The description of a kind of voice: its official class, and how that speaks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tts_compress.models.transformers.files import VoiceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A voice in memory, ready to speak."""

    root: Any
    """The official model, with any of its modules exchanged."""

    tokenizer: Any
    """The official tokenizer."""

    options: VoiceOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A kind of voice."""

    class_name: str
    """The official class in `transformers`."""

    roles: Mapping[str, str]
    """Role of each component, by its name below the official model, in the order data flows."""

    speak: Callable[[Voice, str], Tensor]
    """Returns the samples of a text, float32 of shape `[T]`, by the official code.

    Raises `TextError` where the text has nothing to speak or is too long.
    """
