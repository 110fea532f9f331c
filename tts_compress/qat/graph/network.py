"""ONNX graphs as torch modules, which can be trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import LEVELS
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, pass_through
from tts_compress.qat.graph.operators import (
    ARITHMETIC,
    Attributes,
    Operator,
    read_integers,
    read_tensor,
)
from tts_compress.qat.graph.subgraph import Subgraph


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    # On the processor, wherever the data is: whoever reads sizes needs them there.
    chosen = x.shape[attributes.get("start", 0) : attributes.get("end")]
    return torch.tensor(chosen, dtype=torch.int64)


def _reshape(attributes: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = read_integers(shape)
    if not attributes.get("allowzero", 0):
        sizes = [x.shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    return x.reshape(sizes)


def _unsqueeze(_: Attributes, x: Tensor, axes: Tensor) -> Tensor:
    chosen = read_integers(axes)
    for axis in sorted(axis % (x.ndim + len(chosen)) for axis in chosen):
        x = x.unsqueeze(axis)
    return x


def _split(attributes: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = attributes.get("axis", 0)
    if sizes is None:  # equal parts, of which the last may be shorter
        each = -(-x.shape[axis] // attributes.outputs)
        return x.tensor_split([*range(each, x.shape[axis], each)], axis)
    return x.tensor_split([*accumulate(read_integers(sizes))][:-1], axis)


def _slice(_: Attributes, x: Tensor, starts: Tensor, *others: Tensor | None) -> Tensor:
    ends, axes, steps = (None if o is None else read_integers(o) for o in (*others, None, None)[:3])
    first = read_integers(starts)
    along, by = axes or range(len(first)), steps or [1] * len(first)
    for axis, *bounds in zip(along, first, ends or [], by, strict=True):
        # Python counts from behind, and stops at the ends, just as ONNX does.
        positions = range(*slice(*bounds).indices(x.shape[axis]))
        if positions.step == 1:
            x = x.narrow(axis, positions.start, len(positions))
        else:
            chosen = torch.tensor(positions, dtype=torch.int64, device=x.device)
            x = x.index_select(axis, chosen)
    return x


def _pad(
    attributes: Attributes,
    x: Tensor,
    pads: Tensor,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    sizes = read_integers(pads)
    chosen = list(range(x.ndim)) if axes is None else read_integers(axes)
    mode = attributes.get("mode", "constant")
    ends = [(0, 0)] * x.ndim
    for i, axis in enumerate(chosen):
        ends[axis] = (sizes[i], sizes[i + len(chosen)])
    if mode == "constant":
        both = [size for pair in reversed(ends) for size in pair]
        return functional.pad(x, both, value=float(value or 0))
    for axis, pair in enumerate(ends):
        if any(pair):
            positions = np.pad(np.arange(x.shape[axis]), pair, mode)
            x = x.index_select(axis, torch.from_numpy(positions).to(x.device))
    return x


def _expand(_: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(np.broadcast_shapes(tuple(x.shape), tuple(read_integers(shape))))


def _gather(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    before: list[slice | Tensor] = [slice(None)] * (attributes.get("axis", 0) % x.ndim)
    return x[(*before, indices.to(x.device))]


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0)
    return x.gather(axis, indices.to(x.device, torch.int64) % x.shape[axis])


def _gather_slices(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    if attributes.get("batch_dims", 0):
        raise attributes.refuse("looks up batch by batch")
    return x[indices.to(x.device).unbind(-1)]


def _scatter_elements(
    attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor
) -> Tensor:
    if attributes.get("reduction", "none") != "none":
        raise attributes.refuse(f"joins values by '{attributes['reduction']}'")
    axis = attributes.get("axis", 0)
    return x.scatter(axis, indices.to(x.device, torch.int64) % x.shape[axis], updates)


def _scatter_slices(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    reduction = attributes.get("reduction", "none")
    if reduction not in {"none", "add"}:
        raise attributes.refuse(f"joins values by '{reduction}'")
    return x.index_put(indices.to(x.device).unbind(-1), updates, accumulate=reduction == "add")


def _resize(
    attributes: Attributes,
    x: Tensor,
    _: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
) -> Tensor:
    """Repeat values; other forms are not trained (`is_trainable`)."""
    if scales is None or not scales.numel() or sizes is not None or "axes" in attributes:
        raise attributes.refuse("is given sizes or axes, and not a factor for each axis")
    for axis, factor in enumerate(scales.tolist()):
        if factor != 1:
            positions = torch.arange(int(x.shape[axis] * factor), device=x.device)
            x = x.index_select(axis, (positions / factor).floor().long())
    return x


def repeats_values(node: onnx.NodeProto) -> bool:
    """Return True if a `Resize` takes the value before each position, rather than a mean."""
    stated = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    expected = {"coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
    return stated.get("mode", b"nearest") == b"nearest" and expected.items() <= stated.items()


def _range(_: Attributes, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    bounds = (start.item(), limit.item(), step.item())
    return torch.arange(*bounds, dtype=start.dtype, device=start.device)


def _fill(attributes: Attributes, shape: Tensor) -> Tensor:
    stored = attributes.get("value")
    value = torch.zeros(1) if stored is None else read_tensor(stored)
    return value.reshape(1).expand(read_integers(shape))


OPERATORS: dict[str, Operator] = {
    **ARITHMETIC,
    "Concat": lambda attributes, *parts: torch.cat(parts, attributes.get("axis", 0)),
    # Those of graphs are folded; noise that is fed brings others.
    "Constant": lambda attributes: read_tensor(attributes["value"]),
    "ConstantOfShape": _fill,
    "Dropout": lambda _, x, *__: x,
    "Expand": _expand,
    "Flatten": lambda attributes, x: x.reshape(x.shape[: attributes.get("axis", 1)].numel(), -1),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_slices,
    "Identity": lambda _, x: x,
    "NonZero": lambda _, x: x.nonzero().T,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_slices,
    "Shape": _shape,
    "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64),
    "Slice": _slice,
    "Split": _split,
    "Squeeze": lambda _, x, axes=None: x.squeeze(
        tuple(range(x.ndim) if axes is None else read_integers(axes))
    ),
    "Tile": lambda _, x, repeats: x.repeat(read_integers(repeats)),
    "Transpose": lambda attributes, x: x.permute(
        attributes.get("perm", list(reversed(range(x.ndim))))
    ),
    "Unsqueeze": _unsqueeze,
}
"""Operators of the standard domain by name. Random ones are missing: noise has to be an input."""

_WEIGHTED = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization", "MatMul"}
)
"""Operators whose constants are trained; any other constant is part of what the graph means."""


def is_trainable(node: onnx.NodeProto) -> bool:
    """Return True if a node can be computed in torch."""
    is_standard = node.domain in {"", "ai.onnx"} and node.op_type in OPERATORS
    return is_standard and (node.op_type != "Resize" or repeats_values(node))


def find_operator(node: onnx.NodeProto) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function that computes a node from its inputs, None for each that is left out."""
    if not is_trainable(node):
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise QuantizationError(
            f"operator {name} of node '{node.name or node.output[0]}' cannot be trained; "
            "leave it outside of the part that is"
        )
    operator, attributes = OPERATORS[node.op_type], Attributes(node)

    def compute(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        result = operator(attributes, *inputs)
        return result if isinstance(result, tuple) else (result,)

    return compute


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that codes stand for: those of a quantizer, times a factor."""

    quantizer: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """The rounding at one node."""

    inputs: Mapping[int, str] = field(default_factory=dict)
    """Quantizers of its inputs, weights included, by position; for this node alone."""

    output: str | None = None
    """Quantizer of its first output, for all who read it."""

    kept: Grid | None = None
    """The codes of its input, where its output stays in them."""


class _Step(NamedTuple):
    compute: Callable[..., tuple[Tensor, ...]]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    last_read: tuple[str, ...]
    """Tensors that nobody reads behind this step."""

    rounding: Rounding


class GraphNetwork(nn.Module):
    """A subgraph of an ONNX graph, computed in torch.

    The constants of its weighted operators are parameters, unless the rest of the graph reads them
    too; gradients flow from every output to every input and parameter.

    Args:
        subgraph: The nodes between two sets of tensors.
        roundings: Quantizers at each node that has any, by the node's first output.
        quantizers: The modules that round, by name; they train, move and are saved with the
            network.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        *,
        roundings: Mapping[str, Rounding] | None = None,
        quantizers: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.inputs, self.outputs = subgraph.inputs, subgraph.outputs
        graph = subgraph.model.graph
        weighted = [node for node in graph.node if node.op_type in _WEIGHTED]
        trained = {t for n in weighted for t in n.input[n.op_type != "MatMul" :]} - subgraph.shared
        constants = {tensor.name: read_tensor(tensor) for tensor in graph.initializer}
        self._real = [name for name, value in constants.items() if value.is_floating_point()]
        # Sizes and positions stay on the processor, wherever the data moves.
        self._positions = {n: value for n, value in constants.items() if n not in self._real}
        for name in self._real:
            if hasattr(self, _attribute(name)):
                raise QuantizationError(f"two constants of the graph are called like '{name}'")
            if name in trained:
                self.register_parameter(_attribute(name), nn.Parameter(constants[name]))
            else:
                self.register_buffer(_attribute(name), constants[name])
        self.quantizers = nn.ModuleDict(
            {_attribute(name): module for name, module in (quantizers or {}).items()}
        )
        self._steps = _steps(subgraph.model, roundings or {})

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs for the inputs, both in the order of their names."""
        tensors: dict[str, Tensor | None] = {"": None, **self._positions}
        tensors |= {name: getattr(self, _attribute(name)) for name in self._real}
        tensors |= zip(self.inputs, values, strict=True)
        for step in self._steps:
            arguments = [tensors[name] for name in step.reads]
            for position, quantizer in step.rounding.inputs.items():
                arguments[position] = self.quantizers[_attribute(quantizer)](arguments[position])
            first, *others = step.compute(*arguments)
            if step.rounding.output is not None:
                first = self.quantizers[_attribute(step.rounding.output)](first)
            if step.rounding.kept is not None:
                first = self._on_grid(first, step.rounding.kept)
            # A node may make more than it is asked for.
            outputs = zip(step.makes, (first, *others), strict=False)
            tensors |= {name: tensor for name, tensor in outputs if name}
            for name in step.last_read:
                del tensors[name]
        return tuple(value for name in self.outputs if (value := tensors[name]) is not None)

    def quantizer(self, name: str) -> nn.Module | None:
        """Return a quantizer by its name; None where this part of the graph has no use for it."""
        return dict(self.quantizers.items()).get(_attribute(name))

    def trained(self, name: str) -> nn.Parameter | None:
        """Return a constant by its name in the graph; None where it is not trained."""
        return self._parameters.get(_attribute(name))

    def _on_grid(self, values: Tensor, grid: Grid) -> Tensor:
        """Return values rounded to the codes of a quantizer, which gets no gradients from here."""
        quantizer = self.quantizer(grid.quantizer)
        assert isinstance(quantizer, ActivationFakeQuantize)
        if not quantizer.fake_quant_enabled[0]:
            return values
        low, high = quantizer.limits()
        step = (high - low) / LEVELS or 1.0
        zero, step = round(-low / step), step * grid.factor
        # A tenth of all codes has a tenth in the middle between two others: as integer kernels
        # do, codes are rounded, which count from 0, and not multiples of the step.
        codes = torch.div(values.detach(), step).add_(zero).round_().clamp_(0, LEVELS)
        return pass_through(values, codes.sub_(zero).mul_(step))


def _steps(model: onnx.ModelProto, roundings: Mapping[str, Rounding]) -> list[_Step]:
    graph = model.graph
    seen = {"", *(value.name for value in graph.output), *(t.name for t in graph.initializer)}
    steps: list[_Step] = []
    for node in reversed(graph.node):
        last = dict.fromkeys(name for name in (*node.input, *node.output) if name not in seen)
        seen |= last.keys()
        rounding = roundings.get(node.output[0], Rounding())
        names = (tuple(node.input), tuple(node.output), tuple(last))
        steps.append(_Step(find_operator(node), *names, rounding))
    return steps[::-1]


def _attribute(name: str) -> str:
    """Return a graph's name as one that torch accepts of a parameter."""
    return "graph/" + name.replace(".", "/")
