"""Convolutions that leave the integers: matrix products whose accumulator is scaled to FP32.

QLinearConv only returns 8 bits. A result that is read as real numbers anyway (the audio itself, a
flow's shift, the encoder's residual stream) is spared that rounding.
"""

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import onnx

from tts_compress.numerics.weights import Blocks
from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.integer.emitter import Coded, Emitter, spare_columns
from tts_compress.onnx.modules import Convolution, read_convolution
from tts_compress.onnx.weight_codes import store_blocks

_BLOCK = 8
"""Samples computed together where channels are few: 8 x 3 columns fill a product's registers."""

_MANY = 16
"""Columns from which a product is wide enough."""

_GROUP = 4
"""Samples whose overlapping neighbourhoods are laid side by side as one where channels are few.
With sixteen channels and a kernel of eleven, this copies 64 bytes per sample instead of 176 and
takes a third of the time."""


def samples_at_once(graph: Graph, node: onnx.NodeProto, multiple: int) -> int:
    """Return the number of samples that `project` computes together for a convolution, or 0.

    Args:
        graph: The graph that holds its weight.
        node: A convolution that has an integer form.
        multiple: A number that is known to divide the input's length.
    """
    plain = read_convolution(graph, node)
    if plain is None or not plain.keeps_length:
        return 0
    dilation, (outputs, _, kernel_size) = plain.dilation, plain.weight.shape
    group = gcd(multiple, _GROUP) if dilation == 1 < kernel_size and outputs <= _MANY else 1
    if group * outputs >= _MANY:
        return group
    fits = dilation == 1 and max(plain.pads) <= _BLOCK == gcd(multiple, _BLOCK)
    return (_BLOCK if kernel_size > 1 else 1) if fits else 0


def project(emitter: Emitter, node: onnx.NodeProto, together: int) -> None:
    """Emit a convolution on codes whose result is real, (B, C, T) in FP32."""
    graph, stem = emitter.graph, node.output[0]
    plain = read_convolution(graph, node)
    assert plain is not None
    source = emitter.codes(node.input[0])
    if together == _GROUP:  # bytes that are not there need not be copied
        source = emitter.narrow(source)
    blocks = emitter.weights.blocks(stem, plain.weight)
    if blocks is None:
        columns = spare_columns(plain.weight, source.spare)
        codes, scales = emitter.weights.rounded(stem, columns, multiplied=True)
        kernel = _Filter(replace(plain, weight=codes), scales)
    else:
        kernel = _Filter(plain, blocks.scales, _expanded(emitter, stem, source, plain, blocks))
    if together == _BLOCK:
        last = _blocks(emitter, stem, source, kernel)
    else:
        last = _frames(emitter, stem, source, kernel, together)
    graph.add("Transpose", [last], [stem], perm=[0, 2, 1])  # (B, T, C) -> (B, C, T)


@dataclass(frozen=True, slots=True)
class _Filter:
    """A convolution on codes."""

    kernel: Convolution
    """Its weight holds the codes, unless they are expanded elsewhere; its bias is real."""

    scales: Array
    """One per output, (C_out,)."""

    expanded: str | None = None
    """The tensor of its matrix, (K·C_in, C_out), if its codes are expanded elsewhere."""


def _expanded(
    emitter: Emitter, stem: str, source: Coded, plain: Convolution, blocks: Blocks[Array]
) -> str:
    """Store a filter in four bits, for frames that stand alone; return its matrix."""
    graph, outputs = emitter.graph, len(plain.bias)
    wide = store_blocks(graph, f"{stem}.weight", blocks, plain.weight.shape)
    if source.spare:
        pads = graph.add_constant(f"{stem}.spare", np.array([0, 0, 0, 0, source.spare, 0]))
        wide = graph.make("Pad", [wide, pads], f"{stem}.wide")
    turned = graph.make("Transpose", [wide], f"{stem}.turned", perm=[2, 1, 0])
    shape = graph.share_constant(f"matrix.{outputs}", np.array([-1, outputs]))
    return graph.make("Reshape", [turned, shape], f"{stem}.matrix")


