"""A voice whose sound is made in fixed sizes, for NPUs and delegates that take no others.

`fixed/` holds the encoder, which makes frames of a text on the host, a graph for each number of
frames, and `fixed.json`, which states what the host does: pad, mask, and cut.

What is local in time is cut out and takes a number of frames that never changes. What lies behind
the end of a shorter utterance is multiplied by zero wherever an operator would read it: there the
graph with the utterance's own length pads with zeros, so the values are the same. Where most is
not local for its statistics over time alone, as in Kokoro, these are taken by masked sums. Whatever
else reads the whole time, draws noise, or is not finite behind the end stays with the encoder, and
all that it is made of: LSTMs, attention, the sines of a pitch, spectra. An utterance then fits into
a graph or is refused: it has no windows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tts_compress.errors import ModelError
from tts_compress.export.stream import NOT_PLAIN, beside, is_plain, stated_inputs, write_settings
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import prepare_part
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.nodes import ancestors, attribute, copy_attributes, reach, tensors_read
from tts_compress.onnx.receptive import (
    Field,
    NotLocalError,
    Window,
    kind_of,
    observe_shapes,
    read_node,
    walk,
)
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.stages import Stage, arithmetic, single_stage, whole_stage

_MASKED = frozenset({"Conv", "ConvTranspose", "Pad"})
"""Operators that may read or keep what is behind the end of an utterance."""

_HARMLESS = frozenset({"Reshape", "Resize", "Slice", "Upsample"})
"""Operators that move time and read no neighbours; `Resize` as far as it repeats values."""

_NORMALIZING = "InstanceNormalization"

_LEAST = 0.5
"""Share of the arithmetic that has to get fixed sizes: less is not worth a device."""

_BROADCAST = 1 << 13
"""Steps up to which RKNN-Toolkit2 2.5 broadcasts a factor over channels. Above, it writes sizes
that do not fit into the NPU's registers, and says so; factors of equal shapes it divides."""

