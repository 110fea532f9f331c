"""Weights of four bits in a graph: packed in the file, 8-bit codes once a session is open.

A packed weight is expanded by a function of the model, `ExpandInt4`, that consists of standard
operators on constants. onnxruntime puts the body of a function in its place and folds constants
before it chooses kernels, so that these find an ordinary INT8 initializer; nothing is expanded
while the graph runs. ONNX's own form, a `DequantizeLinear` of INT4 with `block_size`, is not folded
(onnxruntime 1.31): a convolution of 192 channels takes 3.7 times as long with it (50 frames, one
thread); and it needs operator set 21, whereas this leaves the graph in its own. Bytes of packed
codes are those of ONNX's INT4.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.numerics.four_bits import Blocks
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


def packed_weight(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]
) -> onnx.TensorProto | None:
    """Return the weight that an `ExpandInt4` expands, as an INT4 tensor of its codes.

    Args:
        node: Any operator.
        constants: Initializers by name.
    """
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
    # What is folded is kept until all is folded, so wide intermediate results are few.
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
