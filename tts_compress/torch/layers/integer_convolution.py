"""Convolutions that multiply integers; see `integer.py`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.numerics.weights import round_weight
from tts_compress.recipes.formats import Weights
from tts_compress.torch.layers.base import FloatLayer, register_layer
from tts_compress.torch.layers.codes import activation_codes
from tts_compress.torch.layers.geometry import Geometry, pad, plain_view
from tts_compress.torch.layers.integer import INTEGERS, IntegerLayer, Packed


@register_layer(nn.Conv1d, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8Conv1d(IntegerLayer):
    """A convolution on `[batch, inputs, time]` or `[inputs, time]`.

    The kernel is onednn's, because it outputs FP32. `torch.ops.quantized.conv1d_dynamic` looks
    like one that does, but rounds its output to the codes of its *input*, and clips it to their
    range.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        window = ([geometry.stride], [geometry.padding], [geometry.dilation], geometry.groups)
        scales, zeros = state["weight_scale"], torch.zeros(geometry.shape[0], dtype=torch.int64)
        arguments = (state["weight"], scales, geometry.shape, window)
        self._packed = Packed(_pack_convolution, Tensor.to_dense, *arguments)
        self._kernel = (scales, zeros, state.get("bias"), *window)

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        if inputs.dim() == 3 and not len(inputs):  # the kernel takes one row or more
            return self.compute(inputs.new_zeros(1, *inputs.shape[1:]))[:0]
        values = pad(self.geometry, inputs.detach().float())  # the kernel has no gradients
        plain = plain_view(values)
        scale, zero_point = self._codes_of(plain)
        rounded = torch.quantize_per_tensor(plain, scale, zero_point, torch.quint8)
        # Without the copy that `int_repr` makes.
        codes = torch.empty(0, dtype=torch.uint8)
        codes.set_(rounded.untyped_storage(), 0, rounded.shape, rounded.stride())
        codes = codes if plain is values else codes.transpose(-1, -2)
        outputs: Tensor = torch.ops.onednn.qconv1d_pointwise(
            codes.unsqueeze(0) if codes.dim() == 2 else codes,
            scale,
            zero_point,
            self._packed.weight,
            *self._kernel,
            *_PLAIN_FP32_OUTPUT,
        )
        return outputs.reshape(*values.shape[:-2], *outputs.shape[-2:]).to(inputs.dtype)

    @override
    def unpack(self) -> Tensor:
        return self._packed.codes().reshape(self.geometry.shape)

    def _codes_of(self, values: Tensor) -> tuple[float, int]:
        if self.input_scale is not None:
            return self.input_scale, self.input_zero_point
        # Not `aminmax`: on a million values it takes 1.5 times as long as both, on one thread.
        low, high = float(values.amin()), float(values.amax())
        if not math.isfinite(high - low):
            raise ValueError("an input of an integer convolution is not finite")
        return activation_codes(low, high)


def _pack_convolution(
    codes: Tensor, scales: Tensor, shape: tuple[int, ...], window: tuple[Any, ...]
) -> Any:
    # The layout depends on neither scale nor zero point of the input.
    return torch.ops.onednn.qconv_prepack(codes.reshape(shape), scales, 1.0, 0, *window, None)


_PLAIN_FP32_OUTPUT: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")
"""The kernel's last arguments: scale, zero point and type of its output, and nothing fused."""


@register_layer(nn.ConvTranspose1d, weights=Weights.INT8, activations=INTEGERS, device="cpu")
class Int8ConvTranspose1d(IntegerLayer):
    """A transposed convolution on `[batch, inputs, time]` or `[inputs, time]`, undilated.

    No integer kernel transposes; but each of the `stride` phases of the output is a plain
    convolution of the input, so it is one with `outputs × stride` channels, which are then
    interleaved. Its weight in a file has that shape, with a scale for each channel and phase.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        taps = state["weight"].shape[-1]
        plain = replace(
            geometry,
            operator="Conv1d",
            shape=tuple(state["weight"].shape),
            stride=1,
            padding=taps - 1,
            output_padding=0,
        )
        inner = dict(state)
        if "bias" in state:
            repeat = Tensor.repeat if geometry.groups == 1 else Tensor.repeat_interleave
            inner["bias"] = repeat(state["bias"], geometry.stride)
        self.phases = Int8Conv1d(plain, inner)

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        phases = transposed_phases(layer.weight, layer.geometry)
        codes, scales = round_weight(phases, 0, multiplied=True)
        return {"weight": codes, "weight_scale": scales}

    @override
    def compute(self, inputs: Tensor) -> Tensor:
        shape = self.geometry
        phases = self.phases.compute(inputs)
        outputs = phases.shape[-2] // shape.stride
        if shape.groups == 1:
            # With channels last the phases of a frame lie behind each other, in order of time.
            frames = phases.transpose(-1, -2)
            size = frames.shape[-2] * shape.stride, outputs
            woven = frames.reshape(*frames.shape[:-2], *size).transpose(-1, -2)
        else:
            split = outputs, shape.stride, phases.shape[-1]
            woven = phases.reshape(*phases.shape[:-2], *split)
            woven = woven.transpose(-1, -2).flatten(-2)
        length = (inputs.shape[-1] - 1) * shape.stride - 2 * shape.padding + shape.shape[2]
        cropped: Tensor = woven[..., shape.padding : shape.padding + length + shape.output_padding]
        return cropped

    @override
    def unpack(self) -> Tensor:
        return self.phases.unpack()


def transposed_phases(weight: Tensor, geometry: Geometry) -> Tensor:
    """Return the weight of the plain convolution that computes every phase of a transposed one.

    Args:
        weight: FP32, `[inputs, outputs / groups, taps]`.
        geometry: The shape of the transposed convolution.

    Returns:
        `[outputs * stride, inputs / groups, ceil((taps + output padding) / stride)]`.
    """
    stride, groups = geometry.stride, geometry.groups
    reach = -(-(weight.shape[2] + geometry.output_padding) // stride)
    padded = F.pad(weight, (0, reach * stride - weight.shape[2]))
    # [groups, inputs / groups, outputs / groups, reach, stride], the latest input first.
    parts = padded.reshape(groups, -1, weight.shape[1], reach, stride).flip(3)
    # Phase by phase, where groups, whose channels have to stay together, allow it.
    order = (0, 4, 2, 1, 3) if groups == 1 else (0, 2, 4, 1, 3)
    return parts.permute(*order).reshape(-1, weight.shape[0] // groups, reach)