_UNBOUNDED = {"Div": 1, "Log": 0, "Reciprocal": 0}
"""Operators that are not finite where an input, by its position, is zero."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", _NORMALIZING})
"""Operators that the device computes, even where the encoder makes all that they read."""


def _maskable(field: Field, node: onnx.NodeProto) -> bool:
    """Return True for an operator that can be masked, and note what it reads."""
    try:
        links, _, _ = read_node(field, node)
    except NotLocalError:
        source = node.input[0] if node.input else ""
        is_norm = node.op_type == _NORMALIZING and field.axis(source) == 2
        if not is_norm or len(field.shape(source)) != 3:
            return False
        links = {node.output[0]: [(source, Window())]}
    position = _UNBOUNDED.get(node.op_type)
    if position is not None and field.is_timed(node.input[position]):
        return False
    field.links |= links
    try:
        _reads_on(field.graph, field, node, "")
    except ModelError:
        return False
    return True


def _reads_on(graph: Graph, field: Field, node: onnx.NodeProto, spec: str) -> bool:
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
    is_ours = any(other.op_type.startswith("QLinear") for other in graph.nodes)
    advice = "; compress it with --format qdq" if is_ours else ""
    raise ModelError(
        f"'{spec}' cannot have fixed sizes: {kind} '{node.name or node.output[0]}' reads behind "
        f"the end of an utterance{advice}"
    )


def _split_whole(field: Field, outputs: Sequence[str], spec: str) -> tuple[list[str], list[str]]:
    """Return the tensors with time, then those without, that the part of fixed sizes reads."""
    graph = field.graph
    makers = {name: node for node in graph.nodes for name in node.output if name}
    wanted = {id(node) for node in ancestors(makers, outputs)}
    nodes = [node for node in graph.nodes if id(node) in wanted]
    timed = [n for n in nodes if any(field.is_timed(name) for name in n.output if name)]
    blocked = [node for node in timed if not _maskable(field, node)]
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


def _mask_statistics(graph: Graph, node: onnx.NodeProto, mask: str) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """An input of ones up to the end of an utterance, and zeros behind it."""

    shape: tuple[int, ...]
    axis: int
    """Axis of time."""

    hop: int
    """Steps for each frame."""

    extra: int
    """Steps beyond those."""

    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedGraph:
    """A graph that makes sound of a fixed number of frames."""

    model: onnx.ModelProto
    frames: int
    stage: Stage
    """Its inputs and output; an utterance of more frames is made in windows, or refused."""

    inputs: dict[str, Mask]
    """Rates of the inputs with time."""

    masks: dict[str, Mask]
    """Inputs by name, besides the frames and the tensors without time."""


def fix_graph(
    model: onnx.ModelProto,
    calls: Sequence[Feeds],
    outputs: Sequence[str],
    sizes: Sequence[int],
    spec: str,
) -> tuple[onnx.ModelProto | None, list[FixedGraph]]:
    """Return the graph that makes frames of a text, and one for each number of frames.

    Args:
        model: The graph; not changed.
        calls: Inputs of two calls of different lengths.
        outputs: Outputs that are sound.
        sizes: Numbers of frames.
        spec: Its name in messages.
    """
    field = walk(Graph(copy_model(model)), observe_shapes(model, calls, spec), outputs)
    try:
        encoder, stage, part = single_stage(model, field, spec)
    except ModelError:
        reads, sides = _split_whole(field, outputs, spec)
        encoder, stage, part = whole_stage(model, field, reads, sides, outputs)
    around = stage.before + stage.after
    if max(sizes) <= around:
        raise ModelError(
            f"'{spec}' reads {around} frames around each, so the largest size, in which longer "
            f"utterances are made, is {around + 1} or more"
        )
    return encoder, [_fixed(copy_model(part), stage, field, size, spec) for size in sizes]


def _fixed(part: onnx.ModelProto, stage: Stage, field: Field, frames: int, spec: str) -> FixedGraph:
    graph, masks = Graph(part), dict[str, Mask]()
    for node in list(graph.nodes):
        is_norm = node.op_type == _NORMALIZING
        if is_norm or _reads_on(graph, field, node, spec):
            dtype = "float32" if is_norm else _code_type(graph, node.input[0])
            mask = _mask(field, node.input[0], stage, frames, dtype)
            name = f"mask_{mask.hop}_{mask.extra}_{mask.axis}_{len(mask.shape)}_{mask.dtype}"
            masks[name] = mask
            if is_norm:
                _mask_statistics(graph, node, name)
            else:
                channels = field.shape(node.input[0])[1] if mask.axis != 1 else 1
                graph.replace_input(node, 0, _masked(graph, node.input[0], name, mask, channels))
    _widen_turned(graph)
    inputs = {name: _mask(field, name, stage, frames, "float32") for name in stage.reads}
    for value in graph.model.graph.input:
        shape = list(field.shape(value.name))
        if value.name in inputs:
            shape[inputs[value.name].axis] = max(inputs[value.name].shape)
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, shape))
    for name, mask in masks.items():
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(mask.dtype))
        graph.model.graph.input.append(helper.make_tensor_value_info(name, kind, mask.shape))
    fixed = _with_sizes(graph.finish())
    _check_sizes(fixed, spec)
    return FixedGraph(model=fixed, frames=frames, stage=stage, inputs=inputs, masks=masks)


def _code_type(graph: Graph, tensor: str) -> str:
    """Return the type of a tensor's mask: that of its codes, `float32` for none and for 16 bits."""
    maker = graph.producer(tensor)
    if maker is None or maker.op_type != "DequantizeLinear":
        return "float32"
    zero = graph.constant(maker.input[2]) if len(maker.input) > 2 else None
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    return "float32" if kind.itemsize > 1 else str(kind)


