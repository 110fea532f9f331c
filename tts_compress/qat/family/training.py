"""From a system to a compressed one whose components learned to answer as the original's do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tts_compress.artifact import TrainingRecord
from tts_compress.conversion.compress_torch import (
    calibration_texts,
    describe_compression,
    refuse_compressed,
    speaking,
)
from tts_compress.qat.convert import convert_qat
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
)
from tts_compress.qat.family.call_task import CallTask
from tts_compress.qat.family.lessons import find_lessons
from tts_compress.qat.family.told import ToldOf
from tts_compress.qat.prepare import QATOptions, prepare_qat
from tts_compress.qat.train.loop import train
from tts_compress.recipes.family import find_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.models.distillation import Distillable
    from tts_compress.progress import Progress
    from tts_compress.qat.compress import Workplace
    from tts_compress.qat.family.lessons import Lesson
    from tts_compress.qat.prepare import PreparedModule
    from tts_compress.qat.train.loop import Trained
    from tts_compress.qat.train.options import TrainingOptions
    from tts_compress.recipes.recipe import Calibration, Recipe

__all__ = ["train_family"]


def train_family(
    model: Distillable,
    recipe: Recipe,
    calibration: str | Path | None,
    *,
    options: TrainingOptions,
    workplace: Workplace,
) -> TorchModel:
    """Return a system, compressed, whose components were trained one after the other.

    Args:
        model: The teacher; not modified.
        recipe: What is rounded.
        calibration: A calibration set in the place of the recipe's.
        options: Of the training of each component.
        workplace: Where the components' trainings are kept, each in a folder of its own.

    Raises:
        QuantizationError: The model is compressed already, the recipe rounds no component that
            learns, or a training broke down.
        RecipeError: There is no such calibration set, or it has one text only.
        ModelError: The model cannot speak, or a component answers otherwise to the same call.
        ArtifactError: A folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    refuse_compressed(model)
    texts, record = calibration_texts(_settings(recipe), calibration, options.seed)
    learned = QATOptions(
        learn_ranges=options.learned_ranges, learn_weight_scales=options.learned_scales
    )
    prepared = prepare_qat(model.root(), recipe, options=learned)
    lessons = find_lessons(model, prepared.module, texts, progress=workplace.progress)
    _observe(prepared, model, texts, workplace.progress)
    found = {
        lesson.name: _train(lesson, model, prepared.module, options, workplace)
        for lesson in lessons
    }
    done = convert_qat(prepared)
    manifest = describe_compression(model, recipe, done, seed=options.seed)
    training = _summary(found, options.seed)
    return model.with_root(done.root, replace(manifest, calibration=record, training=training))


def _settings(recipe: Recipe) -> Calibration:
    """Return which texts are learned from: those of `int8-qat` where a recipe names none."""
    if recipe.calibration is not None:
        return recipe.calibration
    shipped = find_recipe(recipe.family, "int8-qat").calibration
    assert shipped is not None, "a shipped recipe for training has texts"
    return shipped


def _observe(
    prepared: PreparedModule,
    model: TorchModel,
    texts: Sequence[tuple[str, int]],
    progress: Progress,
) -> None:
    """Freeze ranges at what the whole model's speech fills, also of parts that do not learn."""
    if any(isinstance(part, ActivationFakeQuantize) for part in prepared.modules()):
        disable_fake_quant(prepared)
        speaking(model, texts, progress)(prepared.module)
        disable_observer(prepared)
        enable_fake_quant(prepared)


def _train(
    lesson: Lesson,
    model: TorchModel,
    student: nn.Module,
    options: TrainingOptions,
    workplace: Workplace,
) -> Trained:
    task = CallTask(
        lesson.objective,
        model.root(),
        student.get_submodule(lesson.objective.module),
        train=lesson.train,
        held_out=lesson.held_out,
        sample_rate=model.sample_rate,
    )
    return train(
        task,
        options,
        folder=workplace.folder / lesson.name if workplace.folder else None,
        restart=workplace.restart,
        progress=ToldOf(lesson.name, workplace.progress),
    )


def _summary(found: dict[str, Trained], seed: int) -> TrainingRecord:
    """Return the record of all components' trainings as one."""
    records = {name: trained.record for name, trained in found.items()}
    return TrainingRecord(
        steps=sum(record.steps for record in records.values()),
        seed=seed,
        before={f"{n}/{term}": v for n, r in records.items() for term, v in r.before.items()},
        after={f"{n}/{term}": v for n, r in records.items() for term, v in r.after.items()},
    )
