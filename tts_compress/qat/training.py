"""Training of graphs and modules: open a task, train its student, return what it learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tts_compress.errors import RecipeError
from tts_compress.progress import Progress, Silent
from tts_compress.qat.convert import convert_qat
from tts_compress.qat.graph.deploy import learned_conversion
from tts_compress.qat.graph.task import GraphTaskSettings, open_graph_task
from tts_compress.qat.module_task import ModuleTask
from tts_compress.qat.prepare import QATOptions, prepare_qat
from tts_compress.qat.train.loop import train

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from torch import nn

    from tts_compress.artifact import TrainingRecord
    from tts_compress.models.distillation import Objective
    from tts_compress.onnx.quantize.collect import Calls
    from tts_compress.onnx.quantize.convert import Conversion
    from tts_compress.qat.train.loop import Trained
    from tts_compress.qat.train.options import TrainingOptions
    from tts_compress.recipes.recipe import Recipe

__all__ = ["Training", "Workplace", "train_graph", "train_module"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a training is kept, and who is told of it."""

    folder: Path | None = None
    """For checkpoints and the log; a training whose checkpoint is there goes on. None keeps
    nothing."""

    restart: bool = False
    """Drop a checkpoint that is there."""

    progress: Progress = field(default_factory=Silent)


@dataclass(frozen=True, slots=True)
class Training:
    """How a compressed model is trained."""

    options: TrainingOptions
    workplace: Workplace


def train_graph(
    conversion: Conversion,
    recipe: Recipe,
    calls: Calls | None,
    *,
    sample_rate: int | None,
    options: TrainingOptions,
    workplace: Workplace,
) -> tuple[Conversion, TrainingRecord]:
    """Return a conversion with trained weights and ranges, and how they were trained.

    Args:
        conversion: A prepared voice or bare graph; not modified.
        recipe: The recipe it was prepared by.
        calls: Its inputs.
        sample_rate: Of a voice, Hz; None for a bare graph.
        options: Options of the training.
        workplace: Where it is kept, and what its progress is reported to.

    Raises:
        RecipeError: The recipe has no calibration.
        QuantizationError: As `compress_trained`.
    """
    if recipe.calibration is None or calls is None:
        raise RecipeError(
            f"recipe '{recipe.family}-{recipe.scheme}' has no [calibration] table; training "
            "starts from calibrated ranges"
        )
    settings = GraphTaskSettings(learned_ranges=options.learned_ranges)
    task = open_graph_task(conversion, recipe, calls, sample_rate=sample_rate, settings=settings)
    trained = _train(task, options, workplace)
    return learned_conversion(conversion, task.student), trained.record


def train_module(
    module: nn.Module,
    recipe: Recipe,
    batches: Iterable[Any],
    *,
    objectives: Sequence[Objective] = (),
    options: TrainingOptions,
    workplace: Workplace,
) -> tuple[nn.Module, Trained]:
    """Return a compressed copy of any module, and what was trained of it.

    Args:
        module: In FP32; not modified.
        recipe: What happens to which layer.
        batches: Its inputs, as `ModuleTask` takes them.
        objectives: What is compared; by default all that it returns, by squared difference.
        options: Of the training.
        workplace: Where it is kept, and who is told.

    Raises:
        QuantizationError: As `compress_trained`.
    """
    learned = QATOptions(
        learn_ranges=options.learned_ranges, learn_weight_scales=options.learned_scales
    )
    student = prepare_qat(module, recipe, options=learned)
    task = ModuleTask(module, student, list(batches), objectives=objectives, seed=options.seed)
    trained = _train(task, options, workplace)
    return convert_qat(student).root, trained


def _train(task: Any, options: TrainingOptions, workplace: Workplace) -> Trained:
    return train(
        task,
        options,
        folder=workplace.folder,
        restart=workplace.restart,
        progress=workplace.progress,
    )
