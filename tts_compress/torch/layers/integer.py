"""Layers that multiply integers: `int8` weights, activations rounded as they arrive.

The rounding of activations is dynamic (the range of this very input) or static (a range that
calibration chose). What comes out is FP32, so whatever stands between two layers stays as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tts_compress.errors import ModelError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.torch.layers.base import CompressedLayer, Geometry
from tts_compress.torch.layers.packing import pack_linear, unpack_linear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

__all__ = ["Int8Linear", "IntegerLayer", "activation_codes"]


def activation_codes(low: float, high: float) -> tuple[float, int]:
    """Return scale and zero point of `uint8` codes for a range.

    Args:
        low: The smallest value that is kept; zero is always inside.
        high: The largest.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / 255, float(torch.finfo(torch.float32).tiny))
    return scale, round(-low / scale)


class IntegerLayer(CompressedLayer):
    """Weights packed for integer kernels, and how activations are rounded.

    Args:
        geometry: Of the layer it stands for.
        state: `weight` (int8), `weight_scale` (FP32, one per output channel), `bias` where there
            is one, `input_scale` and `input_zero_point` where the rounding is static.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        static = "input_scale" in state
        super().__init__(
            geometry, Weights.INT8, Activations.STATIC if static else Activations.DYNAMIC
        )
        self.input_scale = float(state["input_scale"]) if static else None
        self.input_zero_point = int(state["input_zero_point"]) if static else 0

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Refuse to leave the CPU: weights are packed for its kernels, and would stay behind.

        Raises:
            ModelError: The layer is moved to another device.
        """
        if (device := fn(torch.empty(0)).device.type) != "cpu":
            raise ModelError(
                f"integer layers compute on CPUs and cannot move to {device!r}; move the original "
                "there and compress it again, or use int8-weight-only, fp16 or bf16"
            )
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return moved

    def named(self, codes: Tensor, scales: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
        """Return the tensors that a file keeps, by name."""
        state = {"weight": codes, "weight_scale": scales}
        if bias is not None:
            state["bias"] = bias.detach()
        if self.input_scale is not None:
            state["input_scale"] = torch.tensor(self.input_scale, dtype=torch.float64)
            state["input_zero_point"] = torch.tensor(self.input_zero_point, dtype=torch.int32)
        return state


class Int8Linear(IntegerLayer):
    """A linear layer on `[..., inputs]`."""

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        self._packed = pack_linear(state["weight"], state["weight_scale"], state.get("bias"))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[..., outputs]` in the type of the inputs."""
        # The usual case first: a decoder's step runs hundreds of layers for microseconds each.
        if inputs.dtype is torch.float32 and inputs.dim() > 1:
            return self._multiply(inputs)
        rows = inputs.float() if inputs.dim() > 1 else inputs.float().unsqueeze(0)
        outputs = self._multiply(rows).to(inputs.dtype)  # the kernels want rows
        return outputs if inputs.dim() > 1 else outputs.squeeze(0)

    def _multiply(self, values: Tensor) -> Tensor:
        if self.input_scale is None:
            outputs: Tensor = torch.ops.quantized.linear_dynamic(values, self._packed, False)
        else:
            outputs = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                values, self.input_scale, self.input_zero_point, self._packed
            )
        return outputs

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        return self.named(*unpack_linear(self._packed))
