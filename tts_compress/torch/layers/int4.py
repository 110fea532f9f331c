"""Linear layers with four-bit weights in groups of inputs."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.codes import pack_nibbles, unpack_nibbles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from tts_compress.torch.layers.base import Geometry

__all__ = ["Int4Linear"]

_KERNEL_GROUPS = (32, 64, 128, 256)
_KERNEL_OUTPUTS = 16
"""torch's kernel takes multiples of it."""


class Int4Linear(CompressedLayer):
    """A linear layer whose weights are codes in [-8, 7] with one scale per group of inputs.

    On x86 torch's own four-bit kernel multiplies, in bfloat16 with 32-bit sums: the inputs lose all
    but 8 bits of mantissa, little beside what the weights lost. Elsewhere, and for shapes the
    kernel does not take, the weight is made FP32 where it is used. Codes are brought into the
    kernel's layout when the layer first runs.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` (uint8, two codes per byte, `[outputs, inputs / 2]`), `weight_scale`
            (bfloat16, `[outputs, groups]`) and `bias` where there is one.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, Weights.INT4, Activations.NONE)
        self.codes: Tensor
        self.scales: Tensor
        self.bias: Tensor | None
        self.register_buffer("codes", state["weight"])
        self.register_buffer("scales", state["weight_scale"])
        self.register_buffer("bias", state.get("bias"))
        self.group = geometry.shape[1] // self.scales.shape[1]
        self._in_kernel_layout = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., outputs]` in the type of the inputs."""
        if not self._in_kernel_layout and self._fits_kernel(inputs.device):
            self._enter_kernel_layout()
        if self._in_kernel_layout:
            rows = inputs.reshape(-1, inputs.shape[-1]).to(torch.bfloat16)
            outputs: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001  no public name
                rows, self.codes, self.group, self.scales
            ).float()
            outputs = outputs.view(*inputs.shape[:-1], -1)
            if self.bias is not None:
                outputs = outputs + self.bias
        else:
            outputs = F.linear(inputs.float(), self.real_weight(), self.bias)
        return outputs.to(inputs.dtype)

    def real_weight(self) -> Tensor:
        """Return the weight that the codes stand for, FP32 `[outputs, inputs]`."""
        codes = unpack_nibbles(self._file_codes()).float()
        scales = self._file_scales().float()
        weight: Tensor = (codes.view(*scales.shape, self.group) * scales.unsqueeze(-1)).view(
            codes.shape
        )
        return weight

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Leave the layout of the CPU's kernel before anything is moved or cast."""
        if self._in_kernel_layout:
            self.codes, self.scales = self._file_codes(), self._file_scales()
            self._in_kernel_layout = False
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        moved.scales = moved.scales.to(torch.bfloat16)  # a cast is not meant for them
        return moved

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        state = {"weight": self._file_codes(), "weight_scale": self._file_scales()}
        return state if self.bias is None else state | {"bias": self.bias}

    def _fits_kernel(self, device: torch.device) -> bool:
        return (
            device.type == "cpu"
            and platform.machine().lower() in {"x86_64", "amd64"}
            and self.group in _KERNEL_GROUPS
            and self.geometry.shape[0] % _KERNEL_OUTPUTS == 0
        )

    def _enter_kernel_layout(self) -> None:
        codes = unpack_nibbles(self.codes).to(torch.int32) + 8
        self.codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)  # noqa: SLF001
        zero_points = torch.zeros_like(self.scales)
        # [groups, outputs, 2], as the kernel reads them
        self.scales = torch.stack((self.scales, zero_points), -1).transpose(0, 1).contiguous()
        self._in_kernel_layout = True

    def _file_scales(self) -> Tensor:
        """Return the scales in the file's layout."""
        return self.scales[..., 0].t().contiguous() if self._in_kernel_layout else self.scales

    def _file_codes(self) -> Tensor:
        """Return the codes in the file's layout; out of the kernel's they come as products."""
        if not self._in_kernel_layout:
            return self.codes
        outputs, inputs = self.geometry.shape
        ones = torch.ones(inputs // self.group, outputs, 2, dtype=torch.bfloat16)
        ones[..., 1] = 0  # scale 1, zero point 0: every product is a code
        rows = torch.split(torch.eye(inputs, dtype=torch.bfloat16), 1024)
        products = [
            torch.ops.aten._weight_int4pack_mm_for_cpu(row, self.codes, self.group, ones)  # noqa: SLF001
            for row in rows
        ]
        return pack_nibbles(torch.cat(products).t().to(torch.int8).contiguous())
