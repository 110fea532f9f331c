"""The integers that stand for a graph's weights, and how those of four bits are stored.

A packed weight is expanded by a function of the model, `ExpandInt4`, that consists of standard
operators on constants. onnxruntime puts the body of a function in its place and folds constants
before it chooses kernels, so that these find an ordinary INT8 initializer; nothing is expanded
while the graph runs. ONNX's own form, a `DequantizeLinear` of INT4 with `block_size`, is not folded
(onnxruntime 1.31): a convolution of 192 channels takes 3.7 times as long with it (50 frames, one
thread); and it needs operator set 21, whereas this leaves the graph in its own. Bytes of packed
codes are those of ONNX's INT4.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.numerics.weights import (
    Blocks,
    coarsen,
    coarsen_blocks,
    round_blocks,
    round_weight,
)
from tts_compress.onnx.graph import Array, Graph

EXPAND = "ExpandInt4"
"""Name of the function from packed codes, packed factors and a shape to a weight in INT8."""

_DOMAIN = "tts_compress"
_IR_WITH_FUNCTIONS = 8


def store_blocks(graph: Graph, name: str, blocks: Blocks[Array], shape: Sequence[int]) -> str:
    """Store a weight in four bits; return the tensor of its 8-bit codes when the graph runs.

    Args:
        graph: The graph.
        name: Its name; under one name a weight is stored once.
        blocks: The weight.
        shape: The shape it shall have, output channels first.
    """
    wide = f"{name}.expanded"
    if graph.producer(wide) is None:
        _add_function(graph)
        codes, factors = _packed(blocks.codes), _packed(blocks.factors)
        packed = graph.share_constants(name, int4=codes, factors=factors)
        size, extents = "x".join(map(str, shape)), np.array(shape, np.int64)
        inputs = [*packed, graph.share_constant(f"shape.{size}", extents)]
        graph.insert(EXPAND, inputs, wide, domain=_DOMAIN)
    return wide


def store_pairs(graph: Graph, name: str, numbers: Array) -> str:
    """Store numbers of four bits, two in a byte; return the tensor of them when the graph runs.

    Operators on bytes expand them: indices of tables would take four times as much memory while
    the graph is loaded.

    Args:
        graph: The graph.
        name: Name of the constant.
        numbers: uint8 below 16, of any shape with an even number of elements.
    """
    axis = next(axis for axis, extent in enumerate(numbers.shape) if extent % 2 == 0)
    first, second = np.split(numbers, 2, axis)
    packed = graph.share_constant(f"{name}.pairs", first | second << 4)
    base, bits = (np.array(number, np.uint8) for number in (16, 4))
    inputs = graph.share_constants("pairs", base=base, bits=bits)
    halves = [
        graph.make("Mod", [packed, inputs[0]], f"{name}.first"),
        graph.make("BitShift", [packed, inputs[1]], f"{name}.second", direction="RIGHT"),
    ]
    return graph.make("Concat", halves, f"{name}.expanded", axis=axis)


def packed_weight(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> onnx.TensorProto | None:
    """Return the weight that an `ExpandInt4` expands, as an INT4 tensor of its codes."""
    if node.op_type != EXPAND or any(name not in constants for name in node.input):
        return None
    packed, _, shape = (constants[name] for name in node.input)
    dims = numpy_helper.to_array(shape).tolist()
    return helper.make_tensor(packed.name, TensorProto.INT4, dims, packed.raw_data, raw=True)


def has_even_blocks(weights: int, outputs: int, size: int) -> bool:
    """Return True if a weight can be divided into blocks whose factors fill whole bytes."""
    return weights % outputs == 0 and weights // outputs % size == 0 and weights // size % 2 == 0


def _packed(codes: Array) -> Array:
    """Return two integers of four bits per byte, the earlier in the low half, as ONNX does."""
    halves = codes.reshape(-1).view(np.uint8) & 15
    packed: Array = halves[0::2] | (halves[1::2] << 4)
    return packed


def _add_function(graph: Graph) -> None:
    model = graph.model
    if any(function.name == EXPAND for function in model.functions):
        return
    model.ir_version = max(model.ir_version, _IR_WITH_FUNCTIONS)
    graph.require_opset(_DOMAIN, 1)
    vectors = {"column": [-1, 1], "rest": [-1], "first": [0], "second": [1]}
    values = _tables() | {name: np.array(value) for name, value in vectors.items()}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value, name))
        for name, value in values.items()
    ]
    # Folded tensors are kept until all are folded, so wide intermediate results are few.
    nodes += [
        helper.make_node("Cast", ["factors"], ["factor_bytes"], to=TensorProto.INT32),
        helper.make_node("Gather", ["rows_of_factors", "factor_bytes"], ["row_pairs"]),
        helper.make_node("Reshape", ["row_pairs", "column"], ["rows"]),
        helper.make_node("Shape", ["rows"], ["rows_shape"]),
        helper.make_node("Slice", ["rows_shape", "first", "second"], ["count"]),
        helper.make_node("Concat", ["count", "rest"], ["blocks"], axis=0),
        helper.make_node("Reshape", ["codes", "blocks"], ["in_blocks"]),
        helper.make_node("Cast", ["in_blocks"], ["code_bytes"], to=TensorProto.INT32),
        helper.make_node("Add", ["code_bytes", "rows"], ["places"]),
        helper.make_node("Gather", ["products", "places"], ["product_pairs"]),
        helper.make_node("Reshape", ["product_pairs", "shape"], ["weight"]),
    ]
    inputs, opsets = ["codes", "factors", "shape"], [helper.make_opsetid("", graph.opset())]
    model.functions.append(helper.make_function(_DOMAIN, EXPAND, inputs, ["weight"], nodes, opsets))


def _tables() -> dict[str, Array]:
    """Return the values that bytes of two integers encode, indexed by the byte.

    Returns:
        `rows_of_factors` (256, 2): for each byte of factors, where the products of both begin;
        `products` (16 · 256, 2): by factor and byte of codes, the products of both codes.
    """
    bits = np.stack([np.arange(256) & 15, np.arange(256) >> 4], 1)
    signed = np.where(bits < 8, bits, bits - 16)  # (256, 2)
    products = signed[:16, 0, None, None] * signed
    return {
        "rows_of_factors": (256 * bits).astype(np.int32),
        "products": products.reshape(-1, 2).astype(np.int8),
    }


@dataclass(frozen=True, slots=True, eq=False)
class WholeCodes:
    """A weight in eight bits, or in twelve."""

    codes: Array
    """int8 in [-127, 127], or int16 in [-2039, 2039], output channels first. The weight of an
    upsampling convolution in calibrated integers is that of its phases."""

    scales: Array
    """FP32, one for each of the codes' output channels."""

    shift: Array | None = None
    """Mean error that rounding the weight leaves in the operator's output, (C_out,); None without a
    bias that could make up for it."""


