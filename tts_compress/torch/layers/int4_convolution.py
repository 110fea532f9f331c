"""Convolutions with four-bit weights and FP32 arithmetic: small, not faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.codes import from_rows, unpack_nibbles
from tts_compress.torch.layers.operators import apply_operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from tts_compress.torch.layers.base import Geometry

__all__ = ["Int4Convolution"]


class Int4Convolution(CompressedLayer):
    """A convolution whose weights are codes in [-8, 7]; they are FP32 only while they are used.

    A row holds what makes one output channel, inputs and taps flattened, and has a scale per group.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` (uint8, two codes per byte, `[outputs, inputs × taps / 2]`),
            `weight_scale` (bfloat16, `[outputs, groups]`) and `bias` where there is one.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, Weights.INT4, Activations.NONE)
        self.codes: Tensor
        self.scales: Tensor
        self.bias: Tensor | None
        self.register_buffer("codes", state["weight"])
        self.register_buffer("scales", state["weight_scale"])
        self.register_buffer("bias", state.get("bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer it stands for returns, in the type of the inputs."""
        outputs = apply_operator(self.geometry, inputs.float(), self.real_weight(), self.bias)
        return outputs.to(inputs.dtype)

    def real_weight(self) -> Tensor:
        """Return the weight that the codes stand for, FP32, as torch lays it out."""
        scales = self.scales.float().unsqueeze(-1)
        grouped = unpack_nibbles(self.codes).float().view(*self.scales.shape, -1)
        return from_rows(
            (grouped * scales).flatten(1), self.geometry.shape, self.geometry.channel_axis
        )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        state = {"weight": self.codes, "weight_scale": self.scales}
        return state if self.bias is None else state | {"bias": self.bias}
