"""The part of a graph that computes on codes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import onnx

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.integer.emitter import integer_form
from tts_compress.onnx.integer.projection import samples_at_once
from tts_compress.onnx.modules import read_convolution
from tts_compress.onnx.nodes import attribute

_INNER = frozenset({"Tanh", "Sigmoid", "Mul", "Concat"})
"""Operators that run on codes only before a convolution on codes: they round noticeably."""

_OWN_CODES = frozenset({"LeakyRelu", "Tanh", "Sigmoid"})
"""Operators whose codes follow from those of their input, or from the function."""

_AXES = 3
"""Number of axes of tensors (B, C, T)."""

_WIDEST_COPIED = 16
"""Channels up to which products of copied neighbours are as fast as a convolution."""

_KEEPS_LENGTH = frozenset(
    {"Identity", "LeakyRelu", "Relu", "Tanh", "Sigmoid", "Neg", "Exp"}
    | {"Add", "Sub", "Mul", "Div", "Sum"}
)


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum, perhaps times a positive factor, that only a LeakyRelu reads."""

    left: str
    right: str
    factor: float
    total: str
    """The sum before the factor."""


@dataclass(frozen=True, slots=True)
class Region:
    """Nodes that compute on codes, in graph order."""

    nodes: tuple[onnx.NodeProto, ...]
    real: Mapping[str, int]
    """Outputs of its convolutions that are computed as real numbers, with the number of samples
    computed together."""

    clipped: frozenset[str]
    """Outputs of its convolutions that only a Relu reads: never below zero in any code."""

    sums: Mapping[str, Sum]
    """The sums that LeakyRelus read, by the output of the LeakyRelu."""

    skipped: frozenset[str]
    """Outputs that exist neither as codes nor as real numbers: the inner parts of `sums`."""


def find_region(graph: Graph, convolutions: frozenset[str]) -> Region:
    """Return the convolutions with the given outputs, and the nodes that can follow on codes."""
    nodes = _grow(graph, convolutions)
    inside = {id(node) for node in nodes}
    real: dict[str, int] = {}
    clipped = set()
    divisors = length_divisors(graph)
    for node in (node for node in nodes if node.op_type == "Conv"):
        output, only = node.output[0], graph.only_reader(node.output[0])
        if not any(id(reader) in inside for reader in graph.readers(output)):
            is_term = only is not None and only.op_type == "Sum"
            if is_normalized(graph, output) or (is_term and not _is_narrow(graph, node)):
                continue  # real again from codes
            together = samples_at_once(graph, node, divisors.get(node.input[0], 1))
            real |= {output: together} if together else {}
        elif only is not None and only.op_type == "Relu":
            clipped.add(output)
    sums, skipped = _sums(graph, nodes)
    return Region(tuple(nodes), real, frozenset(clipped), sums, frozenset(skipped))


def observed_tensors(model: onnx.ModelProto, convolutions: frozenset[str]) -> list[str]:
    """Return the tensors whose ranges `emit_integer` asks for, in graph order.

    The graph is only read.
    """
    if not convolutions:
        return []
    graph = Graph(model)
    region = find_region(graph, convolutions)
    computed = {tensor for node in region.nodes for tensor in node.output}
    observed: dict[str, None] = {}
    for node in region.nodes:
        observed |= dict.fromkeys(t for t in _data(graph, node) if t not in computed)
        free = node.op_type in _OWN_CODES or positive_factor(graph, node) is not None
        if not free and node.output[0] not in region.clipped.union(region.real):
            observed[node.output[0]] = None
    return list(observed)


