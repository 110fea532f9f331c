"""Replacement of a subgraph by another form of it, verified by running both.

Exporters write one and the same formula in many ways, in hundreds of operators. Instead of knowing
each of them, a rewrite that knows the formula finds out where the subgraph begins and ends, and
both forms are run on the same inputs. Only where they agree is one replaced by the other.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tts_compress.errors import ModelError
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.nodes import reach, tensors_read
from tts_compress.onnx.session import open_session, run_session

_TOLERANCE = 1e-5
"""Share of the largest value by which results may differ: sums are taken in another order."""


def upstream(
    graph: Graph, tensor: str, borders: Collection[str]
) -> tuple[list[onnx.NodeProto], list[str]]:
    """Return the nodes that make a tensor, back to some tensors, and the tensors these begin at.

    Among those are also constants and inputs of the graph.
    """

    def maker(name: str) -> onnx.NodeProto | None:
        return None if name in borders else graph.producer(name)

    def sources(name: str) -> list[str]:
        node = maker(name)
        if node is None:
            return []
        return [*filter(None, node.input), *sorted(tensors_read(node).difference(node.input))]

    reached = reach([tensor], sources)
    nodes = {id(node): node for name in reached if (node := maker(name)) is not None}
    return list(nodes.values()), [name for name in reached if maker(name) is None]


def verified_replace(
    graph: Graph,
    inputs: Sequence[str],
    output: str,
    result: str,
    trials: Sequence[Mapping[str, Array]],
) -> bool:
    """Let the readers of a tensor read another one if both agree on every trial.

    Args:
        graph: Has both, each made of the same inputs and constants alone.
        inputs: Tensors (1, C, T) in FP32.
        output: The present form.
        result: The other form.
        trials: Values of the inputs; they should reach every case the formula distinguishes.
    """
    if output in graph.outputs:
        return False
    try:
        forms = [_session(graph, inputs, name) for name in (output, result)]
        for trial in trials:
            (before,), (after,) = (run_session(form, trial, output) for form in forms)
            if not _agree(before, after):
                return False
    except ModelError:  # one form cannot be run on its own
        return False
    graph.redirect(output, result)
    return True


def _agree(before: Array, after: Array) -> bool:
    if before.shape != after.shape or not np.isfinite(before).all():
        return False
    largest = np.abs(before).max(initial=0.0)
    return bool(np.abs(before - after).max(initial=0.0) <= _TOLERANCE * largest)


def _session(graph: Graph, inputs: Sequence[str], output: str) -> onnxruntime.InferenceSession:
    """Open the part of a graph between some tensors and one that follows from them alone."""
    nodes, ends = upstream(graph, output, inputs)
    inside = {id(node) for node in nodes}
    constants = {name: graph.constant(name) for name in ends if name not in inputs}
    unknown = any(value is None for value in constants.values())
    if unknown or any("Random" in node.op_type for node in nodes):
        raise ModelError(f"'{output}' is not made of {', '.join(inputs)} alone")
    shape = [1, None, None]
    small = helper.make_graph(
        [node for node in graph.nodes if id(node) in inside],
        "part",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets, ir = list(graph.model.opset_import), graph.model.ir_version
    model = helper.make_model(small, opset_imports=opsets, ir_version=ir)
    # A form that cannot be run is a result, not an incident.
    return open_session(model, output, threads=1, briefly=True)
