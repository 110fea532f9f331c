"""Convolutions that take over their neighbours, and products apart from their sums."""

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.modules import Convolution, read_convolution
from tts_compress.onnx.nodes import attribute, copy_attributes
from tts_compress.onnx.rewrite.eliminate_identity import channel_bounds
from tts_compress.onnx.rewrite.normalization import Shape, known_shapes

_GATES = frozenset({"Sigmoid", "Tanh"})


def fold_padding(graph: Graph) -> int:
    """Fold Pad nodes into the convolutions that read them; return how many were folded.

    Required: constant, non-negative amounts of zeros behind the axes of batch and channels, and no
    reader but convolutions that state their own padding.
    """
    folded = 0
    for node in list(graph.nodes):
        amounts = _padding(graph, node) if node.op_type == "Pad" else None
        readers = graph.readers(node.output[0])
        takes_pads = readers and all(
            reader.op_type == "Conv" and attribute(reader, "auto_pad", "NOTSET") == "NOTSET"
            for reader in readers
        )
        if amounts is None or not takes_pads or node.output[0] in graph.outputs:
            continue
        if min(amounts) < 0:
            continue
        graph.remove(node)
        for reader in readers:
            before = attribute(reader, "pads", (0,) * len(amounts))
            pads = [present + more for present, more in zip(before, amounts, strict=True)]
            attributes = copy_attributes(reader) | {"pads": pads}
            graph.remove(reader)
            inputs = [node.input[0], *reader.input[1:]]
            graph.add("Conv", inputs, list(reader.output), name=reader.name, **attributes)
        folded += 1
    return folded


def fold_cropping(graph: Graph) -> int:
    """Fold cuts of the time into the convolutions that make what is cut; return how many.

    Causal networks convolve with padding on both sides, or upsample, and cut the end off.
    Required: constant amounts, nobody else who reads the whole, and enough padding to take away.
    """
    folded = 0
    for node in list(graph.nodes):
        maker = graph.producer(node.input[0]) if node.op_type in {"Slice", "Pad"} else None
        plain = None if maker is None else read_convolution(graph, maker)
        amounts = _cropping(graph, node)
        if maker is None or plain is None or amounts is None:
            continue
        # A transposed convolution crops by its padding, and another one has less of it.
        sign = 1 if maker.op_type == "ConvTranspose" else -1
        pads = [before + sign * more for before, more in zip(plain.pads, amounts, strict=True)]
        strided = maker.op_type == "Conv" and plain.stride != 1
        if strided or min(pads) < 0 or graph.only_reader(maker.output[0]) is None:
            continue
        if copy_attributes(maker).get("output_shape"):
            continue
        attributes = copy_attributes(maker) | {"pads": pads}
        for replaced in (node, maker):
            graph.remove(replaced)
        graph.add(maker.op_type, maker.input, list(node.output), maker.name, **attributes)
        folded += 1
    return folded


def split_convolutions(graph: Graph) -> int:
    """Split convolutions at the channels where their readers cut; return how many were split.

    Half of a WaveNet layer's channels go through tanh and half through a sigmoid: separate
    convolutions need no copy to be cut, and each half can have a quantization range of its own.
    Required: one group, constant weights, and as readers only forward slices of channels, or splits
    into gates: other parts of a `Split` gain nothing by layers of their own.
    """
    split = 0
    for node in list(graph.nodes):
        plain = _read(graph, node)
        if plain is None or node.output[0] in graph.outputs:
            continue
        if not (parts := _slices(graph, node, len(plain.weight))):
            continue
        for reader in graph.readers(node.output[0]):
            graph.remove(reader)
        for output, (begin, end) in parts:
            inputs = [node.input[0]]
            for name in filter(None, node.input[1:]):
                part = graph.value(name)[begin:end]
                inputs.append(graph.add_constant(f"{name}.{begin}", part))
            name = f"{node.name}.{begin}"
            graph.add("Conv", inputs, [output], name, **copy_attributes(node))
        graph.remove(node)
        split += 1
    return split


