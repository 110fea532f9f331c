"""Emission of a region of a graph on 8-bit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.quantize.onnx.integer import elementwise
from tts_compress.quantize.onnx.integer.convolutions import convolve, is_convolution, upsample
from tts_compress.quantize.onnx.integer.emitter import CONTRIB, Emitter
from tts_compress.quantize.onnx.rewrite.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from tts_compress.quantize.onnx.integer.plan import IntegerPlan

__all__ = ["emit_integer", "observed_tensors"]


def emit_integer(
    model: onnx.ModelProto, plan: IntegerPlan, ranges: Mapping[str, tuple[float, float]]
) -> onnx.ModelProto:
    """Return the model with a plan's convolutions, and all that stands between them, on codes.

    Args:
        model: A graph in FP32; it is not changed.
        plan: What becomes integer.
        ranges: Lowest and highest value of every tensor that `observed_tensors` names.

    Raises:
        QuantizationError: A planned node is not there or has no integer form, or a tensor was
            not observed.
    """
    graph = Graph(model)
    region = _region(graph, plan)
    emitter = Emitter(graph, plan, ranges)
    graph.require_opset(CONTRIB, 1)
    for node in region:
        _emit(emitter, node)
    inside = {id(node) for node in region}
    for node in region:
        graph.remove(node)
    for tensor in (tensor for node in region for tensor in node.output):
        outside = [reader for reader in graph.readers(tensor) if id(reader) not in inside]
        if outside or tensor in graph.outputs:
            emitter.restore(tensor)
    return graph.finish()


def observed_tensors(model: onnx.ModelProto, plan: IntegerPlan) -> list[str]:
    """Return the tensors whose ranges `emit_integer` will ask for, in graph order."""
    graph = Graph(model)
    region = _region(graph, plan)
    made = {tensor for node in region for tensor in node.output}
    wanted: dict[str, None] = {}
    for node in region:
        for tensor in _data(graph, node):
            if tensor not in made:
                wanted[tensor] = None
        if node.op_type != "LeakyRelu" or plan.leaky_relu == "lookup":
            wanted[node.output[0]] = None
    return list(wanted)


def _region(graph: Graph, plan: IntegerPlan) -> list[onnx.NodeProto]:
    """Return the planned convolutions and what follows from them, in graph order."""
    planned = [node for node in graph.nodes if node.name in plan.nodes]
    missing = plan.nodes - {node.name for node in planned}
    unfit = [node.name for node in planned if not is_convolution(graph, node)]
    if missing or unfit:
        raise QuantizationError(
            f"no integer form: nodes that are not there {sorted(missing)}, nodes that are not "
            f"convolutions along time with constant weights {unfit}; take them out of the plan"
        )
    made: set[str] = set()
    region = []
    for node in graph.nodes:
        if node.name in plan.nodes or (made and _follows(graph, node, made)):
            made.update(node.output)
            region.append(node)
    return region


def _follows(graph: Graph, node: onnx.NodeProto, made: set[str]) -> bool:
    """Return whether a node has an integer form and all its data are codes already."""
    data = _data(graph, node)
    if not data or not made.issuperset(data):
        return False
    if node.op_type in {"Div", "Mul"}:
        return _factor(graph, node) is not None
    return node.op_type == "LeakyRelu" or (node.op_type == "Add" and len(node.input) == len(data))


def _data(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return a node's inputs that are not constants."""
    return [tensor for tensor in node.input if tensor and graph.constant(tensor) is None]


def _factor(graph: Graph, node: onnx.NodeProto) -> float | None:
    """Return the positive number a node multiplies by, or None where it does something else."""
    value = graph.scalar(node.input[1])
    if value is None and node.op_type == "Mul":
        value = graph.scalar(node.input[0])
    if value is None or value <= 0:
        return None
    return 1 / value if node.op_type == "Div" else value


def _emit(emitter: Emitter, node: onnx.NodeProto) -> None:
    made = node.output[0]
    if node.op_type == "Conv":
        convolve(emitter, node, emitter.code_of(made))
    elif node.op_type == "ConvTranspose":
        upsample(emitter, node, emitter.code_of(made))
    elif node.op_type == "LeakyRelu":
        elementwise.leaky_relu(emitter, node)
    elif node.op_type == "Add":
        elementwise.add(emitter, node, emitter.code_of(made))
    else:
        factor = _factor(emitter.graph, node)
        assert factor is not None
        elementwise.scale(emitter, node, factor)
