"""Convolutions with one tap, which are linear layers along the channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.torch.layers.base import Geometry
from tts_compress.torch.layers.integer import Int8Linear, IntegerLayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["Int8PointwiseConv1d", "is_pointwise"]


def is_pointwise(geometry: Geometry) -> bool:
    """Return whether a layer is a convolution that makes each frame of one frame."""
    window = (geometry.stride, geometry.padding, geometry.groups)
    return geometry.operator == "Conv1d" and geometry.shape[2:] == (1,) and window == (1, 0, 1)


class Int8PointwiseConv1d(IntegerLayer):
    """A convolution with one tap on `[batch, inputs, time]` or `[inputs, time]`.

    The kernels for linear layers are faster than onednn's for convolutions; most convolutions of
    NaturalSpeech2's estimator are such, which `make bench-torch` times as a whole.

    Args:
        geometry: Of the layer it stands for.
        state: As for `IntegerLayer`.
    """

    def __init__(self, geometry: Geometry, state: Mapping[str, Tensor]) -> None:
        super().__init__(geometry, state)
        plain = Geometry(operator="Linear", shape=geometry.shape[:2])
        self.linear = Int8Linear(plain, {**state, "weight": state["weight"].squeeze(-1)})

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[batch, outputs, time]` in the type of the inputs."""
        return self.linear(inputs.transpose(-1, -2)).transpose(-1, -2)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a file keeps."""
        state = self.linear.state()
        return state | {"weight": state["weight"].unsqueeze(-1)}