def merge_pointwise(graph: Graph) -> int:
    """Merge pointwise convolutions with those whose sum they read; return how many were merged.

    A WaveNet adds up its layers' skip outputs and projects the sum. Both steps are linear, so the
    layers' inputs, side by side, times one matrix give the same: fewer products, fewer roundings.
    Required: constant weights, nobody else reads the parts, no part that is known to be repeated
    along an axis, as that of a speaker is, and the merged matrix is no larger.
    """
    merged, shapes = 0, known_shapes(graph)
    for node in list(graph.nodes):
        last = _pointwise(graph, node)
        leaves = _summands(graph, node.input[0]) if last is not None else []
        parts = [part for leaf in leaves if (part := _pointwise(graph, leaf)) is not None]
        if last is None or len(leaves) < 2 or len(parts) < len(leaves):
            continue
        if _is_repeated([shapes[leaf.output[0]] for leaf in leaves if leaf.output[0] in shapes]):
            continue
        sources = sum(part.weight.shape[1] for part in parts)
        if sum(part.weight.size for part in (*parts, last)) > len(last.weight) * sources:
            _emit_merged(graph, node, [leaf.input[0] for leaf in leaves], [last, *parts])
            merged += 1
    return merged


def _padding(graph: Graph, node: onnx.NodeProto) -> tuple[int, ...] | None:
    """Return the zeros put before all axes from the third on, and then behind; None for others."""
    pads = graph.constant(node.input[1]) if len(node.input) > 1 else None
    if pads is None or pads.size < 6 or attribute(node, "mode", "constant") != "constant":
        return None
    if len(node.input) > 2 and node.input[2] and graph.scalar(node.input[2]) != 0:
        return None
    begins, ends = np.split(pads, 2)
    plain = not begins[:2].any() and not ends[:2].any() and len(node.input) < 4
    return tuple(map(int, (*begins[2:], *ends[2:]))) if plain else None


def _cropping(graph: Graph, node: onnx.NodeProto) -> tuple[int, int] | None:
    """Return the steps cut from beginning and end of (B, C, T), or None for anything else."""
    values = [graph.constant(tensor) for tensor in node.input[1:]]
    if node.op_type == "Pad":
        pads = _padding(graph, node)
        cuts = pads is not None and len(pads) == 2 and max(pads) <= 0
        return (-pads[0], -pads[1]) if pads is not None and cuts else None
    if node.op_type != "Slice" or len(values) < 3 or any(v is None or v.size != 1 for v in values):
        return None
    begin, end, axis, *step = (int(v.reshape(-1)[0]) for v in values if v is not None)
    is_cut = axis in {2, -1} and step in ([], [1]) and begin >= 0
    if not is_cut or not (end < 0 or end >= np.iinfo(np.int32).max):
        return None
    return begin, max(0, -end)


def _slices(graph: Graph, node: onnx.NodeProto, channels: int) -> list[tuple[str, tuple[int, int]]]:
    """Return what is cut out of a convolution, and its channels; nothing unless all is cut."""
    parts = []
    for reader in graph.readers(node.output[0]):
        cuts = _pieces(graph, reader, channels)
        if not cuts or any(output in graph.outputs for output, _ in cuts):
            return []
        parts += cuts
    # Overlapping slices would be computed twice.
    total = sum(end - begin for _, (begin, end) in parts)
    return parts if total <= channels else []


