"""Codes of 16 bits for all that is local in time: sums, activations, upsampling, the last stage.

NPUs compute what has no codes in FP16, or not at all. With steps this fine no operator is too
sensitive; but what takes statistics over time, or an exponential, keeps its real numbers.
"""

from collections.abc import Sequence
from dataclasses import replace

import onnx
from onnx import TensorProto

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import module_of
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.precision import phase_outputs
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.quantize.operators import PASSING
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.formats import Activations, Weights

_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul"})

_CODED = PASSING | {
    *("Abs", "Add", "Clip", "Concat", "Cos", "Div", "Elu", "LeakyRelu", "Max", "Min", "Mul"),
    *("Relu", "Sigmoid", "Sin", "Sub", "Tanh"),
}
"""Operators without weights that Qualcomm's NPU computes on codes of 16 bits, each 70 dB or more
from FP32 in its simulator. It lacks `Erf`; `Sqrt`, `Pow`, `Softplus` and products of two computed
tensors are worse there, and exponentials leave most codes to their loudest moments."""


def cover_sound(graph: Graph, decisions: Sequence[Decision], calls: Calls) -> list[Decision]:
    """Return decisions by which everything that is local in time before the outputs has codes.

    Layers whose weights are not in eight bits keep real numbers, and so does what reads them:
    between codes onnxruntime would round their weights itself.
    """
    sound, by_output = _local_outputs(graph, calls), {d.output: d for d in decisions}
    covered, real = list[Decision](), set[str]()
    for node in graph.nodes:
        decision = by_output.get(node.output[0])
        if node.output[0] in sound:
            decision = _coded(graph, node, decision, real)
            if decision and decision.weight and decision.activations != Activations.STATIC:
                real.update(node.output)
        covered += [decision] if decision else []
    return covered


def _coded(
    graph: Graph, node: onnx.NodeProto, decision: Decision | None, real: set[str]
) -> Decision | None:
    """Return the decision that gives an operator codes, or the old one where it cannot have any."""
    if decision is not None:
        is_narrow = decision.weights == Weights.INT8 and node.op_type in _LAYERS
        kept = decision.activations != Activations.NONE or not is_narrow
        return decision if kept else replace(decision, activations=Activations.STATIC)
    divides = node.op_type == "Div" and graph.constant(node.input[1]) is None
    if node.op_type not in _CODED or divides or not real.isdisjoint(node.input):
        return None
    return Decision(
        output=node.output[0],
        operator=node.op_type,
        module=module_of(node, graph.initializers.keys()),
        weights=Weights.FLOAT32,
        activations=Activations.STATIC,
        weight=None,
        axis=0,
        parameters=0,
    )


def _local_outputs(graph: Graph, calls: Calls) -> frozenset[str]:
    """Return the tensors of real numbers that outputs are made of, as far as that is local."""
    model = feed_noise(graph.model)
    feeds = _two_lengths(calls)
    if len(feeds) < 2:
        return frozenset()
    local = walk(Graph(model), observe_shapes(model, feeds, "the graph"), graph.outputs)
    names = {name for node in local.nodes for name in node.output}
    is_real = {name for name, kind in graph.types.items() if kind == TensorProto.FLOAT}
    return frozenset(names & is_real - phase_outputs(graph))


def _two_lengths(calls: Calls) -> list[Feeds]:
    """Return the first call, and the next one whose inputs have other sizes."""
    found = list[Feeds]()
    for feeds in calls.feeds():
        if not found or any(feeds[name].shape != a.shape for name, a in found[0].items()):
            found.append(feeds)
        if len(found) == 2:
            break
    return found
