"""Half-precision arithmetic, except where it is unsafe."""

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.errors import QuantizationError
from tts_compress.numerics.weights import Float32
from tts_compress.onnx.graph import Graph, tensors_read
from tts_compress.onnx.modules import module_of
from tts_compress.onnx.precision import duration_outputs, phase_outputs
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.recipes.formats import Activations

_SAFE = frozenset(
    {
        *("Conv", "ConvTranspose", "MatMul"),
        *("Add", "Mul", "Neg", "Sub"),
        *("Erf", "LeakyRelu", "Relu", "Sigmoid", "Tanh"),
        *("Concat", "Expand", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
"""Operators that keep their meaning in half precision. Left out: sums over time and their squares
(cumulative sums of durations, layer norm's variance), exponentials and softmax, comparisons and
rounding, division, ranges, and random numbers, whose half-precision form onnxruntime's CPU
refuses."""


def halve(
    graph: Graph, decisions: Sequence[Decision], lengths: Collection[str] = frozenset()
) -> None:
    """Run modules with `activations = "float16"`, and safe operators between, in float16."""
    halved = {d.output: d.module for d in decisions if d.activations == Activations.FLOAT16}
    if not halved:
        return
    components = {module.split(".")[0] for module in halved.values()}
    phases = phase_outputs(graph)
    exact = duration_outputs(graph.finish(), lengths) | phases
    # Only the phase part of a module such as an STFT must stay in FP32.
    others = (d for d in decisions if d.output not in phases)
    kept = {d.module for d in others if d.activations != Activations.FLOAT16}
    region = [
        node
        for node in graph.nodes
        if node.op_type in _SAFE
        and exact.isdisjoint(node.output)
        and (module := module_of(node, graph.initializers.keys())).split(".")[0] in components
        and (module not in kept or node.output[0] in halved)
        and graph.types.get(node.output[0]) == TensorProto.FLOAT
    ]
    produced = {name for node in region for name in node.output}
    for node in region:
        for position, name in enumerate(node.input):
            if name not in produced and graph.types.get(name) == TensorProto.FLOAT:
                graph.replace_input(node, position, _narrow(graph, name))
    _widen_border(graph, region)


def _narrow(graph: Graph, name: str) -> str:
    """Return a tensor in float16: another constant, or a cast."""
    half = f"{name}.float16"
    if name in graph.initializers:
        values = graph.value(name)
        check_half(name, values)
        return graph.share_constant(half, values.astype(np.float16))
    if graph.producer(half) is None:
        graph.insert("Cast", [name], half, to=TensorProto.FLOAT16)
    return half


def _widen_border(graph: Graph, region: list[onnx.NodeProto]) -> None:
    """Give FP32 to every node outside that reads a tensor of the region."""
    inside = {id(node) for node in region}
    outside = [node for node in graph.nodes if id(node) not in inside]
    wide = {name for node in outside for name in tensors_read(node)} | set(graph.outputs)
    for node in region:
        for position, name in enumerate(node.output):
            if name in wide:
                half = f"{name}.float16"
                readers = [node for node in graph.readers(name) if id(node) in inside]
                graph.redirect(name, half, readers)
                graph.rename_output(node, position, half)
                graph.insert("Cast", [half], name, to=TensorProto.FLOAT)


def check_half(name: str, values: Float32) -> None:
    """Refuse a weight that half precision would turn into infinities; a mask may have some."""
    largest = float(np.finfo(np.float16).max)
    if (np.abs(values[np.isfinite(values)]) > largest).any():
        raise QuantizationError(
            f"weight '{name}' has values beyond float16 (±{largest:.0f}); "
            "exclude its module in the recipe"
        )