def make_residuals_float(graph: Graph, convolutions: frozenset[str]) -> int:
    """Take sums off the codes where that costs little; return how many.

    A residual network adds to streams that are loud where the voice is, and hardly a few steps
    high where it pauses. Three roundings (a convolution's result, its sum with the stream, and the
    sum of streams) make most of the audible noise, and none is necessary: a chain of `Add` becomes
    one `Sum`, which computes in FP32 only, and narrow convolutions that only it reads return FP32
    at once. This is done where streams end, which is seldom, and where a whole stream is narrow.

    Args:
        graph: In FP32; finished and typed again afterwards.
        convolutions: Outputs of those that compute on codes.
    """
    sums = [n for n in _grow(graph, convolutions) if n.op_type == "Add"]
    narrow = {node.output[0] for node in graph.nodes if _is_narrow(graph, node)}
    ends = set()
    for node in sums:
        readers = graph.readers(node.output[0])
        goes_on = len(readers) > 1 and any(reader.op_type in {"Add", "Sum"} for reader in readers)
        if not goes_on or not narrow.isdisjoint(node.input):
            ends.add(node.output[0])
    replaced = 0
    for node in (node for node in sums if node.output[0] in ends):
        reader = graph.only_reader(node.output[0])
        if reader is not None and reader.output[0] in ends:
            continue  # a part of that sum
        leaves = _summands(graph, node, ends)
        graph.remove(node)
        graph.add("Sum", leaves, [node.output[0]], name=node.name)
        replaced += 1
    graph.sweep()
    graph.infer_types()
    return replaced


def add_in_pairs(graph: Graph) -> None:
    """Compute sums by `Add`: in FP32 a `Sum` of three tensors takes as long as five of them.

    A convolution in blocks of channels also takes over an `Add` behind it.
    """
    for node in [node for node in graph.nodes if node.op_type == "Sum" and len(node.input) > 1]:
        graph.remove(node)
        total, *others, last = node.input
        for index, tensor in enumerate(others):
            part, name = f"{node.output[0]}.part", f"{node.name or node.output[0]}.{index}"
            total = graph.make("Add", [total, tensor], part, name)
        graph.add("Add", [total, last], node.output, node.name)


def length_divisors(graph: Graph) -> dict[str, int]:
    """Return divisors of the lengths T of tensors (B, C, T), where one above 1 is known."""
    divisors: dict[str, int] = {}
    for node in graph.nodes:
        if (divisor := _length_divisor(graph, node, divisors)) > 1:
            divisors[node.output[0]] = divisor
    return divisors


def is_normalized(graph: Graph, tensor: str) -> bool:
    """Return True if each channel of a tensor, or of a sum with it, is normalized over time.

    Then a convolution may return it as codes: the rounding counts against the spread of its own
    channel, like the rounding before it, and a normalized stream is never quiet. The same holds for
    the last term that is added to such a stream, behind its last normalization.
    """
    pending, seen = [tensor], {tensor}
    while pending:
        current = pending.pop()
        for reader in graph.readers(current):
            if reader.op_type == "InstanceNormalization":
                return True
            scaled = positive_factor(graph, reader) or channel_factors(graph, reader) is not None
            if scaled or reader.op_type in {"Add", "Sum"}:
                near = [reader.output[0], *_data(graph, reader)]
                pending += [name for name in near if name not in seen]
                seen.update(near)
    return False


def channel_factors(graph: Graph, node: onnx.NodeProto) -> Array | None:
    """Return the positive constant (C,) by which a Mul multiplies the channels of (B, C, T)."""
    values = [graph.by_channel(tensor) for tensor in node.input] if node.op_type == "Mul" else []
    value = next((value for value in values if value is not None), None)
    return value if value is not None and (value > 0).all() else None


def positive_factor(graph: Graph, node: onnx.NodeProto) -> float | None:
    """Return the positive number a Mul or Div multiplies by, or None where it does otherwise."""
    if node.op_type not in {"Mul", "Div"}:
        return None
    constants = (graph.constant(tensor) for tensor in node.input)
    if any(value is not None and value.ndim > _AXES for value in constants):
        return None  # the result has more axes than codes have
    value = graph.scalar(node.input[1])
    if value is None and node.op_type == "Mul":
        value = graph.scalar(node.input[0])
    if value is None or value <= 0:
        return None
    return 1 / value if node.op_type == "Div" else value


