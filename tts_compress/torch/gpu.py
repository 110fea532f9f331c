"""Modules that lie on a GPU.

The integer layers are for CPUs. On a GPU the same recipes give linear layers to torchao; everything
else of a recipe, 16-bit floats and weights that are only stored small, is the same everywhere.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tts_compress.errors import QuantizationError, TTSCompressWarning
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.decisions import Decision
from tts_compress.torch.layers.base import find_layer
from tts_compress.torch.layers.geometry import Geometry

_EIGHT_BITS = {Activations.DYNAMIC, Activations.STATIC, Activations.FLOAT8}
_FLOAT8_FROM = (8, 9)
"""The first compute capability with 8-bit floats."""


def runs_on_gpu(root: nn.Module, recipe: Recipe) -> bool:
    """Return True if a recipe asks for arithmetic in eight bits and the module lies on a GPU.

    Args:
        root: The module.
        recipe: The format of each layer.

    Raises:
        QuantizationError: There is no such arithmetic where the module lies.
    """
    devices = _devices(root)
    asked = {rule.activations for rule in recipe.component} & _EIGHT_BITS
    if Activations.FLOAT8 in asked:
        _check_float8(devices)
    if not asked or not any(device.type == "cuda" for device in devices):
        return False
    if Activations.STATIC in asked:
        raise QuantizationError(
            f"'{recipe.scheme}' rounds activations with fixed ranges, which is for CPUs; "
            "on a GPU take 'int8-dynamic'"
        )
    if any(device.type != "cuda" for device in devices):
        shown = ", ".join(sorted(map(str, devices)))
        raise QuantizationError(f"the module lies on {shown}; move all of it to the GPU, or none")
    return True


def fit_to_gpu(root: nn.Module, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Return the decisions, with FP32 and a reason where no kernel of a GPU carries one out."""
    fitted = []
    for decision in decisions:
        geometry, reason = Geometry.of(root.get_submodule(decision.module)), ""
        layer = find_layer(geometry, decision.weights, decision.activations, device="cuda")
        if layer is not None:
            reason = layer.objection(geometry, decision.group_size)
        elif decision.is_layer:
            reason = f"there is no {decision.operator} in integers on a GPU"
        fp32: Any = {"weights": Weights.FLOAT32, "activations": Activations.NONE, "reason": reason}
        fitted.append(replace(decision, **fp32) if reason else decision)
    return tuple(fitted)


def warn_of_kept(decisions: Sequence[Decision], fitted: Sequence[Decision]) -> None:
    """Warn of layers that are compressed on a CPU, but not on a GPU."""
    kept = [new for old, new in zip(decisions, fitted, strict=True) if new is not old]
    if kept:
        warnings.warn(
            f"{len(kept)} layers keep FP32 on a GPU, such as '{kept[0].module}': {kept[0].reason}",
            TTSCompressWarning,
            stacklevel=8,  # the caller of `compress`
        )


def _devices(root: nn.Module) -> set[torch.device]:
    return {parameter.device for parameter in root.parameters()}


def _check_float8(devices: set[torch.device]) -> None:
    """Refuse 8-bit floats where there is no arithmetic with them."""
    needed = (
        "8-bit floats ('fp8') need an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper, "
        "Blackwell)"
    )
    others = sorted(str(device) for device in devices if device.type != "cuda")
    if others:
        raise QuantizationError(
            f"{needed}; the module lies on {', '.join(others)}: move it to such a GPU, "
            "or take 'int8', which CPUs compute with"
        )
    if torch.version.hip is not None:
        raise QuantizationError(f"{needed}, and this is a build of torch for ROCm; take 'bf16'")
    for device in sorted(devices, key=str):
        found = torch.cuda.get_device_capability(device)
        if found < _FLOAT8_FROM:
            raise QuantizationError(
                f"{needed}; {device} has {found[0]}.{found[1]}: take 'int8' or 'fp16'"
            )
