"""Graphs in half precision as graphs in FP32, from which every scheme starts."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_HALF, _FULL = TensorProto.FLOAT16, TensorProto.FLOAT
_TYPES = frozenset({"to", "dtype"})
"""Attributes that name an element type."""


def widen_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let a graph with weights in FP16 hold them, and compute, in FP32; return it.

    Inputs and outputs keep their types. A graph without such weights stays as it is.
    """
    graph = model.graph
    weights = (t for t in graph.initializer if t.data_type == _HALF and len(t.dims) >= 2)
    if next(weights, None) is None:
        return model
    made = {name for node in graph.node for name in node.output}
    inputs = [value.name for value in graph.input if value.type.tensor_type.elem_type == _HALF]
    outputs = [value.name for value in graph.output if value.type.tensor_type.elem_type == _HALF]
    _widen(graph)
    # Casts at the border stand between the caller's tensors and wide ones of other names.
    wide = {name: f"{name}.wide" for name in (*inputs, *outputs) if name in made or name in inputs}
    for node in graph.node:
        _rename(node, wide)
    before = [helper.make_node("Cast", [n], [wide[n]], f"{n}.widen", to=_FULL) for n in inputs]
    after = [
        helper.make_node("Cast", [wide[name]], [name], f"{name}.narrow", to=_HALF)
        for name in outputs
        if name in wide and name not in inputs
    ]
    nodes = [*before, *graph.node, *after]
    kept = onnx.GraphProto()
    kept.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(kept.node)
    for value in (*graph.input, *graph.output):
        if value.name in {*inputs, *outputs}:
            value.type.tensor_type.elem_type = _HALF
    return model


def _widen(graph: onnx.GraphProto) -> None:
    """Turn all half precision of a graph and its branches and bodies into FP32."""
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == _HALF:
            value.type.tensor_type.elem_type = _FULL
    for node in graph.node:
        for entry in node.attribute:
            if entry.name in _TYPES and entry.type == onnx.AttributeProto.INT and entry.i == _HALF:
                entry.i = _FULL
            for tensor in (entry.t, *entry.tensors):
                _widen_tensor(tensor)
            # A body that is not there must not be touched: that would put it there.
            for body in (entry.g, *entry.graphs):
                if body.node or body.output:
                    _widen(body)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _HALF:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _rename(node: onnx.NodeProto, names: dict[str, str]) -> None:
    """Rename tensors of an operator, and those that its branches and bodies read."""
    for tensors in (node.input, node.output):
        for position, name in enumerate(tensors):
            tensors[position] = names.get(name, name)
    for entry in node.attribute:
        for body in (entry.g, *entry.graphs):
            for inner in body.node:
                _rename(inner, names)
            for value in body.output:
                value.name = names.get(value.name, value.name)
