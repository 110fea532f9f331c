"""Products with a bias, as a product and a sum: the form that integers are made of."""

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph, attribute


def split_gemms(graph: Graph) -> int:
    """Write each `Gemm` with a constant matrix as MatMul and Add; return how many were written.

    The runtime puts the two together again where they stay in FP32. Factors go into the constants.
    Required: a matrix and a bias that are constant FP32, and an input that is not transposed.
    """
    split = 0
    for node in list(graph.nodes):
        constants = _constants(graph, node) if node.op_type == "Gemm" else None
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


def _constants(graph: Graph, node: onnx.NodeProto) -> tuple[Array, Array | None] | None:
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
