"""Requirements of a graph on a runtime: operators with their element types, sizes, metadata."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

import onnx
from onnx import TensorProto, shape_inference

from tts_compress.inspection.runtimes import STANDARD
from tts_compress.onnx.graph import (
    copy_model,
    element_types,
    inline_functions,
    nested_nodes,
    standard_opset,
)

_ZERO_POINTS = {
    "QLinearConcat": 1,
    **dict.fromkeys(("QLinearAdd", "QLinearConv", "QLinearMul"), 7),
    **dict.fromkeys(("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), 4),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), 4),
}
"""Position of the output's zero point among the inputs, which has the output's type."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator and the element type of its first input."""

    name: str
    """With its domain."""

    element: str | None
    """ONNX's name of the type in lower case; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of a graph on a runtime."""

    operators: Mapping[Operator, int]
    """Numbers of nodes other than constants, with those of functions in the place of calls."""

    functions: Mapping[str, int]
    """Numbers of calls of the model's own functions."""

    opset: int
    """Version of the standard operators."""

    ir: int
    open_sizes: tuple[str, ...]
    """Inputs with a size that is not fixed."""

    metadata: frozenset[str]
    """Keys of the model's metadata."""


def read_needs(model: onnx.ModelProto) -> Needs:
    """Return what a graph asks of a runtime.

    Raises:
        ModelError: A function of its own calls itself.
    """
    own = {(function.domain, function.name) for function in model.functions}
    calls = Counter(
        _name(node) for node in nested_nodes(model.graph.node) if (node.domain, node.op_type) in own
    )
    plain = inline_functions(model) if own else model
    types = _element_types(plain)
    operators = Counter(
        Operator(_name(node), types.get(node.input[0]) if node.input else None)
        for node in nested_nodes(plain.graph.node)
        if node.op_type != "Constant"
    )
    return Needs(
        operators=operators,
        functions=calls,
        opset=standard_opset(model),
        ir=model.ir_version,
        open_sizes=tuple(_open_sizes(model.graph)),
        metadata=frozenset(entry.key for entry in model.metadata_props),
    )


def _name(node: onnx.NodeProto) -> str:
    return f"{node.domain or STANDARD}.{node.op_type}"


def _with_quantized_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy that records the types of onnxruntime's integer operators, unknown to onnx."""
    copy = copy_model(model)
    stored = {tensor.name: tensor.data_type for tensor in copy.graph.initializer}
    for node in copy.graph.node:
        place = _ZERO_POINTS.get(node.op_type, len(node.input))
        if node.domain and place < len(node.input) and node.input[place] in stored:
            value = copy.graph.value_info.add(name=node.output[0])
            value.type.tensor_type.elem_type = stored[node.input[place]]
    return copy


def _element_types(model: onnx.ModelProto) -> dict[str, str]:
    """Return the element types of the main graph's tensors that are known or can be inferred."""
    # Types only refine the answer: a graph that cannot be inferred is judged by its operators.
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        model = shape_inference.infer_shapes(_with_quantized_types(model))
    names = {number: name.lower() for name, number in TensorProto.DataType.items()}
    types = element_types(model.graph)
    return {name: names[number] for name, number in types.items() if number}


def _open_sizes(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield inputs whose shape has a size that is not a number."""
    stored = {tensor.name for tensor in graph.initializer}
    for value in graph.input:
        shape = value.type.tensor_type.shape
        fixed = all(size.HasField("dim_value") for size in shape.dim)
        if value.name not in stored and not (fixed and value.type.tensor_type.HasField("shape")):
            yield value.name
