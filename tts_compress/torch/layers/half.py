"""Layers that compute in half precision between FP32 ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.operators import apply_operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tts_compress.torch.layers.base import Geometry

__all__ = ["HalfLayer"]

_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


class HalfLayer(CompressedLayer):
    """A linear layer or convolution with weights and arithmetic of 16 bits.

    Inputs are cast on the way in and outputs on the way out, so that norms, sums and everything
    else between layers keep FP32.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` and `bias` where there is one.
        kind: `float16` or `bfloat16`.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor], kind: str) -> None:
        super().__init__(geometry, Weights(kind), Activations(kind))
        self.values: Tensor
        self.bias: Tensor | None
        bias = state.get("bias")
        self.register_buffer("values", state["weight"].to(_TYPES[kind]))
        self.register_buffer("bias", None if bias is None else bias.to(_TYPES[kind]))

    @property
    def weight(self) -> Tensor:
        """The weight itself."""
        return self.values

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer it stands for returns, in the type of the inputs."""
        values = inputs.to(self.values.dtype)
        outputs = apply_operator(self.geometry, values, self.values, self.bias)
        return outputs.to(inputs.dtype)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        state = {"weight": self.values}
        return state if self.bias is None else state | {"bias": self.bias}
