"""The student: a subgraph in torch that rounds the tensors and weights that its conversion rounds.

It rounds the same values in the same ranges, but not with the same arithmetic: what is judged is
the converted graph itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Range
from tts_compress.numerics.weights import Blocks
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer.region import Region, find_region, positive_factor
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.quantize.convert import Conversion
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    BlockFakeQuantize,
    DynamicFakeQuantize,
    FakeQuantize,
    WeightFakeQuantize,
    pass_through,
)
from tts_compress.qat.graph.network import GraphNetwork, Grid, Rounding, Subgraph
from tts_compress.recipes.recipe import Calibration
from tts_compress.torch.layers.checkpoint import STORED_TYPES
from tts_compress.torch.layers.geometry import Geometry

_FIXED: dict[str, Range] = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 128 / 127)}
"""Quantizers with the range of a function, whatever was observed."""


class ObservedShare(NamedTuple):
    """The range of a quantizer: that observed of a tensor, times a factor at each end."""

    tensor: str
    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True)
class RoundingPlan:
    """The roundings of a converted graph in calibrated ranges, by names of the FP32 graph."""

    roundings: dict[str, Rounding] = field(default_factory=dict)
    """Roundings by the first output of the node."""

    shares: dict[str, tuple[ObservedShare, ...]] = field(default_factory=dict)
    """Observed ranges that are the same, for each quantizer with a range of its own."""

    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensors that share one range because they are joined, for each of them."""

    def own(self, tensor: str) -> str:
        """Return the quantizer with a tensor's observed range."""
        group = self.joined.get(tensor, (tensor,))
        self.shares[group[0]] = tuple(ObservedShare(member) for member in group)
        return group[0]

    def range(self, quantizer: str, conversion: Conversion) -> Range:
        """Return the range that a quantizer starts with."""
        shares, ranges = self.shares[quantizer], conversion.ranges
        low = min(ranges[share.tensor][0] * share.low for share in shares)
        return low, max(ranges[share.tensor][1] * share.high for share in shares)


class StoredFakeQuantize(FakeQuantize):
    """Rounds a weight that is stored as a 16-bit float to values of that type."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight, rounded or not."""
        if not self.fake_quant_enabled[0]:
            return weight
        return pass_through(weight, weight.detach().to(self.kind).to(weight.dtype))


def plan_rounding(conversion: Conversion) -> RoundingPlan:
    """Return the roundings of the converted graph in calibrated ranges."""
    graph, plan = Graph(conversion.graph), RoundingPlan()
    if conversion.form == "qoperator":
        _plan_region(graph, conversion, plan)
        return plan
    static = {d.output: d for d in conversion.decisions if d.activations == "static"}
    for node in graph.nodes:
        result = node.output[0] if node.output else ""
        if result in static:
            read = node.input if static[result].weight is None else node.input[:1]
            data = {i: t for i, t in enumerate(read) if graph.constant(t) is None}
            inputs = {i: plan.own(tensor) for i, tensor in data.items() if tensor not in static}
            output = None if result in graph.outputs else plan.own(result)
            plan.roundings[result] = Rounding(inputs=inputs, output=output)
    return plan


