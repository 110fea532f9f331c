"""Compressing by training: open a task, train its student, deploy what it learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from tts_compress.conversion.calibration import is_feeds, open_calibration
from tts_compress.errors import RecipeError, SchemeError
from tts_compress.models import open_model
from tts_compress.models.base import Model, OnnxGraph
from tts_compress.models.distillation import Distillable
from tts_compress.progress import Progress, Silent
from tts_compress.qat.convert import convert_qat
from tts_compress.qat.family.training import train_family
from tts_compress.qat.graph.task import GraphTaskSettings, open_graph_task
from tts_compress.qat.module_task import ModuleTask
from tts_compress.qat.prepare import QATOptions, prepare_qat
from tts_compress.qat.train.loop import train
from tts_compress.qat.train.options import TrainingOptions
from tts_compress.recipes.family import find_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tts_compress.models.distillation import Objective
    from tts_compress.qat.train.loop import Trained
    from tts_compress.recipes.recipe import Recipe

__all__ = ["Workplace", "compress_trained", "train_graph", "train_module"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a training is kept, and who is told of it."""

    folder: Path | None = None
    """For checkpoints and the log; a training whose checkpoint is there goes on. None keeps
    nothing."""

    restart: bool = False
    """Drop a checkpoint that is there."""

    progress: Progress = field(default_factory=Silent)


def compress_trained(
    model: Model | nn.Module | str | Path,
    scheme: str = "int8-qat",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: Any = None,
    options: TrainingOptions | None = None,
    workplace: Workplace | None = None,
) -> Model | nn.Module:
    """Return a compressed model that was trained to answer as the original does.

    The original is the only teacher: texts, or a graph's or module's inputs, are the only data.

    Args:
        model: As `compress` takes it.
        scheme: `int8-qat`; for what runs in torch also one with four-bit weights.
        recipe: As `compress` takes it.
        calibration: The texts to learn from, by a calibration set's name or TOML file; for a bare
            graph an `.npz` of its inputs; for a torch module batches of them, two or more.
        options: Of the training; of a system in torch, of that of each component.
        workplace: Where it is kept, and who is told.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration is malformed, missing or of the wrong kind.
        ModelError: The model cannot be loaded.
        QuantizationError: The recipe rounds nothing, or training broke down.
        ArtifactError: The folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    options = options or TrainingOptions()
    workplace = workplace or Workplace()
    if isinstance(model, nn.Module):
        found = find_recipe("module", scheme, recipe)
        if calibration is None:
            raise RecipeError("a module learns from its inputs; give batches as calibration")
        return train_module(model, found, calibration, options=options, workplace=workplace)[0]
    loaded = model if isinstance(model, Model) else open_model(model, bare=is_feeds(calibration))
    found = find_recipe(loaded.family, scheme, recipe)
    if isinstance(loaded, Distillable):
        return train_family(loaded, found, calibration, options=options, workplace=workplace)
    if not isinstance(loaded, OnnxGraph):
        raise SchemeError(
            f"family {loaded.family!r} has neither a graph nor components that learn; give one of "
            "its modules, with batches of inputs"
        )
    return train_graph(loaded, found, calibration, options=options, workplace=workplace)[0]


def train_graph(
    model: OnnxGraph,
    recipe: Recipe,
    calibration: str | Path | None,
    *,
    options: TrainingOptions,
    workplace: Workplace,
) -> tuple[OnnxGraph, Trained]:
    """Return a voice or a bare graph, compressed, and what was trained of it.

    Raises:
        QuantizationError: As `compress_trained`, and if the recipe has no calibration.
    """
    if recipe.calibration is None:
        raise RecipeError(
            f"recipe '{recipe.family}-{recipe.scheme}' has no [calibration] table; training "
            "starts from calibrated ranges"
        )
    data = open_calibration(model, recipe.calibration, calibration, seed=options.seed)
    settings = GraphTaskSettings(learned_ranges=options.learned_ranges)
    task = open_graph_task(model, recipe, data, progress=workplace.progress, settings=settings)
    trained = _train(task, options, workplace)
    return task.deploy(task.student, trained.record), trained


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
