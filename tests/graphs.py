"""Tiny ONNX graphs in few words: their operators, what flows in and out, and their weights."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import copy_model, with_outputs
from tts_compress.onnx.session import open_session

Shape = Sequence[Any] | None
Values = Mapping[str, Shape | tuple[int, Shape]]
"""Shapes by name, None of any; with its type where that is not FP32."""


def make_node(
    operator: str, inputs: str, outputs: str, name: str | None = None, **attributes: Any
) -> onnx.NodeProto:
    """Return an operator between tensors whose names are apart by spaces; `-` is none.

    It is named for its first output, by scope as torch names operators.
    """
    sources = ["" if source == "-" else source for source in inputs.split()]
    results = outputs.split()
    name = f"/{results[0]}/{operator}" if name is None else name
    return helper.make_node(operator, sources, results, name, **attributes)


def make_body(
    nodes: Iterable[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    weights: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    """Return a graph by itself, as of a branch; weights of 64 bits become FP32."""
    tensors = [
        numpy_helper.from_array(_narrow(np.asarray(value)), name)
        for name, value in (weights or {}).items()
    ]
    return helper.make_graph([*nodes], "tiny", _infos(inputs), _infos(outputs), tensors)


def make_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Values,
    outputs: Values,
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 15,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Return a model of operators of a version, and of other domains."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(name, 1) for name in domains)]
    graph = make_body(nodes, inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_model(model: onnx.ModelProto, feeds: Mapping[str, Any], *outputs: str) -> list[Any]:
    """Return what a model makes of inputs, or tensors within it."""
    tapped = with_outputs(copy_model(model), outputs) if outputs else model
    return list(open_session(tapped, "a test").run(list(outputs) or None, dict(feeds)))


def _narrow(values: Any) -> Any:
    return values.astype(np.float32) if values.dtype == np.float64 else values


def _infos(values: Values) -> list[onnx.ValueInfoProto]:
    pairs = {
        name: value if isinstance(value, tuple) else (TensorProto.FLOAT, value)
        for name, value in values.items()
    }
    return [helper.make_tensor_value_info(name, *pair) for name, pair in pairs.items()]


def operators_of(model: onnx.ModelProto) -> list[str]:
    """Return the kinds of a model's operators, in order."""
    return [node.op_type for node in model.graph.node]