def _plan_region(graph: Graph, conversion: Conversion, plan: RoundingPlan) -> None:
    """Follow the nodes that compute on codes, in order."""
    region = find_region(graph, conversion.static)
    for node in region.nodes:
        tensors = [*node.input, node.output[0]]
        if node.op_type == "Concat" and all(tensor in conversion.ranges for tensor in tensors):
            members = (m for tensor in tensors for m in plan.joined.get(tensor, (tensor,)))
            group = tuple(dict.fromkeys(members))
            plan.joined.update(dict.fromkeys(group, group))
    grids: dict[str, Grid] = {}
    made_inside: set[str] = set()
    for node in region.nodes:
        result = node.output[0]
        data = {i: t for i, t in enumerate(node.input) if t and graph.constant(t) is None}
        inputs = {i: plan.own(tensor) for i, tensor in data.items() if tensor not in made_inside}
        grids |= {data[i]: Grid(name) for i, name in inputs.items()}
        sources = {grids.get(tensor) for tensor in data.values()}
        source, factor = sources.pop(), _factor(graph, region, node)
        output: str | None = None
        kept: Grid | None = None
        if result in region.sums:
            # A LeakyRelu's output for a sum is rounded in the range observed for the sum.
            sum_, slope = region.sums[result], attribute(node, "alpha", 0.01)
            output = f"{result}/sum"
            plan.shares[output] = (ObservedShare(sum_.total, sum_.factor * slope, sum_.factor),)
        elif result in region.clipped:  # rounded behind the Relu, which comes to the same
            grids[result] = Grid(plan.own(graph.readers(result)[0].output[0]))
        elif factor is not None and source is not None and not sources:
            grids[result] = Grid(source.quantizer, source.factor * factor)
            kept = grids[result] if node.op_type == "LeakyRelu" else None
        elif result not in region.skipped and result not in region.real:
            output = node.op_type if node.op_type in _FIXED else plan.own(result)
        if output is not None:
            grids[result] = Grid(output)
        made_inside.update(node.output)
        plan.roundings[result] = Rounding(inputs=inputs, output=output, kept=kept)


def _factor(graph: Graph, region: Region, node: onnx.NodeProto) -> float | None:
    """Return the factor a node multiplies its input by, if the input's codes may be kept."""
    is_clipping = node.op_type == "Relu" and node.input[0] in region.clipped
    if node.op_type in {"Concat", "LeakyRelu", "Relu"} and not is_clipping:
        return 1.0
    return positive_factor(graph, node)


def build_student(
    conversion: Conversion,
    subgraph: Subgraph,
    *,
    calibration: Calibration,
    learned_ranges: bool = False,
) -> GraphNetwork:
    """Return a subgraph of a prepared graph that rounds as its converted form will.

    Ranges start as post-training calibration chose them; their observers are off.
    """
    plan = plan_rounding(conversion)
    decisions = {d.output: d for d in conversion.decisions if d.weights != "float32"}
    constants = {tensor.name: tensor for tensor in subgraph.model.graph.initializer}
    quantizers: dict[str, nn.Module] = {}
    roundings: dict[str, Rounding] = {}
    for node in subgraph.model.graph.node:
        result = node.output[0]
        rounding = plan.roundings.get(result, Rounding())
        inputs = dict(rounding.inputs)
        for name in (*inputs.values(), rounding.output, rounding.kept and rounding.kept.quantizer):
            if name and name not in quantizers:
                learned = learned_ranges and name not in _FIXED
                quantizers[name] = activation = ActivationFakeQuantize(calibration, learned=learned)
                activation.set_limits(_FIXED.get(name) or plan.range(name, conversion))
                activation.observer_enabled.zero_()
        if (decision := decisions.get(result)) is not None and decision.weight is not None:
            inputs[list(node.input).index(decision.weight)] = name = f"{result}.weight"
            weight = _weight_quantizer(node, decision, constants[decision.weight])
            if decision.weights == "int4":
                assert isinstance(weight, WeightFakeQuantize)
                blocks = _blocks(conversion, decision, weight)
                weight = BlockFakeQuantize(blocks, axis=weight.axis, phases=weight.phases)
            quantizers[name] = weight
            if decision.activations == "dynamic":
                inputs[0] = name = f"{node.input[0]}.dynamic"
                quantizers[name] = DynamicFakeQuantize()
        roundings[result] = replace(rounding, inputs=inputs)
    if not any(isinstance(module, WeightFakeQuantize) for module in quantizers.values()):
        raise QuantizationError(
            "no weight of the part that is trained is rounded to integers; name its modules in "
            "the recipe"
        )
    network = GraphNetwork(subgraph, roundings=roundings, quantizers=quantizers)
    with torch.no_grad():  # weights move no farther than it takes to be rounded to their codes
        for decision, quantizer, parameter in _trained_blocks(conversion, network):
            blocks = _blocks(conversion, decision, quantizer)
            parameter.copy_(quantizer.start(parameter, blocks))
    return network