def _frames(emitter: Emitter, stem: str, source: Coded, filter_: _Filter, group: int) -> str:
    """Multiply the neighbourhoods of groups of frames, laid side by side, with the filter.

    `group` consecutive frames form one row; a `group` above 1 requires dilation 1.
    """
    graph, kernel = emitter.graph, filter_.kernel
    outputs, channels, kernel_size = kernel.weight.shape
    rows = -(-(kernel_size - 1) // group)  # beside its own that a group sees
    seen = source.tensor
    if kernel_size > 1:
        span = kernel.dilation * rows * group
        begin = kernel.pads[0]
        padding = graph.add_constant(f"{stem}.pads", np.array([0, begin, 0, 0, span - begin, 0]))
        inputs = [seen, padding, emitter.zero(source.code.zero)]
        seen = graph.make("Pad", inputs, f"{stem}.padded")
        if group > 1:
            seen = _reshape(emitter, f"{stem}.groups", seen, group * channels)
        seen = _neighbours(emitter, stem, seen, [i * kernel.dilation for i in range(rows + 1)])
    matrix = filter_.expanded or _group_matrix(kernel.weight, rows + 1, group)
    columns = (np.tile(filter_.scales, group), np.tile(kernel.bias, group))
    product = _product(emitter, stem, replace(source, tensor=seen), matrix, columns)
    return product if group == 1 else _reshape(emitter, f"{stem}.samples", product, outputs)


def _neighbours(emitter: Emitter, stem: str, rows: str, offsets: list[int]) -> str:
    """Lay each row beside the rows at some offsets behind it; the last offset is the largest."""
    graph, shifted = emitter.graph, []
    for offset in offsets:
        end = offset - offsets[-1] or np.iinfo(np.int64).max
        bounds = graph.add_bounds(f"{stem}.bound", offset, end, 1)
        shifted.append(graph.make("Slice", [rows, *bounds], f"{stem}.tap"))
    return graph.make("Concat", shifted, f"{stem}.taps", axis=2)


def _reshape(emitter: Emitter, name: str, tensor: str, width: int) -> str:
    """Read (B, T, C) again in rows of another width."""
    shape = emitter.graph.add_constant(name, np.array([0, -1, width]))
    return emitter.graph.make("Reshape", [tensor, shape], f"{name}.read")


def _group_matrix(codes: Array, rows: int, group: int) -> Array:
    """Return the matrix from rows of frames to the samples of the group that the first begins.

    Shape (rows·group·C_in, group·C_out).
    """
    outputs, channels, kernel_size = codes.shape
    matrix = np.zeros((rows * group, channels, group, outputs), np.int8)
    for sample in range(group):
        matrix[sample : sample + kernel_size, :, sample] = codes.transpose(2, 1, 0)
    return matrix.reshape(-1, group * outputs)


def _blocks(emitter: Emitter, stem: str, source: Coded, filter_: _Filter) -> str:
    """Compute blocks of samples, each from its own frames and those of its two neighbours."""
    graph, kernel = emitter.graph, filter_.kernel
    outputs, channels, _ = kernel.weight.shape
    width = _BLOCK * outputs
    blocks = _reshape(emitter, f"{stem}.blocks", source.tensor, _BLOCK * channels)
    # The bias belongs to each sample once: to the middle one of three contributions.
    silent = np.zeros(width, np.float32)
    bias = np.concatenate([silent, np.tile(kernel.bias, _BLOCK), silent])
    columns = (np.tile(filter_.scales, 3 * _BLOCK), bias)
    coded = replace(source, tensor=blocks)
    product = _product(emitter, stem, coded, _block_matrix(kernel), columns)
    sizes = graph.add_constant(f"{stem}.sizes", np.array([width] * 3))
    names = [graph.fresh(f"{stem}.{side}") for side in ("to_next", "own", "to_previous")]
    graph.add("Split", [product, sizes], names, axis=2)
    parts = [names[1]]
    for name, shift in ((names[0], 1), (names[2], -1)):
        pads = graph.add_constant(f"{stem}.shift", np.array([0, shift, 0, 0, -shift, 0]))
        parts.append(graph.make("Pad", [name, pads], f"{name}.moved"))
    total = graph.make("Sum", parts, f"{stem}.total")
    return _reshape(emitter, f"{stem}.samples", total, outputs)


def _block_matrix(kernel: Convolution) -> Array:
    """Return the matrix from a block of frames to the next block, its own, and the previous one.

    Shape (_BLOCK·C_in, 3·_BLOCK·C_out).
    """
    outputs, channels, kernel_size = kernel.weight.shape
    matrix = np.zeros((_BLOCK, channels, 3, _BLOCK, outputs), np.int8)
    for sample in range(_BLOCK):
        for tap in range(kernel_size):
            position = sample + tap - kernel.pads[0]  # of the frame, counted from the block's first
            block, frame = divmod(position, _BLOCK)
            matrix[frame, :, 1 + block, sample] = kernel.weight[:, :, tap].T
    return matrix.reshape(_BLOCK * channels, -1)


def _product(
    emitter: Emitter, stem: str, source: Coded, matrix: Array | str, columns: tuple[Array, Array]
) -> str:
    """Write codes times matrix, scaled and with its bias; `columns` holds both per column."""
    graph, (scales, bias) = emitter.graph, columns
    scale, zero = emitter.names(source.code)
    if not isinstance(matrix, str):
        matrix = graph.add_constant(f"{stem}.weight", matrix)
    weight_scale, weight_zero, offsets = graph.add_constants(
        stem,
        weight_scale=scales.astype(np.float32),
        weight_zero=np.zeros(len(scales), np.int8),
        bias=bias.astype(np.float32),
    )
    inputs = [source.tensor, matrix, scale, weight_scale, zero, weight_zero, offsets]
    name = emitter.weighted_name("MatMulIntegerToFloat")
    return graph.make("MatMulIntegerToFloat", inputs, f"{stem}.product", name, domain=CONTRIB)
