"""Making an exported graph fit for conversion: constants folded, types known, no leftovers."""

import onnx
import onnxruntime

from tts_compress.folders import temporary_folder
from tts_compress.onnx.graph import infer_types
from tts_compress.onnx.modules import initializer_names, module_of
from tts_compress.onnx.session import open_session


def prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an equal model whose weights are plain constants and whose tensors are all typed.

    Exported voices keep weight norm as arithmetic on constants, shapes as chains of small
    operators, and hundreds of `Constant` nodes; quantizers that look for a weight find none.
    onnxruntime's basic optimisation folds all of it and stays within standard operators.

    Raises:
        ModelError: onnxruntime cannot read the graph.
    """
    # Only the names of parameters reveal a numbered operator's module; rewriting changes those.
    initializers = initializer_names(model.graph)
    for index, node in enumerate(model.graph.node):
        if "/" not in node.name.strip("/") and (module := module_of(node, initializers)):
            node.name = f"/{module}/{node.op_type}_{index}"
    model = optimize(model, fuse=False)
    # The optimiser lists operator sets whether or not the graph uses them.
    used = {node.domain for node in model.graph.node} | {""}
    kept = [opset for opset in model.opset_import if opset.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    infer_types(model)
    return model


def optimize(model: onnx.ModelProto, *, fuse: bool) -> onnx.ModelProto:
    """Return the graph as onnxruntime's optimiser leaves it.

    Args:
        model: The graph; not modified.
        fuse: Use the runtime's own fused operators too; otherwise only standard ones.

    Raises:
        ModelError: onnxruntime cannot read the graph.
    """
    levels = onnxruntime.GraphOptimizationLevel
    with temporary_folder() as directory:
        optimized = directory / "optimized.onnx"
        open_session(
            model,
            "the graph",
            graph_optimization_level=levels.ORT_ENABLE_EXTENDED
            if fuse
            else levels.ORT_ENABLE_BASIC,
            optimized_model_filepath=str(optimized),
        )
        return onnx.load(optimized)
