"""The shape of a layer, and the operator it computes as a function of any weight."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

_KINDS = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d, nn.Embedding)


def operator_of(module: nn.Module) -> str | None:
    """Return the name of the operator a module computes; None if no compressed layer does.

    A subclass counts if it has its base class's `forward`; with its own it may do anything.
    """
    for kind in _KINDS:
        if isinstance(module, kind) and type(module).forward is kind.forward:
            return kind.__name__
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything about a layer but its weights."""

    operator: str
    """`Linear`, `Conv1d`, `ConvTranspose1d` or `Embedding`."""

    shape: tuple[int, ...]
    """Shape of the weight, as torch lays it out."""

    stride: int = 1
    padding: int = 0
    """Samples on each side; -1 for `same` with an even receptive field, one more behind."""

    dilation: int = 1
    groups: int = 1
    output_padding: int = 0
    padding_mode: str = "zeros"

    @staticmethod
    def of(module: nn.Module) -> "Geometry":
        """Return the geometry of a torch layer, which may be without memory (`meta`).

        A module that replaces one has its `geometry`.
        """
        if isinstance(known := getattr(module, "geometry", None), Geometry):
            return known
        operator = operator_of(module)
        assert operator is not None, type(module)
        shape = tuple(module.weight.shape)  # type: ignore[arg-type]
        if not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            return Geometry(operator=operator, shape=shape)
        padding = module.padding
        if isinstance(padding, str):
            total = module.dilation[0] * (module.kernel_size[0] - 1)
            padding = (0 if padding == "valid" else total // 2 if total % 2 == 0 else -1,)
        return Geometry(
            operator=operator,
            shape=shape,
            stride=module.stride[0],
            padding=padding[0],
            dilation=module.dilation[0],
            groups=module.groups,
            output_padding=module.output_padding[0],
            padding_mode=module.padding_mode,
        )

    @property
    def channel_axis(self) -> int:
        """The axis of the weight's output channels, or of an embedding's rows."""
        return 1 if self.operator == "ConvTranspose1d" else 0

    @property
    def channel_size(self) -> int:
        """The number of weights of one output channel."""
        return math.prod(self.shape) // self.shape[self.channel_axis]

    def attributes(self) -> dict[str, Any]:
        """Return the public attributes that torch gives such a layer.

        Upstream code reads them: EnCodec pads by its convolutions' `kernel_size` and `stride`.
        """
        first, second = self.shape[:2]
        if self.operator == "Linear":
            return {"in_features": second, "out_features": first}
        if self.operator == "Embedding":
            return {"num_embeddings": first, "embedding_dim": second}
        inputs, outputs = second * self.groups, first
        if self.operator == "ConvTranspose1d":
            inputs, outputs = first, second * self.groups
        return {
            "in_channels": inputs,
            "out_channels": outputs,
            "kernel_size": (self.shape[2],),
            "stride": (self.stride,),
            "padding": (self.padding,) if self.padding >= 0 else "same",
            "dilation": (self.dilation,),
            "groups": self.groups,
            "output_padding": (self.output_padding,),
            "padding_mode": self.padding_mode,
        }


def apply_operator(
    geometry: Geometry, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output of a linear layer or a convolution for inputs of its weight's type."""
    if geometry.operator == "Linear":
        return F.linear(inputs, weight, bias)
    if geometry.operator == "ConvTranspose1d":
        return F.conv_transpose1d(
            inputs,
            weight,
            bias,
            geometry.stride,
            geometry.padding,
            geometry.output_padding,
            geometry.groups,
            geometry.dilation,
        )
    padded, inner = pad(geometry, inputs)
    window = (inner.stride, inner.padding, inner.dilation, inner.groups)
    return F.conv1d(padded, weight, bias, *window)


def pad(geometry: Geometry, inputs: Tensor) -> tuple[Tensor, Geometry]:
    """Apply the padding that a kernel cannot; return the geometry that is left for the kernel."""
    before, inner = outer_padding(geometry)
    if not any(before):
        return inputs, inner
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    return F.pad(inputs, before, mode), inner


def outer_padding(geometry: Geometry) -> tuple[tuple[int, int], Geometry]:
    """Return a convolution's padding outside the kernel, and the geometry that is left for it.

    Kernels pad with zeros, the same number on both sides.
    """
    if geometry.padding >= 0 and geometry.padding_mode == "zeros":
        return (0, 0), geometry
    total = 2 * geometry.padding
    if geometry.padding < 0:
        total = geometry.dilation * (geometry.shape[2] - 1)
    return (total // 2, total - total // 2), replace(geometry, padding=0, padding_mode="zeros")


def plain_view(signal: Tensor) -> Tensor:
    """Return the view of a signal `[..., channels, time]` whose elements lie in order.

    Integer convolutions take and return signals with channels last in memory. Elementwise kernels
    of torch are much slower on such a tensor than on its transposed view, which is a plain one.
    """
    if signal.is_contiguous():
        return signal
    transposed = signal.transpose(-1, -2)
    return transposed if transposed.is_contiguous() else signal
