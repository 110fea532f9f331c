"""From an FP32 graph and a recipe to a compressed graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.numerics.histogram import choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.integer import emit_integer
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.collect import collect
from tts_compress.onnx.quantize.count import count_fused, count_operators
from tts_compress.onnx.quantize.decisions import count_decisions, decide, static_outputs
from tts_compress.onnx.quantize.dynamic import quantize_dynamically
from tts_compress.onnx.quantize.equalize import equalize_channels
from tts_compress.onnx.quantize.float16 import halve
from tts_compress.onnx.quantize.float_residuals import make_sums_real
from tts_compress.onnx.quantize.graph_editor import GraphEditor
from tts_compress.onnx.quantize.prepare import prepare, typed
from tts_compress.onnx.quantize.static import observed_tensors, quantize_statically
from tts_compress.onnx.quantize.weight_only import store_weights
from tts_compress.onnx.rewrite import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from tts_compress.artifact import LayerRecord
    from tts_compress.numerics.histogram import Range
    from tts_compress.onnx.quantize.collect import Calls
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.onnx.session import Feeds
    from tts_compress.progress import Progress
    from tts_compress.recipes.recipe import Format, Recipe

__all__ = ["Conversion", "convert", "prepare_conversion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """An FP32 graph and everything that determines its compressed form."""

    graph: onnx.ModelProto
    """Rewritten for the form it will have, and equal to the original up to rounding in FP32."""

    decisions: tuple[Decision, ...]
    """What happens to each operator."""

    ranges: Mapping[str, Range]
    """Lowest and highest value of every tensor that is rounded with a calibrated range."""

    form: Format = "qdq"
    """How the finished graph expresses integer arithmetic."""

    @property
    def static(self) -> frozenset[str]:
        """Outputs of the operators that compute in calibrated integers."""
        return static_outputs(self.decisions)

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """What the manifest records of each decision."""
        return tuple(decision.record() for decision in self.decisions)

    @property
    def counts(self) -> dict[str, int]:
        """Operators by decision; `convert` checks that the finished graph holds exactly these."""
        return dict(sorted(count_decisions(self.decisions).items()))


def prepare_conversion(
    graph: onnx.ModelProto,
    recipe: Recipe,
    calls: Calls | None,
    *,
    batch_one: bool,
    progress: Progress,
) -> Conversion:
    """Decide what happens to each operator of a graph and calibrate it.

    Args:
        graph: In FP32, as exported.
        recipe: Decides by module.
        calls: Inputs to observe activations on; None where the recipe needs none.
        batch_one: The graph is a voice's, which is called with one text at a time.
        progress: Is advanced with every call.

    Raises:
        QuantizationError: The recipe does not fit the graph.
    """
    graph = prepare(graph)
    if recipe.format == "qoperator":
        graph = typed(rewrite(graph, spoken=batch_one)[0])
    decisions = decide(graph, recipe)
    ranges: dict[str, Range] = {}
    if recipe.calibration is not None:
        assert calls is not None
        if recipe.float_residuals and recipe.format == "qoperator":
            graph = typed(make_sums_real(graph, static_outputs(decisions))[0])
        observed = _observed(graph, decisions, recipe.format)
        if recipe.calibration.equalize:
            graph = typed(equalize_channels(graph, observed, calls.feeds()))
            decisions = decide(graph, recipe)  # its weights have other names
        seen = collect(feed_noise(graph), observed, _reported(calls, progress))
        ranges = {name: choose_range(seen[name], recipe.calibration) for name in seen}
    return Conversion(
        graph=graph,
        decisions=tuple(decisions),
        ranges=ranges,
        form=recipe.format,
    )


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


def _observed(graph: onnx.ModelProto, decisions: Sequence[Decision], form: Format) -> list[str]:
    if form == "qoperator":
        return integer.observed_tensors(graph, static_outputs(decisions))
    return observed_tensors(graph, decisions)


def _reported(calls: Calls, progress: Progress) -> Iterator[Feeds]:
    for done, feeds in enumerate(calls.feeds(), start=1):
        yield feeds
        progress.advance("calibrate", min(done, calls.total), calls.total)
    progress.advance("calibrate", calls.total, calls.total)


def _check_fused(graph: onnx.ModelProto, decisions: Sequence[Decision]) -> None:
    """Refuse a graph of which the runtime would compute in FP32 what is promised in integers."""
    promised = sum(d.activations == "static" and d.weight is not None for d in decisions)
    if promised and (fused := count_fused(graph)) != promised:
        raise QuantizationError(
            f"the recipe promises {promised} integer operators, but onnxruntime runs only {fused} "
            "of them in integers; exclude those that stand at the graph's border"
        )
