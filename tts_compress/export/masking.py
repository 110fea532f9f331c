"""The operators that read behind the end of an utterance, and the part that masks make exact.

Masked sums give the statistics of an utterance alone. Whatever else reads the whole time, draws
noise, or is not finite behind the end stays with the encoder, and all that it is made of: LSTMs,
attention, the sines of a pitch, spectra. An utterance then fits into a graph or is refused: it has
no windows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import onnx

from tts_compress.errors import ModelError
from tts_compress.onnx.graph import Graph, ancestors, attribute, reach, tensors_read
from tts_compress.onnx.receptive import Field, NotLocalError, Window, kind_of, read_node
from tts_compress.onnx.stages import arithmetic

_MASKED = frozenset({"Conv", "ConvTranspose", "Pad"})
"""Operators that may read or keep what is behind the end of an utterance."""

_HARMLESS = frozenset({"Reshape", "Resize", "Slice", "Upsample"})
"""Operators that move time and read no neighbours; `Resize` as far as it repeats values."""

NORMALIZING = "InstanceNormalization"

_LEAST = 0.5
"""Share of the arithmetic that has to get fixed sizes: less is not worth a device."""

_UNBOUNDED = {"Div": 1, "Log": 0, "Reciprocal": 0}
"""Operators that are not finite where an input, by its position, is zero."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", NORMALIZING})
"""Operators that the device computes, even where the encoder makes all that they read."""


def maskable(field: Field, node: onnx.NodeProto) -> bool:
    """Return True for an operator that can be masked, and note what it reads."""
    try:
        links, _, _ = read_node(field, node)
    except NotLocalError:
        source = node.input[0] if node.input else ""
        is_norm = node.op_type == NORMALIZING and field.axis(source) == 2
        if not is_norm or len(field.shape(source)) != 3:
            return False
        links = {node.output[0]: [(source, Window())]}
    position = _UNBOUNDED.get(node.op_type)
    if position is not None and field.is_timed(node.input[position]):
        return False
    field.links |= links
    try:
        reads_on(field.graph, field, node, "")
    except ModelError:
        return False
    return True


def reads_on(graph: Graph, field: Field, node: onnx.NodeProto, spec: str) -> bool:
    """Return True if an operator reads or keeps what is behind the end, so that it is masked."""
    windows = [w for output in node.output for _, w in field.links.get(output, ())]
    if all((w.times, w.over, w.low, w.high) == (1, 1, 0, 0) for w in windows):
        return False
    kind = node.op_type
    mode = attribute(node, "mode", "constant" if kind == "Pad" else "nearest")
    pads = graph.constant(node.input[1]) if kind == "Pad" else None
    if pads is not None and pads[len(pads) // 2 + (field.axis(node.input[0]) or 0)] <= 0:
        return False  # at the beginning alone
    if kind == "Pad" and mode == "constant" and len(node.input) > 2 and node.input[2]:
        value = graph.constant(node.input[2])
        mode = "constant" if value is not None and not value.any() else "other"
    if kind in _MASKED and mode in {"constant", "nearest"}:
        return True
    if kind in _HARMLESS and mode == "nearest":
        return False
    advice = "; compress it with --format qdq" if kind.startswith("QLinear") else ""
    raise ModelError(
        f"'{spec}' cannot have fixed sizes: {kind} '{node.name or node.output[0]}' reads behind "
        f"the end of an utterance{advice}"
    )


def split_whole(field: Field, outputs: Sequence[str], spec: str) -> tuple[list[str], list[str]]:
    """Return the tensors with time, then those without, that the part of fixed sizes reads.

    Raises:
        ModelError: Most of the arithmetic stays with the encoder; the operators are named.
    """
    graph = field.graph
    makers = {name: node for node in graph.nodes for name in node.output if name}
    wanted = {id(node) for node in ancestors(makers, outputs)}
    nodes = [node for node in graph.nodes if id(node) in wanted]
    timed = [n for n in nodes if any(field.is_timed(name) for name in n.output if name)]
    blocked = [node for node in timed if not maskable(field, node)]
    host = {id(node) for node in ancestors(makers, [t for n in blocked for t in n.output if t])}
    for node in timed:  # in the order of the graph
        sources = [name for name in node.input if name and field.is_timed(name)]
        inside = all(name not in makers or id(makers[name]) in host for name in sources)
        if inside and node.op_type not in _WEIGHTED:
            host.add(id(node))
    _check_share(field, [n for n in nodes if id(n) not in host], blocked, spec)
    reads, sides = dict[str, None](), dict[str, None]()

    def behind(name: str) -> Iterator[str]:
        maker = makers.get(name)
        if field.is_timed(name):
            if maker is None or id(maker) in host:
                reads[name] = None
            else:
                yield from (source for source in tensors_read(maker) if source)
        elif graph.constant(name) is None:
            if maker is None or (id(maker) in host and kind_of(field, name)[0] == "side"):
                sides[name] = None
            else:
                yield from (source for source in tensors_read(maker) if source)

    reach(outputs, behind)
    return sorted(reads, key=field.size), sorted(sides)


def _check_share(
    field: Field, device: Sequence[onnx.NodeProto], blocked: Sequence[onnx.NodeProto], spec: str
) -> None:
    """Refuse a graph of whose arithmetic little gets fixed sizes."""
    whole = sum(arithmetic(field, node) for node in field.graph.nodes)
    share = sum(arithmetic(field, node) for node in device) / whole
    if share < _LEAST:
        counts = Counter(node.op_type for node in blocked).most_common()
        names = ", ".join(f"{count} × {name}" for name, count in counts)
        raise ModelError(
            f"'{spec}' cannot have fixed sizes: {100 * (1 - share):.0f} % of its arithmetic is "
            f"before or in what reads the whole time or behind its end: {names or 'all of it'}"
        )


def mask_statistics(graph: Graph, node: onnx.NodeProto, mask: str) -> None:
    """Replace an `InstanceNormalization` of (1, C, T) by one of the moments that a mask keeps."""
    source, weight, bias = node.input
    stem, axes = node.output[0], graph.share_constant("tts_compress.time", np.array([2]))
    column = graph.share_constant("tts_compress.column", np.array([-1, 1]))
    epsilon = np.array(attribute(node, "epsilon", 1e-5), np.float32)

    def make(operator: str, *inputs: str) -> str:
        return graph.make(operator, inputs, f"{stem}/{operator}")

    count = make("ReduceSum", mask, axes)
    mean = make("Div", make("ReduceSum", make("Mul", source, mask), axes), count)
    centered = make("Mul", make("Sub", source, mean), mask)
    square = make("Div", make("ReduceSum", make("Mul", centered, centered), axes), count)
    room = graph.add_constant(graph.fresh(f"{stem}/epsilon"), epsilon)
    normal = make("Div", centered, make("Sqrt", make("Add", square, room)))
    scaled = make("Mul", normal, make("Reshape", weight, column))
    graph.remove(node)
    graph.add("Add", [scaled, make("Reshape", bias, column)], [stem])
