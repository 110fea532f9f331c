"""Codes of weights that are chosen by more than rounding each to nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError
from tts_compress.numerics.neighbours import CODE_LIMIT, PAIR_LIMIT
from tts_compress.torch.gptq import gptq
from tts_compress.torch.inc import inc_codes
from tts_compress.torch.layers.codes import group_scales, pack_nibbles, round_channels
from tts_compress.torch.moments import observe_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from tts_compress.progress import Progress
    from tts_compress.torch.decisions import Decision

__all__ = ["choose_codes"]

_FOUR_BITS = (-8, 7)


def choose_codes(
    root: nn.Module,
    decisions: Sequence[Decision],
    run: Callable[[nn.Module], None] | None,
    *,
    progress: Progress,
) -> dict[str, dict[str, Tensor]]:
    """Return codes and scales of the linear layers whose recipe names another algorithm than `rtn`.

    Every layer is calibrated on what the module in FP32 gives it, so that the codes do not depend
    on how many passes memory takes.

    Args:
        root: The module in FP32; it is not changed.
        decisions: For its layers.
        run: Calls the module with calibration data, the same in every pass; None where no
            algorithm needs it.
        progress: Is told of every layer; `run` tells of the calibration.

    Returns:
        By layer, `weight` and `weight_scale` as a compressed layer's state has them.

    Raises:
        QuantizationError: A weight is not finite, or calibration does not reach a layer.
        MissingExtraError: The algorithm's package is not installed.
    """
    chosen = {d.module: d for d in decisions if _has_choice(d)}
    for name in chosen:
        if not torch.isfinite(root.get_submodule(name).weight).all():  # type: ignore[arg-type]
            raise QuantizationError(f"'{name}': a weight is not finite; the checkpoint is damaged")
    states: dict[str, dict[str, Tensor]] = {}

    def add(name: str, moments: Tensor | None) -> None:
        progress.advance("round", len(states), len(chosen))
        weight: Tensor = root.get_submodule(name).weight.detach().float()  # type: ignore[operator]
        states[name] = _state(weight, moments, chosen[name])

    observed = [name for name, decision in chosen.items() if decision.algorithm != "inc-rtn"]
    for name in chosen:
        if name not in observed:
            add(name, None)
    if observed:
        assert run is not None, "a recipe whose algorithm observes has a calibration"
        for names, moments in observe_moments(root, observed, run):
            for name in names:
                add(name, moments)
    if chosen:
        progress.advance("round", len(chosen), len(chosen))
    return states


def _has_choice(decision: Decision) -> bool:
    quantized = decision.operator == "Linear" and decision.weights in {"int4", "int8"}
    return quantized and decision.algorithm != "rtn"


def _state(weight: Tensor, moments: Tensor | None, decision: Decision) -> dict[str, Tensor]:
    if decision.algorithm != "gptq":
        codes, scales = inc_codes(weight, moments, decision.group)
        return {"weight": pack_nibbles(codes), "weight_scale": scales}
    assert moments is not None
    if decision.weights == "int4":
        scales = group_scales(weight, decision.group)
        codes = gptq(weight, moments, scales, _FOUR_BITS)
        return {"weight": pack_nibbles(codes), "weight_scale": scales}
    multiplied = decision.activations != "none"
    _, scales = round_channels(weight, 0, multiplied=multiplied)
    pair_limit = PAIR_LIMIT if multiplied else None
    limits = (-CODE_LIMIT, CODE_LIMIT)
    codes = gptq(weight, moments, scales.unsqueeze(1), limits, pair_limit=pair_limit)
    return {"weight": codes, "weight_scale": scales}
