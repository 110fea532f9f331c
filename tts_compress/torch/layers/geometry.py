"""The shape of a layer, and the operator it computes as a function of any weight."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.Embedding)
RECURRENT = (nn.LSTM, nn.GRU)
_GATES = {"LSTM": 4, "GRU": 3}

_COMPUTING = ("forward", "__call__", "_conv_forward", "_output_padding")
"""Methods of torch's layers that a subclass may override to compute something else."""


def operator_of(module: nn.Module) -> str | None:
    """Return the name of the operator a module computes; None if no compressed layer does.

    A subclass counts if it computes by its base class's methods; with its own, or a `forward` that
    was put on the module itself, it may do anything.
    """
    kind = next((kind for kind in (*KINDS, *RECURRENT) if isinstance(module, kind)), None)
    return kind.__name__ if kind is not None and computes_as(module, kind) else None


def computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a module computes by the methods of one of torch's classes."""
    if "forward" in vars(module):
        return False
    methods = ((getattr(each, name, None) for each in (type(module), kind)) for name in _COMPUTING)
    return all(method is original for method, original in methods)


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Everything about a layer but its weights."""

    operator: str
    """Name of one of torch's modules: `Linear`, `Conv1d`, `LSTM`."""

    shape: tuple[int, ...]
    """Shape of the weight, as torch lays it out; of a recurrent layer, which has several, their
    number of values."""

    stride: int = 1
    padding: int = 0
    """Zeros on each side, which kernels add."""

    outer_padding: tuple[int, ...] = (0, 0)
    """Padding in front and behind that kernels cannot do: no zeros, or not the same number. The
    last axis comes first."""

    padding_mode: str = "zeros"
    dilation: int = 1
    groups: int = 1
    output_padding: int = 0
    dtype: torch.dtype = field(default=torch.float32, compare=False)
    """Type of the original's weight, which a table's rows have, too."""

    attributes: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The public attributes that torch gives such a layer.

    Upstream code reads them: EnCodec pads by its convolutions' `kernel_size` and `stride`.
    """

    @staticmethod
    def of(module: nn.Module) -> "Geometry":
        """Return the geometry of a torch layer, which may be without memory (`meta`).

        A module that replaces one has its `geometry`.
        """
        if isinstance(geometry := getattr(module, "geometry", None), Geometry):
            return geometry
        operator = operator_of(module)
        assert operator is not None, type(module)
        names = getattr(nn, operator).__constants__ + getattr(module, "upstream_names", [])
        weights = weights_of(module)
        shape = weights[0].shape if len(weights) == 1 else (sum(w.numel() for w in weights),)
        plain = Geometry(
            operator=operator,
            shape=tuple(shape),
            dtype=weights[0].dtype,
            attributes={name: getattr(module, name) for name in names},
        )
        if isinstance(module, nn.Conv2d):  # its windows are attributes
            is_kernels = module.padding_mode == "zeros"
            outer = (0, 0) if is_kernels else tuple(module._reversed_padding_repeated_twice)  # noqa: SLF001
            return replace(plain, outer_padding=outer, padding_mode=module.padding_mode)
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

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """The shapes of a recurrent layer's matrices, in the order that torch has them."""
        told = self.attributes
        hidden, proj = told["hidden_size"], told["proj_size"]
        rows, out, ways = _GATES[self.operator] * hidden, proj or hidden, 1 + told["bidirectional"]
        shapes = []
        for layer in range(told["num_layers"]):
            width = out * ways if layer else told["input_size"]
            shapes += [(rows, width), (rows, out), *([(proj, hidden)] if proj else [])] * ways
        return shapes


def weights_of(module: nn.Module) -> list[Tensor]:
    """Return the weight of a layer, or the matrices of a recurrent one."""
    return _parts(module, "weight")


def bias_of(module: nn.Module) -> Tensor | None:
    """Return the bias of a layer, or those of a recurrent one behind each other; None without."""
    biases = _parts(module, "bias")
    return torch.cat(biases) if len(biases) > 1 else next(iter(biases), None)


def tied_layers(root: nn.Module) -> dict[str, str]:
    """Return the first layer with the same weight by the names of the others that share it."""
    # Held until all are compared: one that is computed at each access leaves its id to the next.
    held = {name: weights_of(m)[0] for name, m in root.named_modules() if operator_of(m)}
    first: dict[int, str] = {}
    leaders = {name: first.setdefault(id(weight), name) for name, weight in held.items()}
    return {name: leader for name, leader in leaders.items() if leader != name}


def _parts(module: nn.Module, word: str) -> list[Tensor]:
    names = [word]
    if isinstance(module, RECURRENT):
        listed = chain.from_iterable(module._all_weights)  # noqa: SLF001  as torch's kernels take them
        names = [name for name in listed if name.startswith(word)]
    return [part for name in names if (part := getattr(module, name, None)) is not None]


def apply_operator(
    geometry: Geometry, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Return the output of a linear layer or a convolution for inputs of its weight's type."""
    if geometry.operator == "Linear":
        return F.linear(inputs, weight, bias)
    if geometry.operator == "Conv2d":
        told = geometry.attributes
        around = 0 if any(geometry.outer_padding) else told["padding"]
        across = (told["stride"], around, told["dilation"], told["groups"])
        return F.conv2d(pad(geometry, inputs), weight, bias, *across)
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
