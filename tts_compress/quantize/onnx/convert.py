"""From an FP32 graph and a recipe to a compressed graph, with a record of what was done."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tts_compress.artifact import LayerRecord, Manifest, Source, sha256_of
from tts_compress.calibrate.collect import collect
from tts_compress.calibrate.histogram import choose_range
from tts_compress.environment import describe_environment
from tts_compress.errors import ModelError, QuantizationError
from tts_compress.models.base import TTSModel
from tts_compress.models.noise import feed_noise
from tts_compress.quantize.onnx import integer
from tts_compress.quantize.onnx.count import count_fused, count_operators
from tts_compress.quantize.onnx.decisions import count_decisions, decide
from tts_compress.quantize.onnx.dynamic import quantize_dynamically
from tts_compress.quantize.onnx.equalize import equalize_channels
from tts_compress.quantize.onnx.graph import GraphEditor, copy_model
from tts_compress.quantize.onnx.half import halve
from tts_compress.quantize.onnx.integer import IntegerPlan, emit_integer
from tts_compress.quantize.onnx.prepare import prepare, typed
from tts_compress.quantize.onnx.rewrite import rewrite
from tts_compress.quantize.onnx.static import Range, observed_tensors, quantize_statically
from tts_compress.quantize.onnx.sums import make_sums_real
from tts_compress.quantize.onnx.weight_only import store_weights
from tts_compress.targets import HOST, Target, find_target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from tts_compress.models.base import Feeds, OnnxGraph
    from tts_compress.progress import Progress
    from tts_compress.quantize.calibration import CalibrationData
    from tts_compress.quantize.onnx.decisions import Decision
    from tts_compress.recipe import Format, Recipe

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
        RecipeError: There is no such target.
    """
    if model.manifest is not None:
        raise QuantizationError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); compress the original"
        )
    target = _target(recipe)
    graph = prepare(model.graph())
    if recipe.format == "qoperator":
        graph = typed(rewrite(graph, spoken=isinstance(model, TTSModel))[0])
    decisions = decide(graph, recipe, target.choices if target else None)
    ranges: dict[str, Range] = {}
    if recipe.calibration is not None:
        assert calibration is not None
        assert target is not None
        if recipe.real_sums and recipe.format == "qoperator":
            graph = typed(make_sums_real(graph, _plan(decisions, target))[0])
        observed = _observed(graph, decisions, recipe.format, target)
        if recipe.calibration.equalize:
            graph = typed(equalize_channels(graph, observed, calibration.calls()))
            decisions = decide(graph, recipe, target.choices)  # its weights have other names
        calls = _reported(calibration.calls(), calibration.total, progress)
        seen = collect(feed_noise(graph), observed, calls)
        ranges = {name: choose_range(seen[name], recipe.calibration) for name in seen}
    converted = convert(graph, decisions, ranges, target, form=recipe.format)
    manifest = Manifest(
        family=model.family,
        scheme=recipe.scheme,
        source=_source(model),
        recipe=recipe.model_dump(mode="json") | ({"target": target.name} if target else {}),
        target=_target_record(target, recipe.format),
        layers=tuple(_record(decision) for decision in decisions),
        counts=dict(sorted(count_operators(converted).items())),
        calibration=calibration.record if calibration is not None else None,
        seed=seed,
        environment=describe_environment().to_dict(),
    )
    return model.with_graph(converted, manifest)


def convert(
    graph: onnx.ModelProto,
    decisions: Sequence[Decision],
    ranges: Mapping[str, Range],
    target: Target | None,
    *,
    form: Format = "qdq",
) -> onnx.ModelProto:
    """Return a converted copy of a prepared graph.

    Args:
        graph: It is not changed.
        decisions: What happens to which operator.
        ranges: Lowest and highest value of every observed tensor.
        target: Whose integer arithmetic is used; None where no decision asks for integers.
        form: How the graph says it.

    Raises:
        QuantizationError: The finished graph does not hold what was decided.
    """
    types = {value.name: value.type.tensor_type.elem_type for value in graph.graph.value_info}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.graph.input}
    types |= {value.name: value.type.tensor_type.elem_type for value in graph.graph.output}
    types |= {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    if form == "qoperator" and target is not None:
        editor = GraphEditor(emit_integer(graph, _plan(decisions, target), ranges))
    else:
        editor = GraphEditor(copy_model(graph))
    if target is not None:
        if form == "qdq":
            quantize_statically(editor, decisions, ranges, target)
        quantize_dynamically(editor, decisions, target)
    halve(editor, decisions, types)
    store_weights(editor, decisions)
    finished = editor.finish()
    promised, held = count_decisions(decisions), count_operators(finished)
    if promised != held:
        raise QuantizationError(
            f"the finished graph holds {dict(held)}, but the recipe promises {dict(promised)}; "
            "please report this voice"
        )
    if form == "qdq" and target is not None:
        _check_fused(finished, decisions, target)
    return finished


def _target(recipe: Recipe) -> Target | None:
    """Return the processor a recipe computes in integers for; None where it does not."""
    integers = any(rule.activations in {"dynamic", "static"} for rule in recipe.component)
    return find_target(recipe.target) if integers or recipe.target != HOST else None


def _target_record(target: Target | None, form: Format) -> dict[str, Any] | None:
    """Return what a manifest tells of the target: of its choices only where they were made."""
    if target is None:
        return None
    unused = {"choices", "figures", "machine", "measured", "assumption"}
    return target.model_dump(mode="json", exclude=unused if form == "qdq" else None)


def _observed(
    graph: onnx.ModelProto, decisions: Sequence[Decision], form: Format, target: Target
) -> list[str]:
    if form == "qoperator":
        return integer.observed_tensors(graph, _plan(decisions, target))
    return observed_tensors(graph, decisions)


def _plan(decisions: Sequence[Decision], target: Target) -> IntegerPlan:
    chosen = target.choices
    return IntegerPlan(
        convolutions=frozenset(d.output for d in decisions if d.activations == "static"),
        signed=target.signed,
        weight_limit=target.weight_limit,
        leaky_relu=chosen.leaky_relu,
        addition=chosen.addition,
        gates=chosen.gates,
        few_outputs=chosen.few_outputs,
    )


def _check_fused(graph: onnx.ModelProto, decisions: Sequence[Decision], target: Target) -> None:
    """Refuse a graph of which the runtime would compute in FP32 what is promised in integers."""
    promised = sum(d.activations == "static" and d.weight is not None for d in decisions)
    if promised and (fused := count_fused(graph, signed=target.signed)) != promised:
        raise QuantizationError(
            f"the recipe promises {promised} integer operators, but onnxruntime runs only {fused} "
            "of them in integers; exclude those that stand at the graph's border"
        )


def _reported(calls: Iterator[Feeds], total: int, progress: Progress) -> Iterator[Feeds]:
    for done, feeds in enumerate(calls, start=1):
        yield feeds
        progress.advance("calibrate", min(done, total), total)
    progress.advance("calibrate", total, total)


def _record(decision: Decision) -> LayerRecord:
    return LayerRecord(
        module=decision.module,
        operator=decision.operator,
        weights=decision.weights,
        activations=decision.activations,
        parameters=decision.parameters,
    )


def _source(model: OnnxGraph) -> Source:
    try:
        (path,) = model.files().weights
    except ModelError:  # exported from a checkpoint and not saved
        content = model.graph().SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).hexdigest()
        return Source(spec=model.spec, sha256=digest, size_bytes=len(content))
    return Source(spec=model.spec, sha256=sha256_of(path), size_bytes=path.stat().st_size)
