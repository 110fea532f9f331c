"""Linear layers that multiply in eight bits on GPUs, with torchao's tensors for weights.

The weights are rounded here, as for a CPU, so that a module holds the same codes wherever it was
made. Inputs are rounded as torchao does, with one scale per row.
"""

from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from typing_extensions import override

from tts_compress.errors import ArtifactError, MissingExtraError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, register_layer
from tts_compress.torch.layers.geometry import Geometry

FLOAT8 = torch.float8_e4m3fn
"""Four bits of exponent and three of mantissa: up to 448, and no infinities."""

_LEAST_ROWS = 32
"""CUDA's integer product takes more than 16 rows: torch refuses fewer in compiled graphs, and
torchao multiplies them in floating point otherwise. Autoregressive models have one row."""

_LEAST_PEAK = 1e-12
"""A row of zeros, such as padding, would have a scale of zero, and torchao would divide by it."""

_BY_ROW = frozenset({9, 10})
"""Generations whose products in 8-bit floats take a scale per row in every build of torch that
torchao supports; the others take one per tensor."""


class TorchaoLinear(CompressedLayer):
    """A linear layer on `[..., inputs]` with one of torchao's tensors for a weight.

    Args:
        geometry: The shape of the layer it replaces.
        state: `weight` (int8, or float8 e4m3), `weight_scale` (FP32, one per output or one for
            all) and `bias` where there is one.
    """

    _dtype: ClassVar[torch.dtype]
    """The type of what goes into torchao's product."""

    kept: ClassVar[Mapping[str, str]] = {}
    multiple: ClassVar[int]
    """A divisor that inputs and outputs must have; others torchao would compute on the CPU."""

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        codes, scales, bias = state["weight"], state["weight_scale"], state.get("bias")
        outputs, inputs = geometry.shape
        # Without memory at first: initializing it would draw random numbers.
        self.inner = nn.Linear(
            inputs, outputs, bias=bias is not None, device="meta", dtype=self._dtype
        )
        self.inner.weight = nn.Parameter(codes.to(self._dtype), requires_grad=False)
        if bias is not None:
            self.inner.bias = nn.Parameter(bias.to(self._dtype), requires_grad=False)
        package = load_torchao()
        package.quantize_(self.inner, self.config(package, by_row=scales.numel() > 1))
        weight: Any = self.inner.weight
        with torch.no_grad():  # the codes torchao chose are overwritten
            weight.qdata.copy_(codes)
            weight.scale.copy_(scales.view(weight.scale.shape))

    @classmethod
    @override
    def objection(cls, geometry: Geometry, group_size: int) -> str:
        outputs, inputs = geometry.shape
        if outputs % cls.multiple == 0 and inputs % cls.multiple == 0:
            return ""
        return f"its {inputs} inputs and {outputs} outputs are not both multiples of {cls.multiple}"

    @classmethod
    @abstractmethod
    def config(cls, package: Any, *, by_row: bool) -> Any:
        """Return torchao's configuration of that kind of layer."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., outputs]` in the type of the inputs."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(self._dtype)
        count = rows.shape[0]
        if count < _LEAST_ROWS:
            rows = F.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        outputs = self._multiply(rows)[:count]
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1]).to(inputs.dtype)

    def _multiply(self, rows: Tensor) -> Tensor:
        """Return the outputs `[rows, outputs]` of `[rows, inputs]`, by torchao."""
        outputs: Tensor = self.inner(rows)
        return outputs


@register_layer(nn.Linear, weights=Weights.INT8, activations=(Activations.DYNAMIC,), device="cuda")
class TorchaoInt8Linear(TorchaoLinear):
    """A linear layer that multiplies `int8` by `int8` and scales the sums in FP32."""

    _dtype, multiple = torch.float32, 8

    @classmethod
    @override
    def config(cls, package: Any, *, by_row: bool) -> Any:
        # torchao would set options of torch's compiler for the whole process.
        return package.Int8DynamicActivationInt8WeightConfig(version=2, set_inductor_config=False)

    @override
    def _multiply(self, rows: Tensor) -> Tensor:
        """As torchao does, by torch alone, which starts far fewer calls for a product."""
        weight: Any = self.inner.weight
        scales = rows.abs().amax(1, keepdim=True).clamp_min(_LEAST_PEAK) / 127
        sums = torch._int_mm((rows / scales).round().to(torch.int8), weight.qdata.t())  # noqa: SLF001
        outputs: Tensor = sums * scales * weight.scale.flatten()
        return outputs if self.inner.bias is None else outputs + self.inner.bias

    @override
    def state(self) -> dict[str, Tensor]:
        weight: Any = self.inner.weight
        state = {"weight": weight.qdata, "weight_scale": weight.scale.flatten()}
        bias: Tensor | None = self.inner.bias
        return state if bias is None else state | {"bias": bias.detach()}


@register_layer(nn.Linear, weights=Weights.FLOAT8, activations=(Activations.FLOAT8,), device="cuda")
class TorchaoFloat8Linear(TorchaoLinear):
    """A linear layer that multiplies 8-bit floats and outputs bfloat16."""

    _dtype = torch.bfloat16  # the only type that scales per row go with
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

    @classmethod
    @override
    def config(cls, package: Any, *, by_row: bool) -> Any:
        return package.Float8DynamicActivationFloat8WeightConfig(
            granularity=package.PerRow() if by_row else package.PerTensor(),
            activation_value_lb=_LEAST_PEAK,
            # With CUDA 12.9 the faster sum fails for some shapes, as torchao warns.
            mm_config=package.Float8MMConfig(
                use_fast_accum=not (torch.version.cuda or "").startswith("12.9")
            ),
            set_inductor_config=False,
        )

    def state(self) -> dict[str, Tensor]:
        """Refuse to be saved."""
        raise ArtifactError(
            "weights in 8-bit floats are made on the GPU they run on and cannot be saved; "
            "save the FP32 model and compress it there, or take 'int8', which can be saved"
        )


def load_torchao() -> Any:
    """Return torchao's module of techniques."""
    try:
        return import_module("torchao.quantization")
    except ModuleNotFoundError as error:
        missing = (error.name or "torchao").partition(".")[0]
        raise MissingExtraError(missing, "gpu") from error
