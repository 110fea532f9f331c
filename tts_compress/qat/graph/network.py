"""ONNX graphs as torch modules, so that what is known only as a graph can be trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx
import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, pass_through
from tts_compress.qat.graph.operators import ARITHMETIC, Attributes, Operator, read_tensor
from tts_compress.qat.graph.shapes import SHAPES, repeats_values
from tts_compress.qat.graph.subgraph import Subgraph

OPERATORS: dict[str, Operator] = {**ARITHMETIC, **SHAPES}
"""Operators of the standard domain by name. Random ones are missing: noise has to be an input."""

_WEIGHTED = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "InstanceNormalization", "LayerNormalization", "MatMul"}
)
"""Operators whose constants are trained; any other constant is part of what the graph means."""

_ONCE_ATTRIBUTES = {
    "Clip": ("min", "max"),
    "Pad": ("pads", "value"),
    "Slice": ("starts", "ends", "axes"),
    "Split": ("split",),
    **dict.fromkeys(("Squeeze", "Unsqueeze"), ("axes",)),
    **dict.fromkeys((name for name in OPERATORS if name.startswith("Reduce")), ("axes",)),
}
"""Inputs, behind the first, that were attributes in earlier versions of an operator."""


def is_trainable(node: onnx.NodeProto) -> bool:
    """Return True if a node can be computed in torch."""
    known = node.domain in {"", "ai.onnx"} and node.op_type in OPERATORS
    return known and (node.op_type != "Resize" or repeats_values(node))


def find_operator(node: onnx.NodeProto, opset: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return the function that computes a node from its inputs, None for each that is left out.

    Raises:
        QuantizationError: The operator is not known here.
    """
    operator = OPERATORS[node.op_type] if is_trainable(node) else None
    attributes = Attributes(node, opset)
    if operator is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise QuantizationError(
            f"operator {name} of node '{node.name or node.output[0]}' cannot be trained; "
            "leave it outside of the part that is"
        )
    names = _ONCE_ATTRIBUTES.get(node.op_type, ())
    written = [attributes.get(name) for name in names] if attributes.keys() & names else []

    def compute(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        result = operator(attributes, *inputs, *written)
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

    Raises:
        QuantizationError: An operator, or the type of a constant, is unknown in torch.
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
        known: dict[str, Tensor | None] = {"": None, **self._positions}
        known |= {name: getattr(self, _attribute(name)) for name in self._real}
        known |= zip(self.inputs, values, strict=True)
        for step in self._steps:
            arguments = [known[name] for name in step.reads]
            for position, quantizer in step.rounding.inputs.items():
                arguments[position] = self.quantizers[_attribute(quantizer)](arguments[position])
            first, *others = step.compute(*arguments)
            if step.rounding.output is not None:
                first = self.quantizers[_attribute(step.rounding.output)](first)
            if step.rounding.kept is not None:
                first = self._on_grid(first, step.rounding.kept)
            # A node may make more than it is asked for.
            known |= {n: made for n, made in zip(step.makes, (first, *others), strict=False) if n}
            for name in step.last_read:
                del known[name]
        return tuple(value for name in self.outputs if (value := known[name]) is not None)

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
        step = (high - low) / 255 or 1.0
        zero, step = round(-low / step), step * grid.factor
        # A tenth of all codes has a tenth in the middle between two others: as integer kernels
        # do, codes are rounded, which count from 0, and not multiples of the step.
        codes = torch.div(values.detach(), step).add_(zero).round_().clamp_(0, 255)
        return pass_through(values, codes.sub_(zero).mul_(step))


def _steps(model: onnx.ModelProto, roundings: Mapping[str, Rounding]) -> list[_Step]:
    graph = model.graph
    opset = next(o.version for o in model.opset_import if o.domain in {"", "ai.onnx"})
    seen = {"", *(value.name for value in graph.output), *(t.name for t in graph.initializer)}
    steps: list[_Step] = []
    for node in reversed(graph.node):
        last = dict.fromkeys(name for name in (*node.input, *node.output) if name not in seen)
        seen |= last.keys()
        rounding = roundings.get(node.output[0], Rounding())
        compute = find_operator(node, opset)
        steps.append(_Step(compute, tuple(node.input), tuple(node.output), tuple(last), rounding))
    return steps[::-1]


def _attribute(name: str) -> str:
    """Return a graph's name as one that torch accepts of a parameter."""
    return "graph/" + name.replace(".", "/")