def _grow(graph: Graph, convolutions: frozenset[str]) -> list[onnx.NodeProto]:
    """Return the planned nodes and those between them, in graph order."""
    coded: set[str] = set()
    nodes = []
    for node in graph.nodes:
        if node.output[0] in convolutions or _follows(graph, node, coded):
            coded.update(node.output)
            nodes.append(node)
    kept: list[onnx.NodeProto] = []
    read: set[str] = set()
    for node in reversed(nodes):
        inner = node.op_type in _INNER and positive_factor(graph, node) is None
        if not inner or node.output[0] in read:
            kept.append(node)
            read.update(node.input)
    return kept[::-1]


def _sums(graph: Graph, nodes: list[onnx.NodeProto]) -> tuple[dict[str, Sum], set[str]]:
    inside = {node.output[0]: node for node in nodes}
    sums: dict[str, Sum] = {}
    skipped: set[str] = set()
    for node in (node for node in nodes if node.op_type == "LeakyRelu"):
        source, between, factor = inside[node.input[0]], list[str](), 1.0
        while graph.only_reader(source.output[0]) is not None:
            between.append(source.output[0])
            step = positive_factor(graph, source)
            if step is None:
                break
            factor *= step
            source = inside[next(t for t in source.input if graph.constant(t) is None)]
        if source.op_type == "Add" and source.output[0] in between:
            left, right = source.input
            sums[node.output[0]] = Sum(left, right, factor, source.output[0])
            skipped.update(between)
    return sums, skipped


def _follows(graph: Graph, node: onnx.NodeProto, coded: set[str]) -> bool:
    """Return True if a node has an integer form and all its data are codes already."""
    data = _data(graph, node)
    if not data or not coded.issuperset(data):
        return False
    if positive_factor(graph, node) is not None:
        # Left in floats, the runtime computes a whole GELU at once, of real numbers.
        reader = graph.only_reader(node.output[0])
        return reader is None or reader.op_type != "Erf"
    if node.op_type in {"LeakyRelu", "Relu", "Tanh", "Sigmoid"}:
        return 0 <= attribute(node, "alpha", 0.0) <= 1  # on codes it is the upper of two lines
    if node.op_type == "Concat":
        return attribute(node, "axis", 0) == 1 and len(data) == len(node.input)
    if node.op_type == "Add" and is_normalized(graph, node.output[0]):
        return False  # read as real numbers, which a sum of real numbers spares rounding
    return node.op_type in {"Add", "Mul"} and len(data) == 2


def _data(graph: Graph, node: onnx.NodeProto) -> list[str]:
    """Return a node's inputs that are not constants."""
    return [tensor for tensor in node.input if tensor and graph.constant(tensor) is None]


def _is_narrow(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return True for a convolution with few channels."""
    plain = read_convolution(graph, node) if node.op_type == "Conv" else None
    return plain is not None and len(plain.weight) <= _WIDEST_COPIED


def _summands(graph: Graph, node: onnx.NodeProto, ends: set[str]) -> list[str]:
    """Return the summands of a sum, also of those sums that only it reads."""
    summands: list[str] = []
    for tensor in node.input:
        maker = graph.producer(tensor)
        inner = tensor in ends and graph.only_reader(tensor) is not None
        summands += _summands(graph, maker, ends) if maker is not None and inner else [tensor]
    return summands


def _length_divisor(graph: Graph, node: onnx.NodeProto, divisors: Mapping[str, int]) -> int:
    """Return a divisor of the length of a node's result."""
    if node.op_type == "ConvTranspose":
        form = integer_form(graph, node)
        return 1 if form is None else divisors.get(node.input[0], 1) * form.phases
    if node.op_type == "Conv":
        plain = read_convolution(graph, node)
        return divisors.get(node.input[0], 1) if plain is not None and plain.keeps_length else 1
    joins = node.op_type == "Concat" and attribute(node, "axis", 0) == 1
    if joins or node.op_type in _KEEPS_LENGTH:
        return gcd(*(divisors.get(t, 1) for t in node.input if graph.constant(t) is None))
    return 1