def _weight_quantizer(
    node: onnx.NodeProto, decision: Decision, stored: onnx.TensorProto
) -> FakeQuantize:
    if decision.activations == "float16":
        raise QuantizationError(
            f"module '{decision.module}' computes in float16, which is not trained; "
            "give it integers in the recipe, or leave it outside of the part that is"
        )
    if decision.weights in STORED_TYPES:
        return StoredFakeQuantize(STORED_TYPES[decision.weights])
    is_static, phases = decision.activations == "static", None
    if is_static and node.op_type == "ConvTranspose":
        (stride,) = attribute(node, "strides", (1,))
        phases = Geometry(operator="ConvTranspose1d", shape=tuple(stored.dims), stride=stride)
    multiplied = is_static or decision.label == "MatMul int8/dynamic"
    return WeightFakeQuantize(axis=decision.axis, multiplied=multiplied, phases=phases)


def _blocks(
    conversion: Conversion, decision: Decision, quantizer: WeightFakeQuantize
) -> Blocks[Tensor]:
    """Return what post-training quantization makes of a weight."""
    stored = (t for t in conversion.graph.graph.initializer if t.name == decision.weight)
    rows = quantizer.channels(torch.tensor(numpy_helper.to_array(next(stored))))
    blocks = conversion.codes.blocks(decision.output, rows.numpy())
    assert blocks is not None
    return Blocks(*map(torch.from_numpy, (blocks.codes, blocks.factors, blocks.scales)))


def _trained_blocks(
    conversion: Conversion, network: GraphNetwork
) -> Iterator[tuple[Decision, BlockFakeQuantize, nn.Parameter]]:
    """Yield the operators of a network whose weights have four bits and are trained."""
    for decision in conversion.decisions:
        quantizer = network.quantizer(f"{decision.output}.weight")
        weight = network.trained(decision.weight) if decision.weight else None
        if isinstance(quantizer, BlockFakeQuantize) and weight is not None:
            yield decision, quantizer, weight


def learned_conversion(conversion: Conversion, student: GraphNetwork) -> Conversion:
    """Return a conversion with a student's weights and ranges in place of the original ones."""
    graph, ranges = copy_model(conversion.graph), dict(conversion.ranges)
    for tensor in graph.graph.initializer:
        if (values := student.trained(tensor.name)) is not None:
            _check_finite(tensor.name, values)
            tensor.CopyFrom(numpy_helper.from_array(values.detach().cpu().numpy(), tensor.name))
    for name, shares in plan_rounding(conversion).shares.items():
        if (quantizer := student.quantizer(name)) is None:
            continue
        assert isinstance(quantizer, ActivationFakeQuantize)
        low, high = quantizer.limits()
        _check_finite(name, torch.tensor([low, high]))
        for share in shares:
            before = ranges[share.tensor]
            ranges[share.tensor] = (
                low / share.low if share.low else before[0],
                high / share.high if share.high else before[1],
            )
    chosen = dict(conversion.chosen)
    for decision, rounding, weight in _trained_blocks(conversion, student):
        blocks = rounding.blocks(weight)
        arrays = (part.cpu().numpy() for part in (blocks.codes, blocks.factors, blocks.scales))
        chosen[decision.output] = Blocks(*arrays)
    return replace(conversion, graph=graph, ranges=ranges, chosen=chosen)


def _check_finite(name: str, values: Tensor) -> None:
    if not values.isfinite().all():
        raise QuantizationError(
            f"training left '{name}' with values that are not finite; train with a lower learning "
            "rate"
        )
