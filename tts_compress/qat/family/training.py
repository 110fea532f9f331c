"""From a system to a compressed one whose components learned to answer as the original's do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.artifact import TrainingRecord
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

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.models.distillation import Distillable
    from tts_compress.qat.family.lessons import Lesson
    from tts_compress.qat.prepare import PreparedModule
    from tts_compress.qat.train.loop import Trained
    from tts_compress.qat.train.options import TrainingOptions
    from tts_compress.qat.training import Workplace
    from tts_compress.recipes.recipe import Recipe
    from tts_compress.torch.convert import Converted

__all__ = ["train_family"]


def train_family(
    model: Distillable,
    recipe: Recipe,
    texts: Sequence[tuple[str, int]],
    speak: Callable[[nn.Module], None],
    *,
    options: TrainingOptions,
    workplace: Workplace,
) -> tuple[Converted, TrainingRecord]:
    """Return a system's components, compressed and trained one after the other, and how.

    Args:
        model: The teacher; not modified.
        recipe: What is rounded.
        texts: What is learned from, each text with the seed of its noise.
        speak: Makes the system speak them with another root.
        options: Of the training of each component.
        workplace: Where the components' trainings are kept, each in a folder of its own.

    Raises:
        QuantizationError: The recipe rounds no component that learns, or a training broke down.
        RecipeError: There is one text only.
        ModelError: The model cannot speak, or a component answers otherwise to the same call.
        ArtifactError: A folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    learned = QATOptions(
        learn_ranges=options.learned_ranges, learn_weight_scales=options.learned_scales
    )
    prepared = prepare_qat(model.root(), recipe, options=learned)
    lessons = find_lessons(model, prepared.module, texts, progress=workplace.progress)
    _observe(prepared, speak)
    found = {
        lesson.name: _train(lesson, model, prepared.module, options, workplace)
        for lesson in lessons
    }
    return convert_qat(prepared), _summary(found, options.seed)


def _observe(prepared: PreparedModule, speak: Callable[[nn.Module], None]) -> None:
    """Freeze ranges at what the whole model's speech fills, also of parts that do not learn."""
    if any(isinstance(part, ActivationFakeQuantize) for part in prepared.modules()):
        disable_fake_quant(prepared)
        speak(prepared.module)
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
