"""Layers that compute in floats: INT8 weights in FP32, small but not faster, and 16-bit layers."""

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor
from typing_extensions import override

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, finite, register_layer
from tts_compress.torch.layers.geometry import KINDS, Geometry, apply_operator

_AT_ONCE = 1 << 18
"""Weights that are FP32 at once: 1 MiB, which a processor's cache holds."""


@register_layer(*KINDS, weights=Weights.INT8)
class Int8WeightOnly(CompressedLayer):
    """Any of the layers; the weight is made FP32 where it is used and forgotten again.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8), `weight_scale` (FP32, one per output channel or embedding row) and
            `bias` where there is one.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return the outputs of the layer it replaces; `input` is indices for an embedding."""
        if self.geometry.operator == "Embedding":
            rows = F.embedding(input, self.codes).float() * self.scales[input].unsqueeze(-1)
            return rows.to(self.geometry.dtype)
        # Scaling the outputs touches fewer numbers than scaling the weight.
        scales, bias = self.scales, self.bias
        if self.geometry.operator != "Linear":
            if self.geometry.operator == "ConvTranspose1d":
                scales = scales.repeat(self.geometry.groups)  # each group has the same channels
            axes = (-1,) + (1,) * (len(self.geometry.shape) - 2)
            scales = scales.view(axes)
            bias = None if bias is None else bias.view(axes)
        outputs = self._multiply(input.float()) * scales
        return (outputs if bias is None else outputs + bias).to(input.dtype)

    @property
    @override
    def weight(self) -> Tensor:
        if self.geometry.operator == "Embedding":  # upstream code also looks up by itself
            return (self.codes.float() * self.scales.unsqueeze(-1)).to(self.geometry.dtype)
        return super().weight

    def _multiply(self, values: Tensor) -> Tensor:
        """Return the outputs of a layer whose weights are the codes themselves."""
        if self.geometry.operator != "Linear":
            return apply_operator(self.geometry, values, self.codes.float(), None)
        if values.is_cuda:  # whose cache is not the matter
            return F.linear(values, self.codes.float())
        rows = max(_AT_ONCE // self.codes.shape[1], 1)
        parts = [F.linear(values, part.float()) for part in torch.split(self.codes, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


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
        super().__init__(geometry, {name: finite(value, kind) for name, value in state.items()})

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        return {"weight": layer.weight}  # cast when the layer is built

    @property
    @override
    def weight(self) -> Tensor:
        return self.values.to(self.geometry.dtype)  # the type of what goes in and comes out

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return the outputs of the layer it replaces; a table's input is indices."""
        if self.geometry.operator == "Embedding":
            return F.embedding(input, self.values).to(self.geometry.dtype)
        values = input.to(self.values.dtype)
        outputs = apply_operator(self.geometry, values, self.values, self.bias)
        return outputs.to(input.dtype)


@register_layer(*KINDS, weights=Weights.BFLOAT16, activations=(Activations.BFLOAT16,))
class BFloat16Layer(Float16Layer):
    """The same in bfloat16."""