def _mask(field: Field, tensor: str, stage: Stage, frames: int, dtype: str) -> Mask:
    """Return the mask of a tensor whose length follows from the number of frames."""
    axis = field.axis(tensor) or 0
    short, long = (shape[axis] for shape in field.shapes[tensor])
    old, new = (shape[stage.axis] for shape in field.shapes[stage.reads[0]])
    hop = Fraction(long - short, new - old)
    extra = short - hop * old
    if hop.denominator > 1:
        raise ModelError(f"'{tensor}' has no whole number of steps for each frame")
    shape = [1] * len(field.shape(tensor))
    shape[axis] = int(hop * frames + extra)
    return Mask(shape=tuple(shape), axis=axis, hop=int(hop), extra=int(extra), dtype=dtype)


def _masked(graph: Graph, tensor: str, name: str, mask: Mask, channels: int) -> str:
    """Return a tensor times a mask; between codes again where it was made of some."""
    masked = f"{tensor}/masked"
    if graph.producer(masked) is not None:
        return masked
    maker, is_wide = graph.producer(tensor), mask.dtype == "float32"
    if maker is None or maker.op_type != "DequantizeLinear":
        return graph.add("Mul", [tensor, _expanded(graph, name, mask, channels)], [masked])
    zero = np.array(0, np.uint16 if is_wide else mask.dtype)
    # With 1 as the code of 1, of 16 bits, Qualcomm's NPU keeps about ten bits.
    scale = np.array(1 / 65_535 if is_wide else 1, np.float32)
    ones = graph.share_constants(f"tts_compress.mask.{zero.dtype}", scale=scale, zero=zero)
    steps, domain = maker.input[1:], maker.domain
    if is_wide and graph.producer(f"{name}/codes") is None:
        graph.add("QuantizeLinear", [name, *ones], [f"{name}/codes"], domain=domain)
    source = f"{name}/codes" if is_wide else name
    real = graph.make("DequantizeLinear", [source, *ones], f"{masked}/mask", domain=domain)
    product = graph.make("Mul", [tensor, real], f"{masked}/product")
    codes = graph.make("QuantizeLinear", [product, *steps], f"{masked}/codes", domain=domain)
    attributes = copy_attributes(maker) | {"domain": domain}
    return graph.add("DequantizeLinear", [codes, *steps], [masked], **attributes)


def _expanded(graph: Graph, name: str, mask: Mask, channels: int) -> str:
    """Return a mask with all channels where RKNN would not broadcast it."""
    expanded = f"{name}/{channels}"
    if max(mask.shape) <= _BROADCAST or channels == 1:
        return name
    if graph.producer(expanded) is not None:
        return expanded
    shape = np.array([1, channels, *mask.shape[2:]], np.int64)
    return graph.add("Expand", [name, graph.add_constant(f"{expanded}/shape", shape)], [expanded])


def _widen_turned(graph: Graph) -> None:
    """Store weights in FP32 whose codes have scales along another axis than the first.

    Those of transposed convolutions in FP32 arithmetic: QNN's provider (2.7) leaves their
    `DequantizeLinear` to the CPU.
    """
    for node in [node for node in graph.nodes if node.op_type == "ConvTranspose"]:
        weight, makers = node.input[1], [graph.producer(name) for name in node.input]
        maker, kinds = makers[1], {each and each.op_type for each in makers}
        readers = {reader.op_type for reader in graph.readers(node.output[0])}
        if (kinds, readers) == ({"DequantizeLinear"}, {"QuantizeLinear"}):
            continue  # all in codes
        if maker is None or maker.op_type != "DequantizeLinear":
            continue
        codes, axis = graph.constant(maker.input[0]), attribute(maker, "axis", 1)
        scale, *zero = (graph.value(name) for name in maker.input[1:])
        if codes is None or axis == 0 or scale.ndim != 1:  # codes of four bits are computed
            continue
        shape = [-1 if number == axis else 1 for number in range(codes.ndim)]
        middle = zero[0].astype(np.float32).reshape(shape) if zero else np.float32(0)
        wide = (codes.astype(np.float32) - middle) * scale.reshape(shape)
        graph.replace_input(node, 1, graph.share_constant(f"{weight}/wide", wide))


