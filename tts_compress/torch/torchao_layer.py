"""Linear layers whose products in eight bits are torchao's, for GPUs.

The weights are rounded here, as for a CPU, so that a module holds the same codes wherever it was
made; torchao rounds what goes in, with one scale per row, and multiplies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from tts_compress.errors import ArtifactError, MissingExtraError, QuantizationError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tts_compress.torch.layers.base import Geometry

__all__ = ["FLOAT8", "TorchaoLinear", "float8_linear", "int8_linear", "load_torchao"]

FLOAT8 = torch.float8_e4m3fn
"""Four bits of exponent and three of mantissa: up to 448, and no infinities."""

_LEAST_ROWS = 32
"""CUDA's integer product takes more than 16 rows: torch refuses fewer in compiled graphs, and
torchao multiplies them in floating point otherwise. Speaking step by step has one row."""

_LEAST_PEAK = 1e-12
"""A row of zeros, such as padding, would have a scale of zero, and torchao would divide by it."""


class TorchaoLinear(CompressedLayer):
    """A linear layer on `[..., inputs]` with one of torchao's tensors for a weight.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` (int8, or float8 e4m3), `weight_scale` (FP32, one per output or one for
            all) and `bias` where there is one.
        config: Torchao's configuration of that kind; what it makes of a weight is overwritten by
            `state`.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor], config: Any) -> None:
        codes, bias = state["weight"], state.get("bias")
        if codes.dtype == torch.int8:
            super().__init__(geometry, Weights.INT8, Activations.DYNAMIC)
            kind = torch.float32
        else:
            super().__init__(geometry, Weights.FLOAT8, Activations.FLOAT8)
            kind = torch.bfloat16  # the only type that scales per row go with
        outputs, inputs = geometry.shape
        # Without memory at first: making it would draw random numbers.
        self.inner = nn.Linear(inputs, outputs, bias=bias is not None, device="meta", dtype=kind)
        self.inner.weight = nn.Parameter(codes.to(kind), requires_grad=False)
        if bias is not None:
            self.inner.bias = nn.Parameter(bias.to(kind), requires_grad=False)
        load_torchao().quantize_(self.inner, config)
        made: Any = self.inner.weight
        with torch.no_grad():
            made.qdata.copy_(codes)
            made.scale.copy_(state["weight_scale"].view(made.scale.shape))
        self._kind = kind

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., outputs]` in the type of the inputs."""
        rows = inputs.reshape(-1, inputs.shape[-1]).to(self._kind)
        count = rows.shape[0]
        if count < _LEAST_ROWS:
            rows = F.pad(rows, (0, 0, 0, _LEAST_ROWS - count))
        outputs: Tensor = self.inner(rows)[:count]
        return outputs.reshape(*inputs.shape[:-1], outputs.shape[-1]).to(inputs.dtype)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps: those of an integer layer for CPUs.

        Raises:
            ArtifactError: The weights are 8-bit floats.
        """
        if self.weights != "int8":
            raise ArtifactError(
                "weights in 8-bit floats are made on the GPU they run on and cannot be saved; "
                "save the FP32 model and compress it there, or take 'int8', which can be saved"
            )
        weight: Any = self.inner.weight
        state = {"weight": weight.qdata, "weight_scale": weight.scale.flatten()}
        bias: Tensor | None = self.inner.bias
        return state if bias is None else state | {"bias": bias.detach()}


def int8_linear(geometry: Geometry, state: Mapping[str, Tensor]) -> TorchaoLinear:
    """Return a layer that multiplies `int8` by `int8` and scales the sums in FP32.

    Args:
        geometry: Of the layer it stands for.
        state: As `layer_state` returns it.

    Raises:
        MissingExtraError: torchao is not installed.
    """
    package = load_torchao()
    # torchao would set options of torch's compiler for the whole process.
    config = package.Int8DynamicActivationInt8WeightConfig(version=2, set_inductor_config=False)
    return TorchaoLinear(geometry, state, config)


def float8_linear(
    geometry: Geometry, state: Mapping[str, Tensor], *, by_row: bool
) -> TorchaoLinear:
    """Return a layer that multiplies 8-bit floats and answers in bfloat16.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` in FP32, and `bias` where there is one.
        by_row: One scale per row of what is multiplied, not one for each of both sides.

    Raises:
        MissingExtraError: torchao is not installed.
        QuantizationError: A weight is not finite.
    """
    package = load_torchao()
    scales_of = package.PerRow() if by_row else package.PerTensor()
    config = package.Float8DynamicActivationFloat8WeightConfig(
        granularity=scales_of,
        activation_value_lb=_LEAST_PEAK,
        # With CUDA 12.9 the faster sum fails for some shapes, as torchao warns.
        mm_config=package.Float8MMConfig(use_fast_accum=not _cuda_is("12.9")),
        set_inductor_config=False,
    )
    codes, scales = _round_float8(state["weight"], by_row=by_row)
    return TorchaoLinear(geometry, {**state, "weight": codes, "weight_scale": scales}, config)


def load_torchao() -> Any:
    """Return torchao's module of techniques.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return import_module("torchao.quantization")
    except ModuleNotFoundError as error:
        missing = (error.name or "torchao").partition(".")[0]
        raise MissingExtraError(missing, "gpu") from error


def _round_float8(weight: Tensor, *, by_row: bool) -> tuple[Tensor, Tensor]:
    """Return codes of a weight `[outputs, inputs]` and FP32 scales, `[outputs, 1]` or `[1, 1]`."""
    if not torch.isfinite(weight).all():
        raise QuantizationError("a weight is not finite; the checkpoint is damaged")
    limit = torch.finfo(FLOAT8).max
    peaks = weight.abs().amax(1, keepdim=True)
    peaks = peaks if by_row else peaks.amax(0, keepdim=True)
    scales = (peaks / limit).clamp_min(torch.finfo(torch.float32).tiny)  # also where all is zero
    return (weight / scales).clamp(-limit, limit).to(FLOAT8), scales


def _cuda_is(version: str) -> bool:
    return (torch.version.cuda or "").startswith(version)
