"""How NaturalSpeech2's diffusion is run; the default is the system's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tts_compress.errors import ModelError

__all__ = ["NS2Options", "split_location"]

_MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Options:
    """Settings of inference, named as upstream's script names them.

    Raises:
        ModelError: The number of steps is none.
    """

    inference_step: int = 200
    """Steps of the solver, 1 to 10 000; each runs the estimator once, or twice by `midpoint`."""

    def __post_init__(self) -> None:
        steps = self.inference_step
        if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= _MOST_STEPS:
            raise ModelError(
                f"inference_step is {steps!r}; give an integer from 1 to {_MOST_STEPS}"
            )


def split_location(location: str) -> tuple[str, NS2Options | None]:
    """Split `DIR?inference_step=20` into the folder and the options; None where none are stated.

    Raises:
        ModelError: What follows the question mark is no such option.
    """
    name, separator, query = location.partition("?")
    if not separator or Path(location).exists():
        return location, None
    key, _, value = query.partition("=")
    is_count = value.isascii() and value.isdigit() and len(value) < 10
    if key != "inference_step" or not is_count:
        raise ModelError(f"cannot read the option {query!r}; write it as 'inference_step=20'")
    return name, NS2Options(inference_step=int(value))