def _with_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph with the sizes of all tensors that follow from those of its inputs."""
    plain = copy_model(model)
    for node in plain.graph.node:  # onnx knows the sizes of its own operators alone
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}:
            node.domain = ""
    sizes = onnx.shape_inference.infer_shapes(plain, data_prop=True).graph
    for mine, inferred in (
        (model.graph.value_info, sizes.value_info),
        (model.graph.output, sizes.output),
    ):
        del mine[:]
        mine.extend(inferred)
    return model


def _check_sizes(model: onnx.ModelProto, spec: str) -> None:
    """Refuse a graph that still has a size which follows from others at run time."""
    values = {v.name: v for v in (*model.graph.value_info, *model.graph.output)}
    for node in model.graph.node:
        for name in node.output:
            dims = values[name].type.tensor_type.shape.dim if name in values else None
            if dims is None or any(dim.dim_value < 1 for dim in dims):
                raise ModelError(
                    f"'{spec}' cannot have fixed sizes: that of {node.op_type} "
                    f"'{node.name or name}' is known at run time only"
                )


_NAME = "fixed/fixed.json"
_MOST = 1 << 14
"""Most frames of a graph; three minutes of most voices."""


def export_fixed(
    voice: OnnxVoice, directory: Path | str, sizes: Sequence[int], *, force: bool = False
) -> list[Path]:
    """Write a voice's files and `fixed/`.

    Args:
        voice: A voice of one graph that makes samples, compressed or not.
        directory: The directory to create.
        sizes: Numbers of frames; an utterance takes the smallest that holds it, or several windows.
        force: Replace an earlier export.

    Returns:
        `fixed.json`, then the encoder, then the graphs by size.

    Raises:
        ModelError: The voice has several graphs, is not local in time, or an operator or size does
            not fit; which is named.
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
    """
    if not is_plain(voice):
        raise ModelError(f"'{voice.spec}' has {NOT_PLAIN}; none of these is exported")
    if not sizes or not all(0 < size <= _MOST for size in sizes):
        raise ModelError(f"sizes are 1 to {_MOST} frames, such as 64,128,256")
    target = Path(directory)
    with beside(voice, target / _NAME, force=force) as folder:
        part, model, calls = voice.parts[""], voice.graph(), voice.two_calls("")
        prepared = prepare_part(part, model, calls, original=voice.manifest is None)
        encoder, graphs = fix_graph(*prepared, sorted(set(sizes)), voice.spec)
        if encoder is None:
            raise ModelError(f"'{voice.spec}' has no encoder; fix its inputs themselves")
        names = [f"sound-{graph.frames}.onnx" for graph in graphs]
        onnx.save(encoder, folder / "encoder.onnx")
        for name, graph in zip(names, graphs, strict=True):
            onnx.save(graph.model, folder / name)
        write_settings(_settings(voice, graphs, names), folder / Path(_NAME).name)
    return [target / _NAME, *((target / _NAME).parent / n for n in ("encoder.onnx", *names))]


def _settings(
    voice: OnnxVoice, graphs: Sequence[FixedGraph], names: Sequence[str]
) -> dict[str, Any]:
    """Return what a player has to know."""
    stage = graphs[0].stage
    return {
        "format_version": 1,
        "sample_rate": voice.sample_rate,
        "inputs": stated_inputs(voice),
        "encoder": "encoder.onnx",
        "reads": {
            name: {"axis": rate.axis, "hop": rate.hop, "extra": rate.extra}
            for name, rate in graphs[0].inputs.items()
        },
        "sides": stage.sides,
        "returns": stage.returns[0],
        "hop": stage.hop,
        "extra": stage.extra,
        "around": [stage.before, stage.after] if stage.has_chunks else None,
        "graphs": [
            {
                "graph": name,
                "frames": graph.frames,
                "masks": {name: asdict(mask) for name, mask in graph.masks.items()},
            }
            for name, graph in zip(names, graphs, strict=True)
        ],
    }
