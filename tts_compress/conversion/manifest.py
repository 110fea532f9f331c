"""The record of what was done to a graph."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tts_compress.artifact import LayerRecord, Manifest, Source, sha256_of
from tts_compress.environment import describe_environment
from tts_compress.errors import ModelError
from tts_compress.onnx.quantize.count import count_operators

if TYPE_CHECKING:
    import onnx

    from tts_compress.artifact import CalibrationRecord
    from tts_compress.conversion.conversion import Conversion
    from tts_compress.models.base import OnnxGraph
    from tts_compress.onnx.quantize.decisions import Decision
    from tts_compress.recipes.recipe import Recipe

__all__ = ["describe_conversion"]


def describe_conversion(
    model: OnnxGraph,
    recipe: Recipe,
    conversion: Conversion,
    finished: onnx.ModelProto,
    *,
    calibration: CalibrationRecord | None,
    seed: int,
) -> Manifest:
    """Return the manifest of a converted graph.

    Args:
        model: What was compressed.
        recipe: By which it was.
        conversion: What was decided by it.
        finished: The converted graph, whose operators are counted.
        calibration: What the ranges were made of.
        seed: Of the noise the model was calibrated with.
    """
    return Manifest(
        family=model.family,
        scheme=recipe.scheme,
        source=_source(model),
        recipe=recipe.model_dump(mode="json"),
        layers=tuple(_record(decision) for decision in conversion.decisions),
        counts=dict(sorted(count_operators(finished).items())),
        calibration=calibration,
        seed=seed,
        environment=describe_environment().to_dict(),
    )


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
