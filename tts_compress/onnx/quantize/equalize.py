"""Cross-layer equalisation: channels of one tensor brought to about the same range, exactly.

A tensor of codes has one scale for all its channels, so a quiet channel beside a loud one keeps few
of its 256 levels. Convolutions can take over a factor per channel, 1/s in the rows of those that
make a tensor and s in the columns of those that read it, and what stands between them does not
notice where it is positively homogeneous: f(s·x) = s·f(x) for s > 0.

After Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019);
the factors come from observed activations, as in Xiao et al., "SmoothQuant" (2022), because weights
have a scale per output channel here and need no equalising themselves.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph, attribute, tensors_read
from tts_compress.onnx.quantize.collect import collect_peaks
from tts_compress.onnx.session import Feeds

_CONVOLUTIONS = ("Conv", "ConvTranspose")

_CALLS = 16
"""Calls on which channels are compared; how loud they are on average hardly moves after a few."""

_LEAST = 1 / 64
"""The smallest factor, relative to the loudest channel's: a channel that calibration hardly saw
may speak up later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Tensors (B, C, T) that operators join which let a factor per channel pass."""

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
        calls: Inputs of the graph with fed noise, of which the first few are used.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    groups = find_groups(graph)
    found = {tensor for group in groups for tensor in group.tensors}
    tensors = [tensor for tensor in coded if tensor in found]
    equalize(graph, groups, collect_peaks(graph.model, tensors, islice(calls, _CALLS)))
    graph.infer_types()


def equalize(graph: Graph, groups: Iterable[Group], peaks: Mapping[str, Array]) -> int:
    """Give groups of tensors the factors that their peaks ask for.

    Args:
        graph: Equal afterwards up to the rounding of its weights.
        groups: Groups that `find_groups` found in it.
        peaks: The largest magnitude in each channel, (C,), of the tensors that are to be rounded.

    Returns:
        How many groups were equalized.
    """
    changed = 0
    for group in groups:
        known = [peaks[tensor] for tensor in group.tensors if tensor in peaks]
        if known:
            _fold(graph, group, _factors(known))
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


def _fold(graph: Graph, group: Group, factors: Array) -> None:
    for node in group.producers:
        rows = 0 if node.op_type == "Conv" else 1
        _scale(graph, node, 1, 1 / factors, rows)
        if len(node.input) > 2 and node.input[2]:
            _scale(graph, node, 2, 1 / factors, 0)
    for node in group.consumers:
        columns = 1 if node.op_type == "Conv" else 0
        _scale(graph, node, 1, factors, columns)


def _scale(graph: Graph, node: onnx.NodeProto, position: int, factors: Array, axis: int) -> None:
    """Multiply a weight or bias along an axis."""
    values = graph.value(node.input[position])
    shape = [1] * values.ndim
    shape[axis] = -1
    scaled = (values * factors.reshape(shape)).astype(np.float32)
    name = node.input[position].removesuffix(".equalized")
    graph.replace_input(node, position, graph.add_constant(f"{name}.equalized", scaled))


def find_groups(graph: Graph) -> list[Group]:
    """Return the groups to whose channels factors can be given without changing the graph.

    LeakyRelu, Relu, sums, and products with one number join what they read and what they make. A
    group is left out if a tensor of it comes from, or goes to, anything but those and convolutions
    along time with one group and constant weights that nobody shares; if it is an input or output
    of the graph or read inside a branch or loop; or if its tensors differ in channels, so that a
    sum broadcasts.
    """
    joined = _Joined()
    for node in graph.nodes:
        ends = _ends(graph, node)
        if ends:
            joined.join(ends)
    hidden = {name for node in graph.nodes for name in tensors_read(node) - set(node.input)}
    barred = hidden | set(graph.outputs) | set(graph.inputs)
    found: list[Group] = []
    for tensors in joined.sets(_made_by_convolutions(graph)):
        group = None if barred.intersection(tensors) else _group(graph, tensors)
        if group is not None:
            found.append(group)
    return found


class _Joined:
    """Disjoint sets of tensors."""

    def __init__(self) -> None:
        self._sets: dict[str, dict[str, None]] = {}

    def join(self, tensors: Iterable[str]) -> None:
        """Put tensors into one set."""
        merged: dict[str, None] = {}
        for tensor in tensors:
            merged |= self._sets.get(tensor, {tensor: None})
        self._sets.update(dict.fromkeys(merged, merged))

    def sets(self, seeds: Iterable[str]) -> list[tuple[str, ...]]:
        """Return the sets that hold one of the seeds, each once."""
        found: dict[int, tuple[str, ...]] = {}
        for seed in seeds:
            tensors = self._sets.setdefault(seed, {seed: None})
            found.setdefault(id(tensors), tuple(tensors))
        return list(found.values())


def _made_by_convolutions(graph: Graph) -> list[str]:
    return [node.output[0] for node in graph.nodes if node.op_type in _CONVOLUTIONS]


def _ends(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node reads and makes; none if it lets no factors pass."""
    ends = [*node.input, node.output[0]]
    if node.op_type in {"LeakyRelu", "Relu"}:
        return ends
    constant = [t for t in node.input if graph.constant(t) is not None]
    if node.op_type in {"Add", "Sub", "Sum"}:
        return [] if constant else ends
    if node.op_type in {"Mul", "Div"} and len(constant) == 1:
        value = graph.constant(constant[0])
        divides = node.op_type == "Div" and constant[0] == node.input[0]
        if value is not None and value.size == 1 and value.ndim <= 3 and not divides:
            return [tensor for tensor in ends if tensor != constant[0]]
    return []


