"""Cross-layer equalisation: channels of one tensor brought to about the same range, exactly.

A tensor of codes has one scale for all its channels, so a quiet channel beside a loud one keeps few
of its 256 levels. Convolutions can take over a factor per channel: 1/s in the rows of those that
make a tensor, s in the columns of those that read it. Operators between leave the result the same
if they are positively homogeneous: f(s·x) = s·f(x) for s > 0.

After Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019);
the factors come from observed activations, as in Xiao et al., "SmoothQuant" (2022), because weights
have a scale per output channel here and need no equalising themselves.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.integer.region import is_normalized
from tts_compress.onnx.modules import read_convolution
from tts_compress.onnx.nodes import tensors_read
from tts_compress.onnx.quantize.collect import collect
from tts_compress.onnx.session import Feeds

_CONVOLUTIONS = ("Conv", "ConvTranspose")

_CALLS = 16
"""Calls on which channels are compared; how loud they are on average hardly moves after a few."""

_LEAST = 1 / 64
"""The smallest factor, relative to the loudest channel's: a channel that calibration hardly saw
may speak up later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """Tensors (B, C, T) joined by operators that let a factor per channel pass."""

    tensors: tuple[str, ...]
    """Each once."""

    producers: tuple[onnx.NodeProto, ...]
    """Convolutions that make one of them; nothing else does but operators between them."""

    consumers: tuple[onnx.NodeProto, ...]
    """Convolutions that read one of them; nothing else does but operators between them."""


def equalize_channels(graph: Graph, coded: Sequence[str], calls: Iterator[Feeds]) -> None:
    """Bring the channels of a graph's tensors to about the same range; the graph stays equal.

    Args:
        graph: A prepared graph in FP32.
        coded: Tensors that will be rounded to codes with one scale each.
        calls: Inputs of the graph with fed noise; the first few are used.
    """
    groups, ends = find_groups(graph), find_ends(graph, coded)
    joined = {tensor for group in groups for tensor in group.tensors}
    tensors = [tensor for tensor in coded if tensor in joined or tensor in ends]
    _, extremes = collect(graph.model, [], tensors, islice(calls, _CALLS))
    # A peak of one call hardly counts.
    peaks = {tensor: np.abs(pairs).max(1).mean(0) for tensor, pairs in extremes.items()}
    equalize(graph, groups, peaks)
    for tensor in ends:
        _scale_end(graph, tensor, _factors([peaks[tensor]]))
    graph.infer_types()


def find_ends(graph: Graph, coded: Collection[str]) -> list[str]:
    """Return results of convolutions, among tensors of codes, that are normalized by channel.

    Their readers are in FP32, so one `Mul` can undo the scaling.
    """
    candidates = set(coded).difference(graph.outputs)
    return [
        node.output[0]
        for node in graph.nodes
        if node.op_type == "Conv"
        and node.output[0] in candidates
        and read_convolution(graph, node) is not None
        and all(_is_own(graph, tensor) for tensor in node.input[1:3])
        and is_normalized(graph, node.output[0])
    ]


def _scale_end(graph: Graph, tensor: str, factors: Array) -> None:
    """Divide the channels of a convolution's result by factors, and multiply them again."""
    node, readers = graph.producer(tensor), graph.readers(tensor)
    assert node is not None
    _divide_outputs(graph, node, factors)
    column = factors.astype(np.float32)[:, None]
    inputs = [tensor, graph.add_constant(f"{tensor}.factors", column)]
    graph.redirect(tensor, graph.make("Mul", inputs, f"{tensor}.multiplied"), readers)


def equalize(graph: Graph, groups: Iterable[Scaled], peaks: Mapping[str, Array]) -> int:
    """Give groups of tensors the factors that follow from their peaks; return how many changed.

    Args:
        graph: Equal afterwards up to the rounding of its weights.
        groups: Groups that `find_groups` found in it.
        peaks: The largest magnitude in each channel, (C,), of the tensors that are to be rounded.
    """
    changed = 0
    for group in groups:
        if rounded := [peaks[tensor] for tensor in group.tensors if tensor in peaks]:
            _fold(graph, group, _factors(rounded))
            changed += 1
    return changed