def _pieces(
    graph: Graph, reader: onnx.NodeProto, channels: int
) -> list[tuple[str, tuple[int, int]]]:
    """Return the pieces that a Slice or Split of channels makes; nothing for other operators."""
    if reader.op_type == "Slice":
        bounds = channel_bounds(graph, reader, channels)
        forward = len(reader.input) < 5 or graph.scalar(reader.input[4]) == 1
        return [(reader.output[0], bounds)] if bounds is not None and forward else []
    if reader.op_type != "Split" or attribute(reader, "axis", 0) not in {1, -2}:
        return []
    if not any(r.op_type in _GATES for part in reader.output for r in graph.readers(part)):
        return []
    # Without sizes the parts are equal, but the last one, which may be smaller.
    count = len(reader.output)
    equal = np.full(count, -(-channels // count))
    sizes = graph.constant(reader.input[1]) if len(reader.input) > 1 else equal
    if sizes is None:
        return []
    ends = np.minimum(np.cumsum(sizes), channels).tolist()
    return list(zip(reader.output, zip([0, *ends], ends, strict=False), strict=True))


def _emit_merged(
    graph: Graph, node: onnx.NodeProto, sources: list[str], convolutions: list[Convolution]
) -> None:
    """Replace the first convolution, and those that make its input, by one on their sources."""
    stem = node.output[0]
    # Products in float64: the merged weights are rounded once.
    (matrix, bias), *parts = [(c.weight[:, :, 0].astype(np.float64), c.bias) for c in convolutions]
    weight = np.concatenate([matrix @ part for part, _ in parts], axis=1)
    bias = sum((matrix @ more for _, more in parts), bias.astype(np.float64))
    graph.remove(node)
    joined = graph.make("Concat", sources, f"{stem}.parts", axis=1)
    merged, merged_bias = weight[:, :, None].astype(np.float32), bias.astype(np.float32)
    constants = graph.add_constants(stem, merged=merged, merged_bias=merged_bias)
    graph.add("Conv", [joined, *constants], [stem], node.name, kernel_shape=[1])


def _summands(graph: Graph, tensor: str) -> list[onnx.NodeProto]:
    """Return the nodes whose sum a tensor is; empty where a part has another reader."""
    node = graph.producer(tensor)
    if node is None or graph.only_reader(tensor) is None:
        return []
    if node.op_type != "Add":
        return [node]
    sides = [_summands(graph, side) for side in node.input]
    return [leaf for side in sides for leaf in side] if all(sides) else []


def _is_repeated(shapes: list[Shape]) -> bool:
    """Return True if tensors whose sum is taken have a size of one where others may have more."""
    return any(1 in sizes and set(sizes) != {1} for sizes in zip(*shapes, strict=False))


def _read(graph: Graph, node: onnx.NodeProto) -> Convolution | None:
    """Return a Conv of one group."""
    plain = read_convolution(graph, node) if node.op_type == "Conv" else None
    return plain if plain is not None and plain.groups == 1 else None


def _pointwise(graph: Graph, node: onnx.NodeProto) -> Convolution | None:
    """Return a Conv whose outputs depend on inputs of the same frame only."""
    plain = _read(graph, node)
    if plain is None or plain.weight.shape[2] != 1 or plain.stride != 1 or any(plain.pads):
        return None
    return plain


def split_gemms(graph: Graph) -> int:
    """Write each `Gemm` with a constant matrix as MatMul and Add; return how many were written.

    The runtime puts the two together again where they stay in FP32. Factors go into the constants.
    Required: a matrix and a bias that are constant FP32, and an input that is not transposed.
    """
    split = 0
    for node in list(graph.nodes):
        constants = _gemm_constants(graph, node) if node.op_type == "Gemm" else None
        if constants is None:
            continue
        matrix, bias = constants
        stem = product = node.output[0]
        graph.remove(node)
        if bias is not None:
            product = graph.fresh(f"{stem}.product")
            added = _constant(graph, node.input[2], bias)
            graph.add("Add", [product, added], [stem], f"{node.name or stem}_bias")
        weight = _constant(graph, node.input[1], matrix)
        graph.add("MatMul", [node.input[0], weight], [product], node.name or stem)
        split += 1
    return split


def _gemm_constants(graph: Graph, node: onnx.NodeProto) -> tuple[Array, Array | None] | None:
    """Return the matrix (inputs, outputs) and the bias or None; None for another Gemm."""
    matrix = graph.constant(node.input[1])
    if matrix is None or matrix.dtype != np.float32 or attribute(node, "transA", 0):
        return None
    matrix = matrix.T if attribute(node, "transB", 0) else matrix
    matrix = matrix * np.float32(attribute(node, "alpha", 1.0))
    if len(node.input) < 3 or not node.input[2]:
        return matrix, None
    bias = graph.constant(node.input[2])
    return None if bias is None else (matrix, bias * np.float32(attribute(node, "beta", 1.0)))


def _constant(graph: Graph, name: str, value: Array) -> str:
    """Return the name of a constant that is an original one, or that one turned or multiplied."""
    original = graph.value(name)
    if np.array_equal(original, value):
        return name
    if np.array_equal(original.T, value):
        return graph.share_constant(f"{name}.turned", value)
    return graph.add_constant(f"{name}.multiplied", value)
