"""Where a converted graph holds codes, told of the FP32 graph it is made from.

Training rounds in torch what the finished graph rounds in integers, at the very same tensors. This
follows, step by step, what `onnx.integer.emit` and `onnx.quantize.static` write.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tts_compress.onnx.graph import Graph, real
from tts_compress.onnx.integer.region import find_region, positive_factor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from tts_compress.onnx.integer.region import Region, Sum
    from tts_compress.onnx.quantize.convert import Conversion

__all__ = ["SIGMOID", "TANH", "CodePlan", "Grid", "Share", "plan_codes"]

SIGMOID = "sigmoid"
TANH = "tanh"
"""Quantizers whose ranges are those of the functions, whatever was observed."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The values that codes stand for: a quantizer's, times a factor."""

    quantizer: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A quantizer's range, as a share of the one observed of a tensor."""

    tensor: str
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CodePlan:
    """What is rounded where, by the first output of the node it happens at."""

    inputs: dict[str, dict[int, str]] = field(default_factory=dict)
    """By which quantizer an input is rounded, by position, for this node alone."""

    outputs: dict[str, str] = field(default_factory=dict)
    """By which quantizer the output is rounded, for all who read it."""

    slopes: dict[str, Grid] = field(default_factory=dict)
    """Of each LeakyRelu that answers in the codes of its input: those codes."""

    sums: dict[str, Sum] = field(default_factory=dict)
    """What is added up before each LeakyRelu that answers in codes of its own."""

    grids: dict[str, Grid] = field(default_factory=dict)
    """The codes of each tensor that a region holds as codes."""

    shares: dict[str, tuple[Share, ...]] = field(default_factory=dict)
    """Of each quantizer with a range of its own: the observed ranges that are the same."""


def plan_codes(conversion: Conversion) -> CodePlan:
    """Return what the converted graph rounds with ranges known before."""
    graph = Graph(conversion.graph)
    if conversion.form == "qoperator":
        return _Region(graph, find_region(graph, conversion.static), conversion.ranges).follow()
    return _plan_pairs(graph, conversion)


class _Region:
    """Follows a region's nodes in order, as its emission does."""

    def __init__(
        self, graph: Graph, region: Region, ranges: Mapping[str, tuple[float, float]]
    ) -> None:
        self._graph = graph
        self._region = region
        self._codes = CodePlan()
        self._groups = _side_by_side(region.nodes, ranges)

    def follow(self) -> CodePlan:
        """Return what is rounded where."""
        made: set[str] = set()
        for node in self._region.nodes:
            for position, tensor in enumerate(node.input):
                if tensor and tensor not in made and self._graph.constant(tensor) is None:
                    name = self._own(tensor)
                    self._codes.inputs.setdefault(node.output[0], {})[position] = name
                    self._codes.grids[tensor] = Grid(name)
            self._follow(node)
            made.update(node.output)
        return self._codes

    def _follow(self, node: onnx.NodeProto) -> None:
        made, region, grids = node.output[0], self._region, self._codes.grids
        if made in region.skipped or made in region.real:
            return
        if made in region.clipped:  # rounded behind the Relu, which comes to the same
            (relu,) = self._graph.readers(made)
            grids[made] = Grid(self._own(relu.output[0]))
        elif made in region.sums:
            self._follow_sum(node, region.sums[made])
        elif (same := self._unchanged(node)) is not None:
            grids[made] = same
            if node.op_type == "LeakyRelu":
                self._codes.slopes[made] = same
        elif node.op_type in {"Tanh", "Sigmoid"}:
            self._round(made, TANH if node.op_type == "Tanh" else SIGMOID)
        else:
            self._round(made, self._own(made))

    def _unchanged(self, node: onnx.NodeProto) -> Grid | None:
        """Return the codes that a node answers in if they are those of its input."""
        sources = [t for t in node.input if t and self._graph.constant(t) is None]
        grids = {self._codes.grids[tensor] for tensor in sources}
        factor = positive_factor(self._graph, node)
        kept = {
            "LeakyRelu": True,
            "Relu": node.input[0] not in self._region.clipped,
            "Concat": True,
        }
        if len(grids) != 1 or (factor is None and not kept.get(node.op_type, False)):
            return None
        (grid,) = grids
        return Grid(grid.quantizer, grid.factor * (factor or 1.0))

    def _follow_sum(self, node: onnx.NodeProto, sum_: Sum) -> None:
        """Round what a LeakyRelu makes of a sum in the range observed of the sum."""
        slope = real(node, "alpha", 0.01)
        name = f"{node.output[0]}/sum"
        self._codes.shares[name] = (Share(sum_.made, sum_.factor * slope, sum_.factor),)
        self._codes.sums[node.output[0]] = sum_
        self._round(node.output[0], name)

    def _round(self, tensor: str, quantizer: str) -> None:
        self._codes.outputs[tensor] = quantizer
        self._codes.grids[tensor] = Grid(quantizer)

    def _own(self, tensor: str) -> str:
        """Return the quantizer with a tensor's observed range; what is joined shares one."""
        group = self._groups.get(tensor, (tensor,))
        self._codes.shares[group[0]] = tuple(Share(member) for member in group)
        return group[0]


def _side_by_side(
    nodes: Sequence[onnx.NodeProto], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, tuple[str, ...]]:
    """Return the tensors that share one range because they are joined, for each of them."""
    groups: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        tensors = [*node.input, node.output[0]]
        if node.op_type == "Concat" and all(tensor in ranges for tensor in tensors):
            members = (m for tensor in tensors for m in groups.get(tensor, (tensor,)))
            group = tuple(dict.fromkeys(members))
            groups |= dict.fromkeys(group, group)
    return groups


def _plan_pairs(graph: Graph, conversion: Conversion) -> CodePlan:
    """Return what the portable form rounds: what flows into and out of each static operator."""
    static = {d.output: d for d in conversion.decisions if d.activations == "static"}
    codes = CodePlan()

    def own(tensor: str) -> str:
        codes.shares[tensor] = (Share(tensor),)
        codes.grids[tensor] = Grid(tensor)
        return tensor

    for node in graph.nodes:
        made = node.output[0] if node.output else ""
        decision = static.get(made)
        if decision is None:
            continue
        read = list(node.input) if decision.weight is None else [node.input[0]]
        for position, tensor in enumerate(read):
            if tensor not in static and graph.constant(tensor) is None:
                codes.inputs.setdefault(made, {})[position] = own(tensor)
        if made not in graph.outputs:
            codes.outputs[made] = own(made)
    return codes
