"""Codes of weights that are chosen by an algorithm other than rounding each to nearest."""

from collections.abc import Callable, Sequence
from itertools import chain

from torch import Tensor, nn

from tts_compress.numerics.gptq import gptq
from tts_compress.numerics.weights import CODE_LIMIT, PAIR_LIMIT, round_weight
from tts_compress.progress import Progress
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.torch.decisions import Decision
from tts_compress.torch.inc import inc_codes
from tts_compress.torch.layers.codes import group_scales, pack_nibbles
from tts_compress.torch.observe import observe_moments


def _gptq_codes(weight: Tensor, moments: Tensor | None, layer: Decision) -> tuple[Tensor, Tensor]:
    assert moments is not None
    if layer.weights == Weights.INT4:
        scales = group_scales(weight, layer.group_size)
        return gptq(weight, moments, scales, (-8, 7)), scales
    multiplied = layer.activations != Activations.NONE
    _, scales = round_weight(weight, 0, multiplied=multiplied)
    pair_limit = PAIR_LIMIT if multiplied else None
    limits = (-CODE_LIMIT, CODE_LIMIT)
    return gptq(weight, moments, scales.unsqueeze(1), limits, pair_limit=pair_limit), scales


def _inc_codes(weight: Tensor, moments: Tensor | None, layer: Decision) -> tuple[Tensor, Tensor]:
    return inc_codes(weight, moments, layer.group_size)


_CHOOSERS = {
    Algorithm.GPTQ: _gptq_codes,
    Algorithm.INC_GPTQ: _inc_codes,
    Algorithm.INC_RTN: _inc_codes,
}
"""Functions from a weight and the second moments of its inputs to codes and scales."""

_OBSERVING = {Algorithm.GPTQ, Algorithm.INC_GPTQ}
"""Algorithms that need the moments."""


def choose_codes(
    root: nn.Module,
    decisions: Sequence[Decision],
    run: Callable[[nn.Module], None],
    *,
    progress: Progress,
) -> dict[str, dict[str, Tensor]]:
    """Return codes and scales of the linear layers whose recipe names another algorithm than `rtn`.

    Every layer is calibrated on its inputs in the FP32 module, so that the codes do not depend
    on how many passes memory takes.

    Args:
        root: The module in FP32, with finite weights; it is not changed.
        decisions: For its layers.
        run: Calls the module with calibration data, the same in every pass.
        progress: Receives every layer; `run` reports the calibration.

    Returns:
        By layer, `weight` and `weight_scale` as a compressed layer's state has them.

    Raises:
        QuantizationError: Calibration does not reach a layer.
        MissingExtraError: The algorithm's package is not installed.
    """
    chosen = {
        d.module: d
        for d in decisions
        if d.is_layer and d.operator == "Linear" and d.algorithm in _CHOOSERS
    }
    observed = [name for name, d in chosen.items() if d.algorithm in _OBSERVING]
    unobserved = tuple(name for name in chosen if name not in observed)
    states: dict[str, dict[str, Tensor]] = {}
    for names, moments in chain([(unobserved, None)], observe_moments(root, observed, run)):
        for name in names:
            progress.advance("round", len(states), len(chosen))
            weight: Tensor = root.get_submodule(name).weight.detach().float()  # type: ignore[operator]
            codes, scales = _CHOOSERS[chosen[name].algorithm](weight, moments, chosen[name])
            packed = pack_nibbles(codes) if chosen[name].weights == Weights.INT4 else codes
            states[name] = {"weight": packed, "weight_scale": scales}
    if chosen:
        progress.advance("round", len(chosen), len(chosen))
    return states
