"""From an FP32 graph and a recipe to a compressed graph, with a record of what was done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.conversion.conversion import prepare_conversion
from tts_compress.conversion.manifest import describe_conversion
from tts_compress.errors import QuantizationError
from tts_compress.onnx.integer import emit_integer
from tts_compress.onnx.quantize.count import count_fused, count_operators
from tts_compress.onnx.quantize.decisions import count_decisions
from tts_compress.onnx.quantize.dynamic import quantize_dynamically
from tts_compress.onnx.quantize.float16 import halve
from tts_compress.onnx.quantize.graph_editor import GraphEditor, copy_model
from tts_compress.onnx.quantize.static import quantize_statically
from tts_compress.onnx.quantize.weight_only import store_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from tts_compress.conversion.calibration import CalibrationData
    from tts_compress.conversion.conversion import Conversion
    from tts_compress.models.base import OnnxGraph
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.progress import Progress
    from tts_compress.recipes.recipe import Recipe

__all__ = ["compress_graph", "convert"]


def compress_graph(
    model: OnnxGraph,
    recipe: Recipe,
    calibration: CalibrationData | None,
    *,
    seed: int,
    progress: Progress,
) -> OnnxGraph:
    """Return the model with its graph converted as a recipe says.

    Args:
        model: Any model that is an ONNX graph; not modified.
        recipe: What happens to which module.
        calibration: What to observe activations on; None where the recipe needs none.
        seed: Of the noise the model is calibrated with.
        progress: Is told of every call.

    Raises:
        QuantizationError: The recipe does not fit the graph, or the finished graph does not hold
            what the recipe promises.
    """
    conversion = prepare_conversion(model, recipe, calibration, progress=progress)
    converted = convert(conversion)
    record = calibration.record if calibration is not None else None
    manifest = describe_conversion(
        model, recipe, conversion, converted, calibration=record, seed=seed
    )
    return model.with_graph(converted, manifest)


def convert(conversion: Conversion) -> onnx.ModelProto:
    """Return the converted copy of a prepared graph.

    Raises:
        QuantizationError: The finished graph does not hold what was decided.
    """
    graph, decisions = conversion.graph, conversion.decisions
    types = {value.name: value.type.tensor_type.elem_type for value in graph.graph.value_info}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.graph.input}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.graph.output}
    types |= {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    if conversion.form == "qoperator":
        editor = GraphEditor(emit_integer(graph, conversion.static, conversion.ranges))
    else:
        editor = GraphEditor(copy_model(graph))
        quantize_statically(editor, decisions, conversion.ranges)
    quantize_dynamically(editor, decisions)
    halve(editor, decisions, types)
    store_weights(editor, decisions)
    finished = editor.finish()
    promised, held = count_decisions(decisions), count_operators(finished)
    if promised != held:
        raise QuantizationError(
            f"the finished graph holds {dict(held)}, but the recipe promises {dict(promised)}; "
            "please report this voice"
        )
    if conversion.form == "qdq":
        _check_fused(finished, decisions)
    return finished


def _check_fused(graph: onnx.ModelProto, decisions: Sequence[Decision]) -> None:
    """Refuse a graph of which the runtime would compute in FP32 what is promised in integers."""
    promised = sum(d.activations == "static" and d.weight is not None for d in decisions)
    if promised and (fused := count_fused(graph)) != promised:
        raise QuantizationError(
            f"the recipe promises {promised} integer operators, but onnxruntime runs only {fused} "
            "of them in integers; exclude those that stand at the graph's border"
        )
