"""Layers with four-bit weights that share scales in groups."""

import math
import platform
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.recipes.formats import Weights
from tts_compress.torch.layers.base import (
    CompressedLayer,
    FloatLayer,
    cannot_record,
    from_rows,
    group_scales,
    pack_nibbles,
    register_layer,
    round_groups,
    unpack_nibbles,
)
from tts_compress.torch.layers.geometry import Geometry, apply_operator

_KERNEL_GROUPS = (32, 64, 128, 256)
_KERNEL_OUTPUTS = 16
"""torch's kernel takes multiples of it."""

_ENTERING = threading.Lock()
"""Lets one thread bring a layer's codes into the kernel's layout, where several call it first."""


@register_layer(nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, weights=Weights.INT4)
class Int4Layer(CompressedLayer):
    """A layer whose weights are codes in [-8, 7] with one scale per group, and FP32 when used.

    Convolutions get small by that, not faster.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (uint8, two codes per byte, `[outputs, inputs × kernel / 2]`),
            `weight_scale` (bfloat16, `[outputs, groups]`) and `bias` where there is one.
    """

    @classmethod
    @override
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        inputs = math.prod(geometry.shape) // geometry.shape[geometry.channel_axis]
        if inputs % group_size == 0:
            return ""
        return f"its {inputs} inputs are no multiple of the group of {group_size}"

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        rows = layer.weight.movedim(layer.geometry.channel_axis, 0).flatten(1)
        scales = group_scales(rows, layer.group_size)
        return {"weight": pack_nibbles(round_groups(rows, scales)), "weight_scale": scales}

    @classmethod
    @override
    def stored_shape(cls, geometry: Geometry) -> tuple[int, ...]:
        outputs = geometry.shape[geometry.channel_axis]
        return outputs, math.prod(geometry.shape) // outputs // 2

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return the outputs of the layer it replaces, in the type of the input."""
        outputs = apply_operator(self.geometry, input.float(), self.real_weight(), self.bias)
        return outputs.to(input.dtype)

    def real_weight(self) -> Tensor:
        """Return the dequantized weight, FP32, as torch lays it out."""
        codes, scales = self.stored()
        groups = unpack_nibbles(codes).float().view(*scales.shape, -1)
        rows = (groups * scales.float().unsqueeze(-1)).flatten(1)
        return from_rows(rows, self.geometry.shape, self.geometry.channel_axis)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return codes and scales as a file has them."""
        return self.codes, self.scales


@register_layer(nn.Linear, weights=Weights.INT4)
class Int4Linear(Int4Layer):
    """A linear layer.

    On x86 torch's own four-bit kernel multiplies, in bfloat16 with 32-bit sums: the inputs lose all
    but 8 bits of mantissa, little beside what the weights lost. Elsewhere, and for shapes the
    kernel does not take, the weight is made FP32 where it is used. Codes are brought into the
    kernel's layout when the layer first runs.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        self.group = geometry.shape[1] // self.scales.shape[1]
        self._in_kernel_layout = False

    @override
    def forward(self, input: Tensor) -> Tensor:
        is_tracing = torch._C._get_tracing_state()  # noqa: SLF001  as integer layers ask
        if (is_tracing or torch.compiler.is_compiling()) and torch.onnx.is_in_onnx_export():
            raise cannot_record("torch.onnx.export cannot record linear layers in four bits")
        if not self._in_kernel_layout and self._fits_kernel(input.device):
            self._enter_kernel_layout()
        if not self._in_kernel_layout:
            return super().forward(input)
        if not input.numel():  # the kernel refuses no rows
            return input.new_empty(*input.shape[:-1], self.geometry.shape[0])
        # Its rows have to lie in order; `reshape` keeps those of a transposed signal as they are.
        rows = input.reshape(-1, input.shape[-1]).to(torch.bfloat16).contiguous()
        outputs: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001  no public name
            rows, self.codes, self.group, self.scales
        ).float()
        outputs = outputs.view(*input.shape[:-1], -1)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.to(input.dtype)

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Leave the layout of the CPU's kernel before anything is moved."""
        self.codes, self.scales = self.stored()
        self._in_kernel_layout = False
        return super()._apply(fn, recurse)

    @override
    def state(self) -> dict[str, Tensor]:
        codes, scales = self.stored()
        return super().state() | {"weight": codes, "weight_scale": scales}

    def _fits_kernel(self, device: torch.device) -> bool:
        return (
            device.type == "cpu"
            and platform.machine().lower() in {"x86_64", "amd64"}
            and self.group in _KERNEL_GROUPS
            and self.geometry.shape[0] % _KERNEL_OUTPUTS == 0
        )

    def _enter_kernel_layout(self) -> None:
        # A compiler cannot record the lock, and records in one thread.
        with nullcontext() if torch.compiler.is_compiling() else _ENTERING:
            if not self._in_kernel_layout:
                self._pack()

    def _pack(self) -> None:
        codes = unpack_nibbles(self.codes).to(torch.int32) + 8
        self.codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)  # noqa: SLF001
        zero_points = torch.zeros_like(self.scales)
        # [groups, outputs, 2], as the kernel reads them
        self.scales = torch.stack((self.scales, zero_points), -1).transpose(0, 1).contiguous()
        self._in_kernel_layout = True

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return codes and scales as a file has them; codes in the kernel's layout by products."""
        if not self._in_kernel_layout:
            return self.codes, self.scales
        outputs, inputs = self.geometry.shape
        ones = torch.ones(inputs // self.group, outputs, 2, dtype=torch.bfloat16)
        ones[..., 1] = 0  # scale 1, zero point 0: every product is a code
        rows = torch.split(torch.eye(inputs, dtype=torch.bfloat16), 1024)
        products = [
            torch.ops.aten._weight_int4pack_mm_for_cpu(row, self.codes, self.group, ones)  # noqa: SLF001
            for row in rows
        ]
        codes = pack_nibbles(torch.cat(products).t().to(torch.int8).contiguous())
        return codes, self.scales[..., 0].t().contiguous()
