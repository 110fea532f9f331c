"""Convolutions along time in the form of images, which runtimes compute in blocks of channels.

onnxruntime's fast FP32 kernels (NCHWc: 16 channels side by side with AVX512, 8 with AVX2) take two
spatial axes; convolutions with one are unrolled and multiplied. With a height of one, 32 to 96
channels take 0.5 to 0.7 of their time with AVX512, 24 to 96 channels 0.6 to 0.9 with AVX2. On ARM64
onnxruntime 1.32 is built without these kernels, so the height changes nothing there.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import module_of
from tts_compress.onnx.nodes import copy_attributes
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.recipes.formats import Activations

_BLOCK, _FEWEST = 8, 16
"""Channels of the smallest block, and the fewest that are put in blocks. Blocks are computed whole,
so with AVX512 24 channels take as long as 32."""

_BETWEEN = frozenset({"Add", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Sum", "Tanh"})
"""Operators that take any height, most of them in blocks where all that they read is in blocks."""

_ALONG_TIME = frozenset({"dilations", "kernel_shape", "strides"})
"""Attributes of a convolution with a value for each axis that it moves along."""

_HEIGHT = 2
"""Axis of the height, before time."""


def add_height(
    graph: Graph, original: onnx.ModelProto, decisions: Sequence[Decision], lengths: frozenset[str]
) -> int:
    """Give convolutions in FP32, and what stands between them, a height of one; return how many.

    Required: one group, several taps, channels that fill blocks, and no say in durations. Tensors
    that anything else reads, or another component, keep their three axes and their names.

    Args:
        graph: The original as it was converted; to be changed.
        original: Where weights have three axes.
        decisions: On the operators of the original.
        lengths: Outputs that decide durations.
    """
    weights = {tensor.name: tuple(tensor.dims) for tensor in original.graph.initializer}
    convolutions = [d for d in decisions if d.operator in {"Conv", "ConvTranspose"}]
    along = {d.output: d for d in convolutions if len(weights[d.tensor]) == 3}
    deciding = length_outputs(original, lengths)
    layers = [
        node
        for output, decision in along.items()
        if decision.activations == Activations.NONE and output not in deciding
        if (node := graph.producer(output)) and _is_faster(node, weights[decision.tensor])
    ]
    _emit(graph, _grown(graph, layers, _along_time(original, along.keys()) - deciding))
    return len(layers)


def _is_faster(node: onnx.NodeProto, weight: Sequence[int]) -> bool:
    """Return True for a convolution that the kernels take."""
    attributes = copy_attributes(node)
    return (
        node.op_type == "Conv"
        and not any(channels % _BLOCK or channels < _FEWEST for channels in weight[:2])
        and weight[2] > 1
        and attributes.get("group", 1) == 1
        and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
    )


def _along_time(original: onnx.ModelProto, layers: Collection[str]) -> set[str]:
    """Return tensors with three axes: inputs and outputs of layers, and what is made of them."""
    timed = set[str]()
    for node in original.graph.node:
        if node.output[0] in layers:
            timed |= {node.input[0], node.output[0]}
        elif node.op_type in _BETWEEN and timed.issuperset(node.input):
            timed.add(node.output[0])
    return timed


def _grown(
    graph: Graph, layers: Iterable[onnx.NodeProto], timed: set[str]
) -> dict[str, onnx.NodeProto]:
    """Return layers, and the operators around them that read tensors along time only, by output."""
    region, waiting = dict[str, onnx.NodeProto](), list(layers)
    while waiting:
        node = waiting.pop()
        if node.output[0] in region:
            continue
        region[node.output[0]] = node
        makers = [graph.producer(tensor) for tensor in node.input]
        waiting += [
            neighbour
            for neighbour in (*makers, *graph.readers(node.output[0]))
            if neighbour is not None
            and neighbour.op_type in _BETWEEN
            and timed.issuperset(neighbour.input)
            and _component(graph, neighbour) == _component(graph, node)
        ]
    return region


def _component(graph: Graph, node: onnx.NodeProto) -> str:
    return module_of(node, graph.initializers).split(".")[0]


def _emit(graph: Graph, region: Mapping[str, onnx.NodeProto]) -> None:
    """Put operators on four axes in the place of those of a region."""
    tall = {output: graph.fresh(f"{node.name or output}.2d") for output, node in region.items()}
    components = {output: _component(graph, node) for output, node in region.items()}
    raised = dict[str, str]()
    for node in region.values():
        graph.remove(node)
    for output, node in region.items():
        inputs = [
            tall[tensor]
            if components.get(tensor) == components[output]
            else _raised(graph, tensor, raised)
            for tensor in (node.input[:1] if node.op_type == "Conv" else node.input)
        ]
        attributes = copy_attributes(node)
        if node.op_type == "Conv":
            inputs += [_weight(graph, node.input[1], raised), *node.input[2:]]
            attributes |= {n: [1, *attributes[n]] for n in _ALONG_TIME & attributes.keys()}
            if pads := attributes.get("pads"):
                attributes["pads"] = [0, pads[0], 0, pads[1]]
        graph.add(node.op_type, inputs, [tall[output]], node.name, **attributes)
    for output in region:
        if graph.readers(output) or output in graph.outputs:
            graph.insert("Squeeze", [tall[output], _axes(graph)], output)


def _axes(graph: Graph) -> str:
    return graph.share_constant("tts_compress.height", np.array([_HEIGHT]))


def _raised(graph: Graph, tensor: str, raised: dict[str, str]) -> str:
    """Return a tensor with a height; its name is kept in `raised`."""
    if tensor not in raised:
        raised[tensor] = graph.make("Unsqueeze", [tensor, _axes(graph)], f"{tensor}.2d")
    return raised[tensor]


def _weight(graph: Graph, name: str, raised: dict[str, str]) -> str:
    """Return a weight (O, I, K) as (O, I, 1, K); its name is kept in `raised`.

    Codes are multiplied by their scales in operators that the runtime computes when it opens the
    graph. `DequantizeLinear` it computes in each run, and the fast kernels want constants.
    """
    maker = graph.producer(name)
    if name in raised:
        return raised[name]
    if name in graph.initializers:
        stored = onnx.TensorProto()
        stored.CopyFrom(graph.initializers[name])
        stored.dims.insert(_HEIGHT, 1)
        raised[name] = graph.share_constant(f"{name}.2d", stored)
    elif maker is None or maker.op_type not in {"Add", "Cast", "DequantizeLinear"}:
        _raised(graph, name, raised)
    else:
        count, stem = 2 if maker.op_type == "Add" else 1, f"{name}.2d"
        parts = [_weight(graph, part, raised) for part in maker.input[:count]]
        if maker.op_type == "DequantizeLinear":
            codes = graph.make("Cast", parts, f"{stem}.codes", to=onnx.TensorProto.FLOAT)
            scales = graph.value(maker.input[1]).reshape(-1, 1, 1, 1)
            factors = [codes, graph.add_constant(f"{stem}.scales", scales)]
            raised[name] = graph.make("Mul", factors, stem)
        else:
            raised[name] = graph.make(maker.op_type, parts, stem, **copy_attributes(maker))
    return raised[name]