def _factors(peaks: list[Array]) -> Array:
    """Return a positive factor per channel, (C,), the largest of them about 1.

    Each tensor counts the same, however loud it is: it will have a scale of its own.
    """
    shares = [peak / peak.max() for peak in peaks if peak.max() > 0]
    if not shares:
        return np.ones(len(peaks[0]))
    factors: Array = np.maximum(np.mean(shares, axis=0, dtype=np.float64), _LEAST)
    return factors


def _fold(graph: Graph, group: Scaled, factors: Array) -> None:
    for node in group.producers:
        _divide_outputs(graph, node, factors)
    for node in group.consumers:
        _scale(graph, node, 1, factors, 1 if node.op_type == "Conv" else 0)


def _divide_outputs(graph: Graph, node: onnx.NodeProto, factors: Array) -> None:
    _scale(graph, node, 1, 1 / factors, 0 if node.op_type == "Conv" else 1)
    if len(node.input) > 2:
        _scale(graph, node, 2, 1 / factors, 0)


def _scale(graph: Graph, node: onnx.NodeProto, position: int, factors: Array, axis: int) -> None:
    """Multiply a weight or bias along an axis."""
    values = graph.value(node.input[position])
    shape = [1] * values.ndim
    shape[axis] = -1
    scaled = (values * factors.reshape(shape)).astype(np.float32)
    name = node.input[position].removesuffix(".equalized")
    graph.replace_input(node, position, graph.add_constant(f"{name}.equalized", scaled))


def find_groups(graph: Graph) -> list[Scaled]:
    """Return the groups to whose channels factors can be given without changing the graph.

    LeakyRelu, Relu, sums, and products with one number join their inputs and outputs. A group is
    left out if a tensor of it comes from, or goes to, anything but those and convolutions along
    time with one group and constant weights that nobody shares; if it is an input or output of the
    graph or read inside a branch or loop; or if its tensors differ in channels, so that a sum
    broadcasts.
    """
    # Tensors that are joined share one dictionary of all of them.
    joined: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        merged: dict[str, None] = {}
        for tensor in _ends(graph, node):
            merged |= joined.get(tensor, {tensor: None})
        joined.update(dict.fromkeys(merged, merged))
    convolved = [node.output[0] for node in graph.nodes if node.op_type in _CONVOLUTIONS]
    sets = [joined.setdefault(tensor, {tensor: None}) for tensor in convolved]
    hidden = {name for node in graph.nodes for name in tensors_read(node) - set(node.input)}
    barred = hidden | set(graph.outputs) | set(graph.inputs)
    distinct = {id(tensors): tuple(tensors) for tensors in sets if barred.isdisjoint(tensors)}
    groups = (_group(graph, tensors) for tensors in distinct.values())
    return [group for group in groups if group is not None]


def _ends(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads and makes; none if it lets no factors pass."""
    ends = [*node.input, node.output[0]]
    if node.op_type in {"LeakyRelu", "Relu", "Add", "Sub", "Sum"}:
        return ends  # a constant among them has no maker: `_group` refuses it
    constant = [t for t in node.input if graph.constant(t) is not None]
    if node.op_type in {"Mul", "Div"} and len(constant) == 1:
        divides = node.op_type == "Div" and constant[0] == node.input[0]
        if graph.scalar(constant[0]) is not None and not divides:
            return [tensor for tensor in ends if tensor != constant[0]]
    return []


def _group(graph: Graph, tensors: tuple[str, ...]) -> Scaled | None:
    """Return a set of joined tensors as a group, or None if it cannot be one."""
    producers: list[onnx.NodeProto] = []
    consumers: list[onnx.NodeProto] = []
    channels: set[int] = set()
    for tensor in tensors:
        maker = graph.producer(tensor)
        for node in (maker, *graph.readers(tensor)):
            if node is None or node.op_type not in _CONVOLUTIONS:
                if node is None or tensor not in _ends(graph, node):
                    return None
                continue
            plain = read_convolution(graph, node)
            changed = node.input[1:3] if node is maker else node.input[1:2]
            if plain is None or plain.groups != 1 or not all(_is_own(graph, t) for t in changed):
                return None
            (producers if node is maker else consumers).append(node)
            rows = (node is maker) == (node.op_type == "Conv")
            channels.add(plain.weight.shape[0 if rows else 1])
    if len(channels) != 1:
        return None
    return Scaled(tensors=tensors, producers=tuple(producers), consumers=tuple(consumers))


def _is_own(graph: Graph, tensor: str) -> bool:
    """Return True if no other operator reads a constant."""
    return graph.only_reader(tensor) is not None
