"""From a torch layer to a compressed one, and from tensors in a file back to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from tts_compress.errors import QuantizationError
from tts_compress.torch.layers.base import CompressedLayer, Geometry
from tts_compress.torch.layers.codes import (
    as_rows,
    group_scales,
    pack_nibbles,
    round_channels,
    round_groups,
)
from tts_compress.torch.layers.half import HalfLayer
from tts_compress.torch.layers.int4 import Int4Linear
from tts_compress.torch.layers.int4_convolution import Int4Convolution
from tts_compress.torch.layers.integer import Int8Linear, activation_codes
from tts_compress.torch.layers.integer_convolution import (
    Int8Conv1d,
    Int8ConvTranspose1d,
    transposed_phases,
)
from tts_compress.torch.layers.pointwise import Int8PointwiseConv1d, is_pointwise
from tts_compress.torch.layers.weight_only import Int8WeightOnly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from tts_compress.recipes.formats import Activations, Weights

__all__ = ["Arithmetic", "build_layer", "is_layer", "layer_state"]


class Arithmetic(Protocol):
    """What was decided for a layer; records of a manifest are such, too."""

    @property
    def weights(self) -> Weights | str:
        """How weights are stored."""

    @property
    def activations(self) -> Activations | str:
        """What arithmetic runs on."""


def is_layer(chosen: Arithmetic) -> bool:
    """Return whether a decision exchanges the layer; others change at most how a file stores it."""
    return chosen.weights in {"int8", "int4"} or chosen.activations in {"float16", "bfloat16"}


def layer_state(
    module: nn.Module,
    chosen: Arithmetic,
    *,
    group: int = 64,
    limits: tuple[float, float] | None = None,
) -> dict[str, Tensor]:
    """Return the tensors of the compressed layer that stands for a module, rounded to nearest.

    Args:
        module: A linear layer, convolution or embedding in FP32.
        chosen: What it becomes.
        group: Inputs that share a scale, for four bits.
        limits: The range of its input, for static activations.

    Raises:
        QuantizationError: A weight is not finite, or the group does not divide the inputs.
    """
    geometry = Geometry.of(module)
    weight: Tensor = module.weight.detach().float()  # type: ignore[operator]
    bias = getattr(module, "bias", None)
    state: dict[str, Tensor] = {} if bias is None else {"bias": bias.detach().float()}
    if chosen.weights == "int4":
        return {**_four_bits(as_rows(weight, geometry.channel_axis), group), **state}
    if chosen.weights != "int8":
        return {"weight": weight, **state}
    axis = geometry.channel_axis
    if geometry.operator == "ConvTranspose1d" and chosen.activations != "none":
        weight, axis = transposed_phases(weight, geometry), 0
    codes, scales = round_channels(weight, axis, multiplied=chosen.activations != "none")
    state = {"weight": codes, "weight_scale": scales, **state}
    if chosen.activations == "static":
        assert limits is not None, "calibration chose a range for every static layer"
        scale, zero_point = activation_codes(*limits)
        state["input_scale"] = torch.tensor(scale, dtype=torch.float64)
        state["input_zero_point"] = torch.tensor(zero_point, dtype=torch.int32)
    return state


def _four_bits(rows: Tensor, group: int) -> dict[str, Tensor]:
    if rows.shape[1] % group:
        raise QuantizationError(
            f"{rows.shape[1]} inputs are no multiple of the group {group}; give another group"
        )
    scales = group_scales(rows, group)
    return {"weight": pack_nibbles(round_groups(rows, scales)), "weight_scale": scales}


def build_layer(
    geometry: Geometry, chosen: Arithmetic, state: Mapping[str, Tensor]
) -> CompressedLayer:
    """Return the layer that `state` describes, packed for the processor at hand.

    Args:
        geometry: Of the layer it stands for.
        chosen: What it is.
        state: As `layer_state` or `CompressedLayer.state` returned it.
    """
    if chosen.weights == "int4":
        is_linear = geometry.operator == "Linear"
        return (Int4Linear if is_linear else Int4Convolution)(geometry, state)
    if chosen.weights in {"float16", "bfloat16"}:
        return HalfLayer(geometry, state, chosen.weights)
    if chosen.activations == "none":
        return Int8WeightOnly(geometry, state)
    if geometry.operator == "Linear":
        return Int8Linear(geometry, state)
    if is_pointwise(geometry):
        return Int8PointwiseConv1d(geometry, state)
    convolution = Int8ConvTranspose1d if geometry.operator == "ConvTranspose1d" else Int8Conv1d
    return convolution(geometry, state)
