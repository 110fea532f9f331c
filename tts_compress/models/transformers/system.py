"""The description of a kind of voice: its official class, and how that speaks."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.models.distillation import Objective
from tts_compress.models.transformers.files import VoiceOptions, VoiceSource

_MAX_FRAMES = 60_000  # a quarter of an hour; the alignment takes frames times tokens


@contextmanager
def bounded(predictor: nn.Module, frames: Callable[[Tensor], float]) -> Iterator[None]:
    """Refuse durations that no memory can hold, such as those of damaged weights, in the block.

    Args:
        predictor: The module that predicts them.
        frames: Returns their sum in frames, of the module's output.

    Raises:
        ModelError: In the block: there are too many, or the sum is no number.
    """

    def check(_module: Any, _inputs: Any, found: Tensor) -> None:
        total = frames(found)
        if not total <= _MAX_FRAMES:  # NaN is not, either
            raise ModelError(
                f"the durations add up to {total:g} frames, more than {_MAX_FRAMES}; give a "
                "shorter text, or another model: its weights may be damaged"
            )

    handle = predictor.register_forward_hook(check)
    try:
        yield
    finally:
        handle.remove()


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
