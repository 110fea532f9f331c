"""Layers that compute in 16-bit floats between FP32 ones."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor
from typing_extensions import override

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, register_layer
from tts_compress.torch.layers.geometry import KINDS, Geometry, apply_operator


@register_layer(*KINDS, weights=Weights.FLOAT16, activations=(Activations.FLOAT16,))
class Float16Layer(CompressedLayer):
    """A linear layer, convolution or table with weights and arithmetic of 16 bits.

    Inputs are cast on the way in and outputs on the way out, so that norms, sums and everything
    else between layers keep FP32.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` and `bias` where there is one, in any type.
    """

    kept: ClassVar[Mapping[str, str]] = {"weight": "values", "bias": "bias"}
    values: Tensor

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        kind = getattr(torch, self.weights)
        super().__init__(geometry, {name: value.to(kind) for name, value in state.items()})

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        return {"weight": layer.weight}  # cast when the layer is built

    @property
    @override
    def weight(self) -> Tensor:
        return self.values

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the layer it replaces; a table's inputs are indices."""
        if self.geometry.operator == "Embedding":
            return F.embedding(inputs, self.values).to(self.geometry.dtype)
        values = inputs.to(self.values.dtype)
        outputs = apply_operator(self.geometry, values, self.values, self.bias)
        return outputs.to(inputs.dtype)


@register_layer(*KINDS, weights=Weights.BFLOAT16, activations=(Activations.BFLOAT16,))
class BFloat16Layer(Float16Layer):
    """The same in bfloat16."""
