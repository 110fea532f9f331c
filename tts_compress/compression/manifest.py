"""The record of how a model was compressed."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tts_compress.artifact import (
    CalibrationRecord,
    Manifest,
    Source,
    TrainingRecord,
    join_runs,
    sha256_of,
)
from tts_compress.environment import describe_environment
from tts_compress.errors import ModelError
from tts_compress.models.base import Model, OnnxGraph
from tts_compress.onnx.quantize.convert import Conversion
from tts_compress.progress import Progress
from tts_compress.qat.options import TrainingRun
from tts_compress.recipes.formats import Quality
from tts_compress.recipes.recipe import Recipe

if TYPE_CHECKING:
    from tts_compress.torch.convert import Converted


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Settings of one compression besides its recipe."""

    seed: int
    """Seed of the noise the model is calibrated with."""

    progress: Progress
    quality: Quality | None = None
    """Bound on the damage to a graph's sound; None for the recipe's."""

    training: TrainingRun | None = None
    """None where the model is not trained."""


def describe(
    model: Model | Source,
    recipe: Recipe,
    outcome: "Conversion | Converted",
    *,
    calibration: CalibrationRecord | None,
    training: TrainingRecord | None,
    seed: int,
) -> Manifest:
    """Return the manifest of a model, by itself or its source, compressed by a recipe."""
    return Manifest(
        family=recipe.family,
        scheme=recipe.scheme,
        source=model if isinstance(model, Source) else _source(model),
        recipe=recipe.model_dump(mode="json"),
        layers=outcome.layers,
        counts=dict(outcome.counts),
        calibration=calibration,
        seed=seed,
        environment=describe_environment(),
        training=training,
    )


def join_manifests(manifests: Mapping[str, Manifest]) -> Manifest:
    """Return the record of a model, whose recipe and calibration are those of its first graph.

    Args:
        manifests: Records of its graphs, by the names of parts in their order.
    """
    records = list(manifests.values())
    layers = [
        # A colon, because blame looks for components of the first graph itself.
        replace(layer, module=f"{name}:{layer.module}" if name else layer.module)
        for name, record in manifests.items()
        for layer in record.layers
    ]
    return replace(
        records[0],
        counts=dict(sum((Counter(record.counts) for record in records), Counter[str]())),
        layers=tuple(layers),
        training=next((record.training for record in records if record.training), None),
        run=join_runs([record.run for record in records if record.run]),
    )


def _source(model: Model) -> Source:
    try:
        files = model.files().weights
    except ModelError:  # made in memory
        if not isinstance(model, OnnxGraph):
            return Source(spec=model.spec, sha256="", size_bytes=0)
        content = model.graph().SerializeToString(deterministic=True)
        digest = hashlib.sha256(content).hexdigest()
        return Source(spec=model.spec, sha256=digest, size_bytes=len(content))
    digests = [sha256_of(path) for path in files]
    joined = hashlib.sha256("".join(digests).encode()).hexdigest()
    return Source(
        spec=model.spec,
        sha256=digests[0] if len(digests) == 1 else joined,
        size_bytes=sum(path.stat().st_size for path in files),
    )
