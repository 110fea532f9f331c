"""Making an exported graph fit for conversion: constants folded, types known, no leftovers."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import onnxruntime
from onnx import shape_inference

from tts_compress.errors import QuantizationError
from tts_compress.onnx.modules import initializer_names, module_of

__all__ = ["optimize", "prepare", "typed"]


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equivalent graph with every weight a plain constant and every tensor typed.

    Exported voices keep weight norm as arithmetic on constants, shapes as chains of small
    operators, and hundreds of `Constant` nodes; quantizers that look for a weight find none.
    onnxruntime's basic optimisation folds all of it and stays within standard operators.

    Raises:
        QuantizationError: onnxruntime cannot read the graph.
    """
    folded = optimize(_with_module_names(model), fuse=False)
    _keep_used_domains(folded)
    return typed(folded)


def typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with the element type and shape of every tensor that can be inferred."""
    inferred: onnx.ModelProto = shape_inference.infer_shapes(model)
    return inferred


def _with_module_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose operators are named by module, also where an exporter numbered them.

    Only the names of parameters tell a numbered operator's module, and rewriting changes those.
    """
    named = onnx.ModelProto()
    named.CopyFrom(model)
    initializers = initializer_names(named.graph)
    for index, node in enumerate(named.graph.node):
        if "/" not in node.name.strip("/") and (module := module_of(node, initializers)):
            node.name = f"/{module}/{node.op_type}_{index}"
    return named


def optimize(model: onnx.ModelProto, *, fuse: bool) -> onnx.ModelProto:
    """Return the graph as onnxruntime's optimiser leaves it.

    Args:
        model: The graph.
        fuse: Use the runtime's own fused operators too; otherwise only standard ones.

    Raises:
        QuantizationError: onnxruntime cannot read the graph.
    """
    levels = onnxruntime.GraphOptimizationLevel
    with TemporaryDirectory() as directory:
        optimized = Path(directory) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = (
            levels.ORT_ENABLE_EXTENDED if fuse else levels.ORT_ENABLE_BASIC
        )
        options.optimized_model_filepath = str(optimized)
        options.log_severity_level = 3
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
        # onnxruntime's exceptions share no base class but this one.
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise QuantizationError(f"onnxruntime cannot read the graph: {reason}") from error
        return onnx.load(optimized)


def _keep_used_domains(model: onnx.ModelProto) -> None:
    """Drop the operator sets the optimiser lists whether or not the graph uses them."""
    used = {node.domain for node in model.graph.node} | {""}
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
