"""The shape of a layer, and the operator it computes as a function of any weight."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """Zeros on each side, which kernels add."""

    outer_padding: tuple[int, int] = (0, 0)
    """Padding in front and behind that kernels cannot do: no zeros, or not the same number."""

    padding_mode: str = "zeros"
    dilation: int = 1
    groups: int = 1
    output_padding: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The public attributes that torch gives such a layer.

    Upstream code reads them: EnCodec pads by its convolutions' `kernel_size` and `stride`.
    """

    @staticmethod
    def of(module: nn.Module) -> "Geometry":
        """Return the geometry of a torch layer, which may be without memory (`meta`).

        A module that replaces one has its `geometry`.
        """
        if isinstance(known := getattr(module, "geometry", None), Geometry):
            return known
        operator = operator_of(module)
        assert operator is not None, type(module)
        names = getattr(nn, operator).__constants__
        plain = Geometry(
            operator=operator,
            shape=tuple(module.weight.shape),  # type: ignore[arg-type]
            attributes={name: getattr(module, name) for name in names},
        )
        if not isinstance(module, nn.Conv1d | nn.ConvTranspose1d):
            return plain
        if isinstance(module.padding, str):  # `same` or `valid`
            before, after = module._reversed_padding_repeated_twice  # noqa: SLF001
        else:
            before = after = module.padding[0]
        is_kernels = before == after and module.padding_mode == "zeros"
        return replace(
            plain,
            stride=module.stride[0],
            padding=before if is_kernels else 0,
            outer_padding=(0, 0) if is_kernels else (before, after),
            padding_mode=module.padding_mode,
            dilation=module.dilation[0],
            groups=module.groups,
            output_padding=module.output_padding[0],
        )

    @property
    def channel_axis(self) -> int:
        """The axis of the weight's output channels, or of an embedding's rows."""
        return 1 if self.operator == "ConvTranspose1d" else 0


def apply_operator(
    geometry: Geometry, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output of a linear layer or a convolution for inputs of its weight's type."""
    if geometry.operator == "Linear":
        return F.linear(inputs, weight, bias)
    stride, padding, dilation = geometry.stride, geometry.padding, geometry.dilation
    if geometry.operator == "ConvTranspose1d":
        window = (stride, padding, geometry.output_padding, geometry.groups, dilation)
        return F.conv_transpose1d(inputs, weight, bias, *window)
    padded = pad(geometry, inputs)
    return F.conv1d(padded, weight, bias, stride, padding, dilation, geometry.groups)


def pad(geometry: Geometry, inputs: Tensor) -> Tensor:
    """Return a convolution's inputs with the padding that its kernel cannot do."""
    if not any(geometry.outer_padding):
        return inputs
    mode = "constant" if geometry.padding_mode == "zeros" else geometry.padding_mode
    return F.pad(inputs, geometry.outer_padding, mode)


def plain_view(signal: Tensor) -> Tensor:
    """Return the view of a signal `[..., channels, time]` whose elements lie in order.

    Integer convolutions take and return signals with channels last in memory. Elementwise kernels
    of torch are much slower on such a tensor than on its transposed view, which is a plain one.
    """
    if signal.is_contiguous():
        return signal
    transposed = signal.transpose(-1, -2)
    return transposed if transposed.is_contiguous() else signal
