"""A limit on the durations that a voice predicts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from tts_compress.errors import ModelError

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