Chosen: TypeAlias = Blocks[Array] | WholeCodes
"""A weight whose codes an algorithm chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCodes:
    """How the weights of a graph are rounded, by the first outputs of its operators."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of weights of an output channel that share a factor, for operators in four bits."""

    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """Codes of those whose weights are not rounded to nearest."""

    def blocks(
        self, output: str, weight: Array, least: Array | None = None
    ) -> Blocks[Array] | None:
        """Return an operator's weight in four bits, or None where it gets eight.

        Args:
            output: Its first output.
            weight: The weight, output channels first.
            least: The smallest scale of each output, where its bias is to be in their steps.
        """
        if output not in self.sizes:
            return None
        codes = self.chosen.get(output)
        if not isinstance(codes, Blocks):
            codes = round_blocks(weight, self.sizes[output])
        return codes if least is None else coarsen_blocks(codes, least)

    def rounded(
        self, output: str, weight: Array, *, multiplied: bool, least: Array | None = None
    ) -> tuple[Array, Array]:
        """Return an operator's weight in eight bits: codes of its shape, and scales.

        Args:
            output: Its first output.
            weight: The weight, output channels first; with spare inputs or without.
            multiplied: True if integer kernels multiply the codes; see `round_weight`.
            least: As for `blocks`.
        """
        chosen = self.chosen.get(output)
        if isinstance(chosen, WholeCodes):
            spare = weight.shape[1] - chosen.codes.shape[1]
            unused = np.zeros((len(weight), spare, *weight.shape[2:]), np.int8)
            codes, scales = np.concatenate([chosen.codes, unused], 1), chosen.scales
        else:
            codes, scales = round_weight(weight, 0, multiplied=multiplied)
        return (codes, scales) if least is None else coarsen(codes, scales, least)


def shift_biases(graph: Graph, chosen: Mapping[str, Chosen]) -> None:
    """Change biases of convolutions so that they keep the means of the outputs."""
    for output, codes in chosen.items():
        if not isinstance(codes, WholeCodes) or codes.shift is None:
            continue
        node = graph.producer(output)
        assert node is not None
        bias = (graph.value(node.input[2]) + codes.shift).astype(np.float32)
        graph.replace_input(node, 2, graph.add_constant(f"{output}.shifted_bias", bias))
