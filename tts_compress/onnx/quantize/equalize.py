"""Cross-layer equalisation: channels of one tensor brought to about the same range, exactly.

A tensor of codes has one scale for all its channels, so a quiet channel beside a loud one keeps few
of its 256 levels. Convolutions can take over a factor per channel, 1/s in the rows of those that
make a tensor and s in the columns of those that read it, and operators between them do not notice
where they are positively homogeneous: f(s·x) = s·f(x) for s > 0. Where codes are made of real
numbers, or are turned into some, a product can take over the factor: one more pass over the tensor,
which what is normalized by channel has for free, because its codes may have a scale for each.

After Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019);
the factors come from observed activations, as in Xiao et al., "SmoothQuant" (2022), because weights
have a scale per output channel here and need no equalising themselves.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph, tensors_read
from tts_compress.onnx.integer.emitter import channel_factors
from tts_compress.onnx.integer.region import is_normalized
from tts_compress.onnx.modules import read_convolution
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

    channels: int
    producers: tuple[onnx.NodeProto, ...]
    """Convolutions that make one of them."""

    consumers: tuple[onnx.NodeProto, ...]
    """Convolutions that read one of them."""

    entries: Mapping[str, tuple[onnx.NodeProto, ...]]
    """Those of them that operators on real numbers make, with the readers on codes."""

    exits: Mapping[str, tuple[onnx.NodeProto, ...]]
    """Those of them that are made on codes and read as real numbers, with these readers."""


def equalize_channels(
    graph: Graph,
    coded: Sequence[str],
    calls: Iterator[Feeds],
    on_codes: Collection[str] = (),
    *,
    with_products: bool = False,
) -> None:
    """Bring the channels of a graph's tensors to about the same range; the graph stays equal.

    Args:
        graph: A prepared graph in FP32.
        coded: Tensors that will be rounded to codes with one scale each.
        calls: Inputs of the graph with fed noise, of which the first few are used.
        on_codes: First outputs of the nodes that will compute on codes.
        with_products: True to put products wherever codes begin and end.

    Raises:
        QuantizationError: A tensor had values that are not finite, or there were no calls.
    """
    groups = find_groups(graph, on_codes if with_products else None)
    if not with_products:
        groups += [group for group in find_groups(graph, on_codes) if _is_end(graph, group)]
    grouped = {tensor for group in groups for tensor in group.tensors}
    tensors = [tensor for tensor in coded if tensor in grouped]
    equalize(graph, groups, collect_peaks(graph.model, tensors, islice(calls, _CALLS)))
    graph.infer_types()


def _is_end(graph: Graph, group: Group) -> bool:
    """Return True if a group is the result of a convolution that is normalized by channel."""
    is_made = not group.consumers and not group.entries
    return is_made and all(is_normalized(graph, tensor) for tensor in group.exits)


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
        shown = [peaks[tensor] for tensor in group.tensors if tensor in peaks]
        if shown and all(len(peak) == group.channels for peak in shown):
            _fold(graph, group, _factors(shown))
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
        _scale_rows(graph, node, 1 / factors)
    for node in group.consumers:
        _scale_columns(graph, node, factors)
    for tensor, readers in group.entries.items():
        _multiply(graph, tensor, 1 / factors, readers)
    for tensor, readers in group.exits.items():
        _multiply(graph, tensor, factors, readers)


def _scale_rows(graph: Graph, node: onnx.NodeProto, factors: Array) -> None:
    """Let a convolution return its channels multiplied by factors, (C_out,)."""
    _scale(graph, node, 1, factors, 0 if node.op_type == "Conv" else 1)
    if len(node.input) > 2 and node.input[2]:
        _scale(graph, node, 2, factors, 0)


def _scale_columns(graph: Graph, node: onnx.NodeProto, factors: Array) -> None:
    """Let a convolution multiply the channels that it reads by factors, (C_in,)."""
    _scale(graph, node, 1, factors, 1 if node.op_type == "Conv" else 0)


def _multiply(graph: Graph, tensor: str, factors: Array, readers: Sequence[onnx.NodeProto]) -> None:
    """Let some readers of a tensor (B, C, T) read it with its channels multiplied, (C,)."""
    column = graph.add_constant(f"{tensor}.factors", factors.astype(np.float32)[:, None])
    graph.redirect(tensor, graph.make("Mul", [tensor, column], f"{tensor}.multiplied"), readers)


def _scale(graph: Graph, node: onnx.NodeProto, position: int, factors: Array, axis: int) -> None:
    """Multiply a weight or bias along an axis."""
    values = graph.value(node.input[position])
    shape = [1] * values.ndim
    shape[axis] = -1
    scaled = (values * factors.reshape(shape)).astype(np.float32)
    name = node.input[position].removesuffix(".equalized")
    graph.replace_input(node, position, graph.add_constant(f"{name}.equalized", scaled))


def find_groups(graph: Graph, on_codes: Collection[str] | None = None) -> list[Group]:
    """Return the groups to whose channels factors can be given without changing the graph.

    LeakyRelu, Relu, sums, and products with one number join what they read and what they make. A
    group is left out if a tensor of it comes from, or goes to, any other operator on codes but
    convolutions along time with one group and constant weights that nobody shares; if it is an
    output of the graph or read inside a branch or loop; or if its tensors differ in channels, so
    that a sum broadcasts.

    Args:
        graph: In FP32.
        on_codes: First outputs of the nodes that will compute on codes; None for all of them.
    """
    # Tensors that are joined share one dictionary of all of them.
    joined: dict[str, dict[str, None]] = {}
    coded = {id(n) for n in graph.nodes if on_codes is None or n.output[0] in on_codes}
    for node in (node for node in graph.nodes if id(node) in coded):
        merged: dict[str, None] = {}
        for tensor in _ends(graph, node):
            merged |= joined.get(tensor, {tensor: None})
        joined.update(dict.fromkeys(merged, merged))
    layers = [n for n in graph.nodes if id(n) in coded and n.op_type in _CONVOLUTIONS]
    beside = dict.fromkeys(t for node in layers for t in (node.input[0], node.output[0]))
    sets = {id(s): s for t in beside for s in [joined.setdefault(t, {t: None})]}
    hidden = {name for node in graph.nodes for name in tensors_read(node) - set(node.input)}
    barred = hidden | set(graph.outputs)
    if on_codes is None:
        barred |= set(graph.inputs)
    groups = [_group(graph, tuple(s), coded) for s in sets.values() if barred.isdisjoint(s)]
    return [group for group in groups if group is not None]


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


def _group(graph: Graph, tensors: tuple[str, ...], coded: Collection[int]) -> Group | None:
    """Return a set of joined tensors as a group, or None if it cannot be one."""
    producers: list[onnx.NodeProto] = []
    consumers: list[onnx.NodeProto] = []
    entries: dict[str, tuple[onnx.NodeProto, ...]] = {}
    exits: dict[str, tuple[onnx.NodeProto, ...]] = {}
    channels: set[int] = set()
    for tensor in tensors:
        maker, readers = graph.producer(tensor), graph.readers(tensor)
        inside = tuple(node for node in readers if id(node) in coded)
        if maker is None or id(maker) not in coded:
            entries[tensor], beside = inside, [*inside]
        else:
            beside = [maker, *inside]
            if len(inside) < len(readers):
                exits[tensor] = tuple(node for node in readers if id(node) not in coded)
        for node in beside:
            if node.op_type not in _CONVOLUTIONS:
                if tensor not in _ends(graph, node):
                    return None
                continue
            width = _width(graph, node, makes=node is maker)
            if width is None:
                return None
            (producers if node is maker else consumers).append(node)
            channels.add(width)
    if len(channels) != 1 or not (consumers or exits):
        return None
    return Group(
        tensors=tensors,
        channels=channels.pop(),
        producers=tuple(producers),
        consumers=tuple(consumers),
        entries=entries,
        exits=exits,
    )


def _width(graph: Graph, node: onnx.NodeProto, *, makes: bool) -> int | None:
    """Return the channels that a convolution makes, or reads; None if they take no factors."""
    convolution = read_convolution(graph, node)
    changed = node.input[1:3] if makes else node.input[1:2]
    if convolution is None or convolution.groups != 1:
        return None
    if not all(_is_own(graph, tensor) for tensor in changed):
        return None
    width: int = convolution.weight.shape[0 if makes == (node.op_type == "Conv") else 1]
    return width


def fold_factors(graph: Graph, on_codes: Collection[str]) -> None:
    """Give products by channel back to the convolutions beside them that compute in real numbers.

    Args:
        graph: In FP32; finished afterwards.
        on_codes: First outputs of the nodes that will compute on codes.
    """
    for node in [n for n in graph.nodes if n.op_type == "Mul"]:
        factors = channel_factors(graph, node)
        if factors is None:
            continue
        source = next(t for t in node.input if graph.constant(t) is None)
        for reader in graph.readers(node.output[0]):
            is_real = reader.op_type in _CONVOLUTIONS and reader.output[0] not in on_codes
            if is_real and _width(graph, reader, makes=False) == len(factors):
                _scale_columns(graph, reader, factors)
                graph.redirect(node.output[0], source, [reader])
        maker = graph.producer(source)
        if maker is None or maker.op_type not in _CONVOLUTIONS or maker.output[0] in on_codes:
            continue
        alone = graph.only_reader(source) is not None and source not in graph.outputs
        if alone and _width(graph, maker, makes=True) == len(factors):
            _scale_rows(graph, maker, factors)
            graph.redirect(node.output[0], source)
    graph.finish()


def _is_own(graph: Graph, tensor: str) -> bool:
    """Return True if one operator reads a constant, if any, and no caller can replace it."""
    return not tensor or (graph.only_reader(tensor) is not None and tensor not in graph.inputs)
