"""Layers with `int8` weights and FP32 arithmetic: small, not faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.operators import apply_operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tts_compress.torch.layers.base import Geometry

__all__ = ["Int8WeightOnly"]

_AT_ONCE = 1 << 18
"""Weights that are FP32 at once: 1 MiB, which a processor's cache holds."""


class Int8WeightOnly(CompressedLayer):
    """Any of the layers; the weight is made FP32 where it is used and forgotten again.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` (int8), `weight_scale` (FP32, one per output channel or embedding row) and
            `bias` where there is one.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, Weights.INT8, Activations.NONE)
        self.codes: Tensor
        self.scales: Tensor
        self.bias: Tensor | None
        self.register_buffer("codes", state["weight"])
        self.register_buffer("scales", state["weight_scale"])
        self.register_buffer("bias", state.get("bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the layer it stands for returns; `inputs` are indices for an embedding."""
        if self.geometry.operator == "Embedding":
            return F.embedding(inputs, self.codes).float() * self.scales[inputs].unsqueeze(-1)
        # Scaling what comes out touches fewer numbers than scaling the weight.
        scales, bias = self.scales, self.bias
        if self.geometry.operator != "Linear":
            if self.geometry.operator == "ConvTranspose1d":
                scales = scales.repeat(self.geometry.groups)  # each group has the same channels
            scales = scales.unsqueeze(-1)
            bias = None if bias is None else bias.unsqueeze(-1)
        outputs = self._multiply(inputs.float()) * scales
        return (outputs if bias is None else outputs + bias).to(inputs.dtype)

    @property
    def weight(self) -> Tensor:
        """Return a table's numbers, which upstream code also looks up or multiplies by itself."""
        if self.geometry.operator == "Embedding":
            return self.codes.float() * self.scales.unsqueeze(-1)
        return super().weight

    def _multiply(self, values: Tensor) -> Tensor:
        """Return what the codes themselves make of the inputs."""
        if self.geometry.operator != "Linear":
            return apply_operator(self.geometry, values, self.codes.float(), None)
        if values.is_cuda:  # whose cache is not the matter
            return F.linear(values, self.codes.float())
        rows = max(_AT_ONCE // self.codes.shape[1], 1)
        parts = [F.linear(values, part.float()) for part in torch.split(self.codes, rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        state = {"weight": self.codes, "weight_scale": self.scales}
        return state if self.bias is None else state | {"bias": self.bias}
