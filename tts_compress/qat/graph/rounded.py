"""A graph's part in torch, rounded where and how its converted form is."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import integers, real
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    DynamicFakeQuantize,
    HistogramObserver,
    WeightFakeQuantize,
)
from tts_compress.qat.graph.code_plan import SIGMOID, TANH, plan_codes
from tts_compress.qat.graph.network import GraphNetwork
from tts_compress.qat.graph.node import CodeProducts, NodeQuantizers
from tts_compress.qat.graph.operators import read_tensor
from tts_compress.qat.graph.pairs import (
    LeakySumFakeQuantize,
    ProductFakeQuantize,
    SumFakeQuantize,
)
from tts_compress.qat.graph.quantizers import (
    FixedFakeQuantize,
    GridOf,
    SlopeFakeQuantize,
    StoredFakeQuantize,
)
from tts_compress.qat.weight_format import WeightFormat
from tts_compress.torch.layers.geometry import Geometry

if TYPE_CHECKING:
    import onnx
    from torch import Tensor

    from tts_compress.onnx.quantize.convert import Conversion
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.qat.graph.code_plan import Grid
    from tts_compress.qat.graph.part import GraphPart
    from tts_compress.recipes.recipe import Calibration

__all__ = ["rounded_network"]

_Module = TypeVar("_Module", bound=nn.Module)

_PAIRS = {"Add": SumFakeQuantize, "Mul": ProductFakeQuantize}

_STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def rounded_network(
    conversion: Conversion,
    part: GraphPart,
    *,
    calibration: Calibration,
    learned_ranges: bool = False,
) -> GraphNetwork:
    """Return a part of a prepared graph that rounds as its converted form will.

    Args:
        conversion: What was decided and observed; not changed.
        part: Of its graph.
        calibration: How ranges are made of what observers see. They are off: ranges start as
            post-training calibration chose them.
        learned_ranges: Whether ranges go on by gradients.

    Raises:
        QuantizationError: Nothing in that part is rounded, or in a way that cannot be trained.
    """
    build = _Builder(conversion, part, calibration, learned_ranges=learned_ranges)
    roundings = {}
    constants = {tensor.name: tensor for tensor in part.constants}
    for node in part.nodes:
        found = build.node(node, constants)
        if found is not None:
            roundings[node.output[0]] = found
    if not any(rounding.weight is not None for rounding in roundings.values()):
        raise QuantizationError(
            "no weight of the part that is trained is rounded to integers; name its modules in "
            "the recipe"
        )
    network = GraphNetwork(part, roundings=roundings, quantizers=build.quantizers)
    for module in network.modules():
        if isinstance(module, ActivationFakeQuantize):
            module.observer_enabled.zero_()
    return network


class _Builder:
    """Makes each quantizer once, when the first node needs it."""

    def __init__(
        self,
        conversion: Conversion,
        part: GraphPart,
        calibration: Calibration,
        *,
        learned_ranges: bool,
    ) -> None:
        self.quantizers: dict[str, nn.Module] = {}
        self._conversion = conversion
        self._codes = plan_codes(conversion)
        self._calibration = calibration
        self._learned = learned_ranges
        self._present = {*part.inputs, *(made for node in part.nodes for made in node.output)}
        self._decisions = {d.output: d for d in conversion.decisions if d.weight is not None}

    def node(
        self, node: onnx.NodeProto, constants: dict[str, onnx.TensorProto]
    ) -> NodeQuantizers | None:
        """Return what is rounded where a node computes; None for nothing."""
        made = node.output[0]
        inputs: dict[int, nn.Module] = {
            position: self._activation(name)
            for position, name in self._codes.inputs.get(made, {}).items()
        }
        output = self._output(node)
        decision = self._decisions.get(made)
        if decision is None or decision.weights == "float32":
            if not inputs and output is None:
                return None
            return NodeQuantizers(inputs=inputs, output=output, besides=self._summands(made))
        assert decision.weight is not None
        position = list(node.input).index(decision.weight)
        if decision.activations == "float16":
            raise QuantizationError(
                f"module '{decision.module}' computes in float16, which is not trained; "
                "give it integers in the recipe, or leave it outside of the part that is"
            )
        if decision.weights in _STORED:
            kind = _STORED[decision.weights]
            inputs[position] = self._keep(f"{made}.weight", StoredFakeQuantize(kind))
            return NodeQuantizers(inputs=inputs, output=output)
        if decision.activations == "dynamic":
            inputs[0] = self._keep(f"{node.input[0]}.dynamic", DynamicFakeQuantize())
        weight = read_tensor(constants[decision.weight])
        quantizer = WeightFakeQuantize(self._form(node, decision, weight))
        self._keep(f"{made}.weight", quantizer)
        return NodeQuantizers(
            inputs=inputs,
            weight=quantizer,
            weight_position=position,
            products=self._products(node, decision),
            output=output,
        )

    def _form(self, node: onnx.NodeProto, decision: Decision, weight: Tensor) -> WeightFormat:
        multiplied = decision.activations == "static" or decision.label == "MatMul int8/dynamic"
        phases = None
        if decision.activations == "static" and node.op_type == "ConvTranspose":
            (stride,) = integers(node, "strides", [1])
            phases = Geometry(operator="ConvTranspose1d", shape=tuple(weight.shape), stride=stride)
        return WeightFormat(axis=decision.axis, multiplied=multiplied, phases=phases)

    def _products(self, node: onnx.NodeProto, decision: Decision) -> CodeProducts | None:
        if decision.activations != "static" or node.op_type == "MatMul":
            return None
        transposed = node.op_type == "ConvTranspose"
        made = self._codes.grids.get(node.output[0])
        return CodeProducts(
            input=self._grid(self._codes.grids[node.input[0]]),
            stride=integers(node, "strides", [1])[0] if transposed else 1,
            skip=integers(node, "pads", [0, 0])[0] if transposed else 0,
            output=None if made is None else self._grid(made),
        )

    def _output(self, node: onnx.NodeProto) -> nn.Module | None:
        made = node.output[0]
        if made in self._codes.outputs:
            quantizer = self._activation(self._codes.outputs[made])
            if self._summands(made):
                return self._leaky_sum(node, GridOf(quantizer=quantizer, factor=1.0))
            grids = [self._codes.grids.get(tensor) for tensor in node.input]
            known = [self._grid(grid) for grid in grids if grid is not None]
            pair = _PAIRS.get(node.op_type)
            if pair is None or len(known) != 2:
                return quantizer
            return self._keep(f"{made}.pair", pair(GridOf(quantizer=quantizer, factor=1.0), *known))
        if made not in self._codes.slopes:
            return None
        grid = self._grid(self._codes.slopes[made])
        return self._keep(made, SlopeFakeQuantize(grid, real(node, "alpha", 0.01)))

    def _summands(self, made: str) -> tuple[str, ...]:
        """Return what a LeakyRelu reads the sum of, where the part has that, too."""
        sum_ = self._codes.sums.get(made)
        if sum_ is None or not self._present.issuperset((sum_.left, sum_.right)):
            return ()
        return sum_.left, sum_.right

    def _leaky_sum(self, node: onnx.NodeProto, result: GridOf) -> LeakySumFakeQuantize:
        sum_ = self._codes.sums[node.output[0]]
        left, right = (self._grid(self._codes.grids[t]) for t in (sum_.left, sum_.right))
        slope = real(node, "alpha", 0.01)
        module = LeakySumFakeQuantize(result, left, right, factor=sum_.factor, slope=slope)
        return self._keep(f"{node.output[0]}.pair", module)

    def _grid(self, grid: Grid) -> GridOf:
        return GridOf(quantizer=self._activation(grid.quantizer), factor=grid.factor)

    def _activation(self, name: str) -> ActivationFakeQuantize | FixedFakeQuantize:
        known = self.quantizers.get(name)
        if isinstance(known, ActivationFakeQuantize | FixedFakeQuantize):
            return known
        if name == SIGMOID:
            return self._keep(name, FixedFakeQuantize(1 / 255, 0))
        if name == TANH:
            return self._keep(name, FixedFakeQuantize(1 / 127, 127))
        made = ActivationFakeQuantize(HistogramObserver(self._calibration), learned=self._learned)
        ranges = self._conversion.ranges
        parts = [
            (ranges[share.tensor][0] * share.low, ranges[share.tensor][1] * share.high)
            for share in self._codes.shares[name]
        ]
        made.set_limits((min(low for low, _ in parts), max(high for _, high in parts)))
        return self._keep(name, made)

    def _keep(self, name: str, module: _Module) -> _Module:
        self.quantizers[name] = module
        return module