def _group(graph: Graph, tensors: tuple[str, ...]) -> Group | None:
    """Return a set of joined tensors as a group, or None if it cannot be one."""
    producers: list[onnx.NodeProto] = []
    consumers: list[onnx.NodeProto] = []
    for tensor in tensors:
        maker, readers = graph.producer(tensor), graph.readers(tensor)
        if maker is None or not all(_fits(graph, node, tensor) for node in (maker, *readers)):
            return None
        producers += [maker] if maker.op_type in _CONVOLUTIONS else []
        consumers += [node for node in readers if node.op_type in _CONVOLUTIONS]
    channels = {_channels(graph, node, made=True) for node in producers}
    channels |= {_channels(graph, node, made=False) for node in consumers}
    if len(channels) != 1 or not consumers:
        return None
    return Group(tensors=tensors, producers=tuple(producers), consumers=tuple(consumers))


def _fits(graph: Graph, node: onnx.NodeProto, tensor: str) -> bool:
    """Return True if a node that makes or reads a tensor passes factors on or can absorb them."""
    if node.op_type not in _CONVOLUTIONS:
        return tensor in _ends(graph, node)
    if _weight(graph, node) is None or tensor in list(node.input)[1:]:
        return False
    return tensor == node.input[0] or _has_foldable_bias(graph, node)


def _channels(graph: Graph, node: onnx.NodeProto, *, made: bool) -> int:
    weight = _weight(graph, node)
    assert weight is not None
    return int(weight.shape[0 if made == (node.op_type == "Conv") else 1])


def _weight(graph: Graph, node: onnx.NodeProto) -> Array | None:
    """Return the weight of a convolution along time that can take factors over, or None."""
    weight = _own_constant(graph, node.input[1])
    if weight is None or weight.ndim != 3 or attribute(node, "group", 1) != 1:
        return None
    return weight


def _has_foldable_bias(graph: Graph, node: onnx.NodeProto) -> bool:
    if len(node.input) < 3 or not node.input[2]:
        return True
    return _own_constant(graph, node.input[2]) is not None


def _own_constant(graph: Graph, tensor: str) -> Array | None:
    """Return a constant that one operator reads and no caller can replace."""
    value = graph.constant(tensor)
    own = graph.only_reader(tensor) is not None and tensor not in graph.inputs
    return value if own and value is not None and value.dtype == np.float32 else None
