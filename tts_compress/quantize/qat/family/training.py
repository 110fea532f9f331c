"""From a system to a compressed one whose components learned to answer as the original's do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_flatten

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import QuantizationError, RecipeError
from tts_compress.layers.build import kernel_choices
from tts_compress.quantize.qat.convert import convert_qat
from tts_compress.quantize.qat.fake_quantize import (
    ActivationFakeQuantize,
    FakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
)
from tts_compress.quantize.qat.family.call_task import CallTask, name_of
from tts_compress.quantize.qat.family.recording import record_objectives
from tts_compress.quantize.qat.family.told import ToldOf, say
from tts_compress.quantize.qat.prepare import QATOptions, prepare_qat
from tts_compress.quantize.qat.train.loop import train
from tts_compress.quantize.torch.compress import (
    calibration_texts,
    describe_compression,
    find_recipe_target,
    refuse_compressed,
    speaking,
)
from tts_compress.recipe import find_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.models.distillation import Call, Distillable, Objective
    from tts_compress.progress import Progress
    from tts_compress.quantize.qat.compress import Workplace
    from tts_compress.quantize.qat.prepare import PreparedModule
    from tts_compress.quantize.qat.train.loop import Trained
    from tts_compress.quantize.qat.train.options import TrainingOptions
    from tts_compress.recipe import Calibration, Recipe

__all__ = ["Lesson", "find_lessons", "train_family"]

_HELD_OUT = 8
"""Of so many texts one is held out; at least one is."""

_MOST_LEARNED, _MOST_JUDGED = 128, 32
"""Calls of one component that are kept: the estimator of a diffusion is called for every step of
every text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """What one component learns from."""

    objective: Objective
    train: Sequence[Call]
    held_out: Sequence[Call]

    @property
    def name(self) -> str:
        """What its component is called."""
        return name_of(self.objective)


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
        QuantizationError: The model is compressed already, nothing that it is rounded in learns,
            or a training broke down.
        RecipeError: There is no such calibration set, or it has one text only.
        ModelError: The model cannot speak, or a component answers otherwise to the same call.
        ArtifactError: A folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    refuse_compressed(model)
    target = find_recipe_target(recipe, model.root())
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
    done = convert_qat(prepared, kernels=target.choices if target else kernel_choices())
    manifest = describe_compression(model, recipe, done, target, seed=options.seed)
    training = _summary(found, options.seed)
    return model.with_root(done.root, replace(manifest, calibration=record, training=training))


def find_lessons(
    model: Distillable,
    student: nn.Module,
    texts: Sequence[tuple[str, int]],
    *,
    progress: Progress,
) -> list[Lesson]:
    """Return what each rounded component learns from, in the order data flows.

    Texts are held out, not calls: what is judged on was said in no text that is learned from.

    Args:
        model: The teacher.
        student: Its root with fake-quantized layers.
        texts: What the teacher says, each with the seed of its noise.
        progress: Is told of every text, and of components that do not learn.

    Raises:
        QuantizationError: No component learns.
        RecipeError: There is one text only.
        ModelError: The model cannot speak.
    """
    if len(texts) < 2:
        raise RecipeError(f"{len(texts)} texts to learn from; give 2 or more: one is held out")
    rounded = [o for o in model.objectives() if _is_rounded(student, o.module)]
    judged = set(range(_HELD_OUT - 1, len(texts), _HELD_OUT)) or {len(texts) - 1}
    spoken = [text for i, text in enumerate(texts) if i not in judged]
    held_out = [text for i, text in enumerate(texts) if i in judged]
    learned = record_objectives(model, rounded, spoken, most=_MOST_LEARNED, progress=progress)
    others = record_objectives(model, rounded, held_out, most=_MOST_JUDGED, progress=progress)
    lessons = []
    for objective, calls, against in zip(rounded, learned, others, strict=True):
        known = {_digest(call) for call in against}
        lesson = Lesson(
            objective=objective,
            train=[call for call in calls if _digest(call) not in known],
            held_out=against,
        )
        if lesson.train and lesson.held_out:
            lessons.append(lesson)
        else:
            reason = "hears the same in every text" if calls and against else "is not called"
            say(progress, f"{lesson.name} {reason}: it is rounded without learning")
    if not lessons:
        raise QuantizationError(
            "the recipe rounds no component that learns; there is nothing to train: compress the "
            "model without"
        )
    return lessons


def _settings(recipe: Recipe) -> Calibration:
    """Return which texts are learned from: those of `int8-qat` where a recipe names none."""
    if recipe.calibration is not None:
        return recipe.calibration
    shipped = find_recipe(recipe.family, "int8-qat").calibration
    assert shipped is not None, "a shipped recipe for training has texts"
    return shipped


def _is_rounded(root: nn.Module, name: str) -> bool:
    parts = root.get_submodule(name).modules()
    return any(isinstance(part, FakeQuantize) for part in parts)


def _digest(call: Call) -> bytes:
    """Return what calls with the same tensors have in common."""
    digest = hashlib.sha256()
    for leaf in tree_flatten((call.arguments, call.keywords))[0]:
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{tuple(leaf.shape)}{leaf.dtype}".encode())
            digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


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
