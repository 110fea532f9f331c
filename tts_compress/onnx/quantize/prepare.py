"""Making an exported graph fit for conversion: constants folded, types known, no leftovers."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper, version_converter

from tts_compress.errors import QuantizationError, first_line
from tts_compress.folders import temporary_folder
from tts_compress.onnx.graph import (
    Graph,
    copy_model,
    element_types,
    infer_types,
    inline_functions,
    standard_opset,
)
from tts_compress.onnx.modules import initializer_names, module_of
from tts_compress.onnx.nodes import (
    STANDARD_DOMAINS,
    nested_graphs,
    nested_nodes,
    rename_read,
    set_nodes,
)
from tts_compress.onnx.rewrite.normalization import known_shapes
from tts_compress.onnx.session import open_session

_HALF, _FULL = TensorProto.FLOAT16, TensorProto.FLOAT
_TENSORS = {"tensor(float)": _FULL, "tensor(float16)": _HALF}
"""Real types by the names that the runtime has for them."""

_TYPES = frozenset({"to", "dtype"})
"""Attributes that name an element type."""


def widen_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """Let a graph with weights in FP16 hold them, and compute, in FP32; return it.

    Inputs and outputs keep their types. A graph without such weights stays as it is.
    """
    halves = (t for t in model.graph.initializer if t.data_type == _HALF and len(t.dims) >= 2)
    if next(halves, None) is None:
        return model
    model = inline_functions(model) if model.functions else model
    graph = model.graph
    inputs = [value.name for value in graph.input if value.type.tensor_type.elem_type == _HALF]
    outputs = [value.name for value in graph.output if value.type.tensor_type.elem_type == _HALF]
    _widen(graph)
    # Casts at the border stand between the caller's tensors and wide ones of other names.
    wide = {name: f"{name}.wide" for name in (*inputs, *outputs)}
    for node in graph.node:
        rename_read(node, wide)
        node.output[:] = [wide.get(name, name) for name in node.output]
    before = [helper.make_node("Cast", [n], [wide[n]], f"{n}.widen", to=_FULL) for n in inputs]
    after = [
        helper.make_node("Cast", [wide[name]], [name], f"{name}.narrow", to=_HALF)
        for name in outputs
        if name not in inputs
    ]
    for tensor in graph.initializer:  # it may be an output, too
        tensor.name = wide.get(tensor.name, tensor.name)
    set_nodes(graph, [*before, *graph.node, *after])
    for value in (*graph.input, *graph.output):
        if value.name in {*inputs, *outputs}:
            value.type.tensor_type.elem_type = _HALF
    return model


def _widen(model_graph: onnx.GraphProto) -> None:
    """Turn all half precision of a graph and its branches and bodies into FP32."""
    for graph, _ in nested_graphs(model_graph):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        del graph.value_info[:]
        for value in (*graph.input, *graph.output):
            several = value.type.HasField("sequence_type")
            kind = value.type.sequence_type.elem_type if several else value.type
            if kind.tensor_type.elem_type == _HALF:
                kind.tensor_type.elem_type = _FULL
        for entry in (entry for node in graph.node for entry in node.attribute):
            if entry.name in _TYPES and entry.i == _HALF:
                entry.i = _FULL
            for tensor in (entry.t, *entry.tensors):
                _widen_tensor(tensor)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type == _HALF:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


OLDEST_OPSET = 13
"""Version of the standard operators that first dequantizes weights by channel."""

_OLDEST_IR = 7
"""Version of the file format that came with it."""


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equal model whose weights are plain constants and whose tensors are all typed.

    Exported voices keep weight norm as arithmetic on constants, shapes as chains of small
    operators, and hundreds of `Constant` nodes; quantizers that look for a weight find none.
    onnxruntime's basic optimisation folds all of it and stays within standard operators.
    """
    # Only the names of parameters reveal a numbered operator's module; rewriting changes those.
    initializers = initializer_names(model.graph)
    for index, node in enumerate(model.graph.node):
        if "/" not in node.name.strip("/") and (module := module_of(node, initializers)):
            node.name = f"/{module}/{node.op_type}_{index}"
    model = optimize(upgrade_opset(model), fuse=False)
    # The optimiser lists operator sets whether or not the graph uses them.
    used = {node.domain for node in nested_nodes(model.graph.node)} | {""}
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    _state_arguments(model.graph)
    infer_types(model)
    if any(not kind for kind in _kinds(model).values()):
        infer_types(model, _runtime_types(model))
    _state_padding(model)
    return model


