"""Linear layers that multiply in eight bits on GPUs, by torch's products.

Weights are rounded as for a CPU, so that a module holds the same codes wherever it was made. Inputs
are rounded with one scale per row, as torchao does. torchao's layers compute the same; its tensors
take several times as long to start the kernels, which is most of the time of a small step.
"""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.errors import ArtifactError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, register_layer
from tts_compress.torch.layers.geometry import Geometry

FLOAT8 = torch.float8_e4m3fn
"""Four bits of exponent and three of mantissa: up to 448, and no infinities."""

_LEAST_ROWS = 32
"""CUDA's integer product takes more than 16 rows. Autoregressive models have one."""

_LEAST_PEAK = 1e-12
"""A row of zeros, such as padding, would have a scale of zero."""

_BY_ROW = frozenset({9, 10})
"""Generations whose products in 8-bit floats take a scale per row in every supported torch; the
others take one per tensor."""


class GpuLinear(CompressedLayer):
    """A linear layer on `[..., inputs]` whose product is in eight bits.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8, or float8 e4m3), `weight_scale` (FP32, one per output or one for
            all) and `bias` where there is one.
    """

    multiple: ClassVar[int]
    """A divisor that inputs and outputs must have for the product."""

    @classmethod
    @override
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        outputs, inputs = geometry.shape
        if outputs % cls.multiple == 0 and inputs % cls.multiple == 0:
            return ""
        return f"its {inputs} inputs and {outputs} outputs are not both multiples of {cls.multiple}"

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return `[..., outputs]` in the type of the input."""
        outputs = self._multiply(input.reshape(-1, input.shape[-1]))
        return outputs.reshape(*input.shape[:-1], outputs.shape[1]).to(input.dtype)

    @abstractmethod
    def _multiply(self, rows: Tensor) -> Tensor:
        """Return the outputs `[rows, outputs]` of `[rows, inputs]`."""


def _row_scales(rows: Tensor, limit: float) -> Tensor:
    """Return the FP32 scales `[rows, 1]` that bring each row's largest magnitude to a limit."""
    peaks: Tensor = torch.linalg.vector_norm(rows, torch.inf, 1, keepdim=True, dtype=torch.float32)
    return peaks.clamp_min(_LEAST_PEAK) / limit


@register_layer(nn.Linear, weights=Weights.INT8, activations=(Activations.DYNAMIC,), device="cuda")
class GpuInt8Linear(GpuLinear):
    """A linear layer that multiplies `int8` by `int8` and scales the sums in FP32."""

    multiple = 8

    @override
    def _multiply(self, rows: Tensor) -> Tensor:
        scales = _row_scales(rows, 127)
        codes = (rows / scales).round().to(torch.int8)
        if (count := len(codes)) < _LEAST_ROWS:
            codes = F.pad(codes, (0, 0, 0, _LEAST_ROWS - count))
        sums = torch._int_mm(codes, self.codes.t())[:count]  # noqa: SLF001  nothing else has it
        outputs = sums * scales
        if self.bias is None:
            return outputs * self.scales
        return torch.addcmul(self.bias, outputs, self.scales)


@register_layer(nn.Linear, weights=Weights.FLOAT8, activations=(Activations.FLOAT8,), device="cuda")
class GpuFloat8Linear(GpuLinear):
    """A linear layer that multiplies 8-bit floats and outputs bfloat16."""

    multiple = 16

    @classmethod
    @override
    def quantize(cls, layer: FloatLayer) -> dict[str, Tensor]:
        limit = torch.finfo(FLOAT8).max
        peaks = layer.weight.abs().amax(1, keepdim=True)
        generation, _ = torch.cuda.get_device_capability(layer.weight.device)
        peaks = peaks if generation in _BY_ROW else peaks.amax(0, keepdim=True)
        scales = (peaks / limit).clamp_min(torch.finfo(torch.float32).tiny)  # not zero for zeros
        codes = (layer.weight / scales).clamp(-limit, limit).to(FLOAT8)
        return {"weight": codes, "weight_scale": scales}  # [outputs, 1] or [1, 1]

    @override
    def _multiply(self, rows: Tensor) -> Tensor:
        limit = torch.finfo(FLOAT8).max
        scales = _row_scales(rows, limit)
        if self.scales.numel() == 1:
            scales = scales.amax(0, keepdim=True)
        outputs: Tensor = torch._scaled_mm(  # noqa: SLF001  the only product of this type
            (rows / scales).clamp(-limit, limit).to(FLOAT8),
            self.codes.t(),
            scale_a=scales,
            scale_b=self.scales.t(),
            bias=None if self.bias is None else self.bias.bfloat16(),
            out_dtype=torch.bfloat16,  # the only type that scales per row go with
            # With CUDA 12.9 the faster sum fails for some shapes, as torchao warns.
            use_fast_accum=not (torch.version.cuda or "").startswith("12.9"),
        )
        return outputs

    def state(self) -> dict[str, Tensor]:
        """Refuse to be saved."""
        raise ArtifactError(
            "weights in 8-bit floats are made on the GPU they run on and cannot be saved; "
            "save the FP32 model and compress it there, or take 'int8', which can be saved"
        )
