"""Convolutions along time in the form of images, which runtimes compute in blocks of channels.

onnxruntime's fast FP32 kernels (NCHWc: 16 channels side by side with AVX512 and on ARM64, 8 with
AVX2) take two spatial axes; convolutions with one are unrolled and multiplied. With a height of
one, 32 to 96 channels take 0.5 to 0.7 of their time, and a sum behind them none of its own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph, copy_attributes
from tts_compress.onnx.modules import module_of
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.recipes.formats import Activations

_BLOCK = 16
"""Channels of the largest block; those that fill none are computed for nothing."""

_BETWEEN = frozenset({"Add", "LeakyRelu", "Mul", "Relu", "Sigmoid", "Sum", "Tanh"})
"""Operators that are computed in blocks, too, but for LeakyRelu, which is often one with a sum or a
convolution."""

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
    along = {d.output: d for d in decisions if d.weight and len(weights[d.tensor]) == 3}
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
        and not any(channels % _BLOCK for channels in weight[:2])
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
    graph: Graph, layers: Iterable[onnx.NodeProto], timed: Collection[str]
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
            and set(timed).issuperset(neighbour.input)
            and _component(graph, neighbour) == _component(graph, node)
        ]
    return region


def _component(graph: Graph, node: onnx.NodeProto) -> str:
    return module_of(node, graph.initializers).split(".")[0]


def _emit(graph: Graph, region: Mapping[str, onnx.NodeProto]) -> None:
    """Put operators on four axes in the place of those of a region."""
    tall = {output: graph.fresh(f"{node.name or output}.2d") for output, node in region.items()}
    components = {output: _component(graph, node) for output, node in region.items()}
    for node in region.values():
        graph.remove(node)
    for output, node in region.items():
        inputs = [
            tall[tensor]
            if components.get(tensor) == components[output]
            else _raised(graph, tensor, is_operand=len(_data(node)) > 1)
            for tensor in _data(node)
        ]
        if node.op_type == "Conv":
            _convolve(graph, node, inputs[0], tall[output])
        elif node.op_type == "Sum":
            # What a convolution returns is added in its kernel to the sum so far.
            products = {tall[name] for name, maker in region.items() if maker.op_type == "Conv"}
            _add_up(graph, node, sorted(inputs, key=products.__contains__), tall[output])
        else:
            graph.add(node.op_type, inputs, [tall[output]], node.name, **copy_attributes(node))
    for output in region:
        if graph.readers(output) or output in graph.outputs:
            _reshaped(graph, "Squeeze", tall[output], output)


def _data(node: onnx.NodeProto) -> list[str]:
    """Return the tensors along time that an operator reads."""
    return list(node.input[:1] if node.op_type == "Conv" else node.input)


def _raised(graph: Graph, tensor: str, *, is_operand: bool) -> str:
    """Return a tensor from outside with a height.

    onnxruntime adds and multiplies in blocks what operators on blocks return, and nothing else. As
    an operand the tensor goes through one that changes nothing: the largest of a single value.
    """
    raised, pooled = f"{tensor}.2d", f"{tensor}.pooled"
    _reshaped(graph, "Unsqueeze", tensor, raised)
    if not is_operand:
        return raised
    if graph.producer(pooled) is None:
        graph.insert("MaxPool", [raised], pooled, kernel_shape=[1, 1])
    return pooled


def _reshaped(graph: Graph, operator: str, tensor: str, output: str) -> str:
    """Return a tensor with or without a height; it is written once."""
    if graph.producer(output) is None:
        axes = graph.share_constant("tts_compress.height", np.array([_HEIGHT]))
        graph.insert(operator, [tensor, axes], output)
    return output


def _convolve(graph: Graph, node: onnx.NodeProto, source: str, output: str) -> None:
    attributes = copy_attributes(node)
    for name in _ALONG_TIME & attributes.keys():
        attributes[name] = [1, *attributes[name]]
    if pads := attributes.get("pads"):
        attributes["pads"] = [0, pads[0], 0, pads[1]]
    inputs = [source, _tall_weight(graph, node.input[1]), *node.input[2:]]
    graph.add("Conv", inputs, [output], node.name, **attributes)


def _tall_weight(graph: Graph, name: str) -> str:
    """Return a weight (O, I, K) as (O, I, 1, K).

    Codes are multiplied by their scales in operators that the runtime computes when it opens the
    graph. `DequantizeLinear` it computes in each run, and the fast kernels want constants.
    """
    tall, maker = f"{name}.2d", graph.producer(name)
    if graph.producer(tall) is not None:
        return tall
    if name in graph.initializers:
        stored = onnx.TensorProto()
        stored.CopyFrom(graph.initializers[name])
        stored.dims.insert(_HEIGHT, 1)
        return graph.share_constant(tall, stored)
    if maker is None or maker.op_type not in {"Add", "Cast", "DequantizeLinear"}:
        return _reshaped(graph, "Unsqueeze", name, tall)
    parts = [_tall_weight(graph, part) for part in maker.input[: 1 + (maker.op_type == "Add")]]
    if maker.op_type != "DequantizeLinear":
        return graph.insert(maker.op_type, parts, tall, **copy_attributes(maker))
    codes = graph.insert("Cast", parts, f"{tall}.codes", to=onnx.TensorProto.FLOAT)
    scales = graph.add_constant(f"{tall}.scales", graph.value(maker.input[1]).reshape(-1, 1, 1, 1))
    return graph.insert("Mul", [codes, scales], tall)


def _add_up(graph: Graph, node: onnx.NodeProto, terms: Sequence[str], output: str) -> None:
    """Write a sum of several as sums of two."""
    total = terms[0]
    for number, term in enumerate(terms[1:], start=1):
        is_last = number == len(terms) - 1
        name = output if is_last else graph.fresh(f"{output}.{number}")
        total = graph.add("Add", [total, term], [name], node.name if is_last else name)
