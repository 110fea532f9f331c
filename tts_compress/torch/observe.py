"""Watching what goes into the layers of a module while it runs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tts_compress.errors import QuantizationError
from tts_compress.numerics.histogram import Histogram, choose_range

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from tts_compress.recipes.recipe import Calibration

__all__ = ["observe_ranges", "watching"]

_SAMPLE = 16_384
"""About as many values of a tensor are looked at per call; its extremes are always exact."""


def observe_ranges(
    root: nn.Module,
    names: Sequence[str],
    run: Callable[[nn.Module], None],
    settings: Calibration,
) -> dict[str, tuple[float, float]]:
    """Return the range of the input of each named layer, over all calibration calls.

    Args:
        root: The module; hooks are put on it and removed again.
        names: Dotted names of layers.
        run: Calls the module with calibration data.
        settings: How a range is made of what was seen.

    Raises:
        QuantizationError: A layer was never run, or met values that are not finite.
    """
    histograms = {name: Histogram() for name in names}

    def look(name: str, values: Tensor) -> None:
        low, high = (float(limit) for limit in torch.aminmax(values))
        step = max(values.numel() // _SAMPLE, 1)
        try:
            histograms[name].add(values.flatten()[::step].float().cpu().numpy(), low, high)
        except QuantizationError as error:
            raise QuantizationError(f"the input of '{name}': {error}") from error

    with watching(root, names, look):
        run(root)
    if idle := [name for name, seen in histograms.items() if seen.low > seen.high]:
        raise QuantizationError(
            f"calibration never ran {len(idle)} layers, such as '{idle[0]}'; "
            "give calibration data that reaches them, or exclude them in the recipe"
        )
    return {name: choose_range(seen, settings) for name, seen in histograms.items()}


@contextmanager
def watching(
    root: nn.Module, names: Sequence[str], look: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Have `look` called with the name and the input of each named layer that runs."""

    def hook_for(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel():
                look(name, inputs[0].detach())

        return hook

    hooks = [root.get_submodule(name).register_forward_pre_hook(hook_for(name)) for name in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