def _state_padding(model: onnx.ModelProto) -> None:
    """Let each `Pad` of constant amounts state those of all axes.

    onnxruntime moves transposes past one that names its axes, and keeps the names.
    """
    named = [n for n in model.graph.node if n.op_type == "Pad" and len(n.input) > 3]
    if not named:
        return
    graph = Graph(model)
    shapes = known_shapes(graph)
    for node in named:
        amounts, axes = graph.constant(node.input[1]), graph.constant(node.input[3])
        rank = len(shapes.get(node.input[0], ()))
        if amounts is None or axes is None or not rank:
            continue
        whole = np.zeros((2, rank), np.int64)
        whole[:, axes] = amounts.reshape(2, -1)
        name = graph.fresh(f"{node.input[1]}.whole")
        model.graph.initializer.append(numpy_helper.from_array(whole.ravel(), name))
        node.input[1] = name
        del node.input[3 if node.input[2] else 2 :]


def _state_arguments(graph: onnx.GraphProto) -> None:
    """Let operators list no inputs behind the last that they have, and name their first outputs.

    A bias may be left out by an empty name; and a recurrent operator whose last state alone is
    read names that one.
    """
    for node in graph.node:
        while node.input and not node.input[-1]:
            del node.input[-1]
        if not node.output[0]:
            node.output[0] = f"{next(filter(None, node.output))}.first"


def _kinds(model: onnx.ModelProto) -> dict[str, int]:
    """Return the recorded types of all that operators of a graph make, 0 for an unknown one."""
    types = element_types(model.graph)
    return {name: types.get(name, 0) for node in model.graph.node for name in node.output if name}


def _runtime_types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the types of tensors that onnx does not know and the runtime does."""
    watched, outputs = copy_model(model), {value.name for value in model.graph.output}
    unknown = [name for name, kind in _kinds(model).items() if not kind and name not in outputs]
    watched.graph.output.extend(map(helper.make_empty_tensor_value_info, unknown))
    options = {"graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL}
    values = open_session(watched, "the graph", briefly=True, **options).get_outputs()
    return {v.name: _TENSORS[v.type] for v in values if v.type in _TENSORS}


def upgrade_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model, which is changed, in operators that have quantized forms."""
    if (opset := standard_opset(model)) >= OLDEST_OPSET:
        return model
    model.ir_version = max(model.ir_version, _OLDEST_IR)
    try:
        graph = version_converter.convert_version(model, OLDEST_OPSET).graph
    # The converter raises RuntimeError where it knows no way, and errors of its own.
    except Exception as error:
        raise QuantizationError(
            f"the graph has opset {opset}; accepted are {OLDEST_OPSET} and later, and "
            f"onnx.version_converter cannot convert it ({first_line(error)}): export it again "
            f"with opset_version={OLDEST_OPSET} or later"
        ) from error
    model.graph.CopyFrom(graph)  # of the model itself, the converter keeps no metadata
    for entry in model.opset_import:
        if entry.domain in STANDARD_DOMAINS:
            entry.version = OLDEST_OPSET
    return model


def optimize(model: onnx.ModelProto, *, fuse: bool) -> onnx.ModelProto:
    """Return the graph as onnxruntime's optimiser leaves it.

    Args:
        model: The graph; not modified.
        fuse: Use the runtime's own fused operators too; otherwise only standard ones.
    """
    return open_optimized(model, "the graph", "EXTENDED" if fuse else "BASIC")[1]


def open_optimized(
    model: onnx.ModelProto, spec: str, level: str = "ALL"
) -> tuple[onnxruntime.InferenceSession, onnx.ModelProto]:
    """Return a graph as a session, and as onnxruntime optimized it.

    Args:
        model: The graph; not modified.
        spec: Its name in messages.
        level: A level of optimization; by default what sessions do, for this processor.
    """
    kind = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    with temporary_folder() as directory:
        path = str(directory / "optimized.onnx")
        options = {"optimized_model_filepath": path, "graph_optimization_level": kind}
        return open_session(model, spec, briefly=True, **options), onnx.load(path)
