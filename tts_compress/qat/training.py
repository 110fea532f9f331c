"""Training of graphs, modules and systems: make a task, train its student, return the result."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import RecipeError
from tts_compress.models.base import TorchModel
from tts_compress.models.distillation import Distillable, Objective
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import Conversion
from tts_compress.progress import ComponentProgress
from tts_compress.qat.component_dataset import ComponentDataset, record_datasets
from tts_compress.qat.component_task import ComponentTask
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, observing
from tts_compress.qat.graph.student import learned_conversion
from tts_compress.qat.graph.task import open_graph_task
from tts_compress.qat.module_task import ModuleTask
from tts_compress.qat.options import TrainingRun
from tts_compress.qat.prepare import convert_qat, prepare_qat
from tts_compress.qat.trainer import train
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.convert import Converted


def train_graph(
    conversion: Conversion,
    recipe: Recipe,
    calls: Calls | None,
    *,
    sample_rate: int | None,
    run: TrainingRun,
) -> tuple[Conversion, TrainingRecord]:
    """Return a conversion with trained weights and ranges, and how they were trained.

    Args:
        conversion: A prepared voice or bare graph; not modified.
        recipe: The recipe it was prepared by.
        calls: Its inputs.
        sample_rate: Sample rate of a voice, Hz; None for a bare graph.
        run: Options, folder and progress.

    Raises:
        RecipeError: The recipe has no calibration.
        QuantizationError: As `compress_trained`.
    """
    if recipe.calibration is None or calls is None:
        raise RecipeError(
            f"recipe '{recipe.family}-{recipe.scheme}' has no [calibration] table; training "
            "starts from calibrated ranges"
        )
    task = open_graph_task(
        conversion,
        recipe,
        calls,
        sample_rate=sample_rate,
        learned_ranges=run.options.learned_ranges,
    )
    trained = train(task, run)
    return learned_conversion(conversion, task.student), trained.record


def train_module(
    module: nn.Module,
    recipe: Recipe,
    batches: Iterable[Any],
    *,
    objectives: Sequence[Objective] = (),
    run: TrainingRun,
) -> nn.Module:
    """Return a compressed and trained copy of any module.

    Args:
        module: In FP32; not modified.
        recipe: The format of each layer.
        batches: Its inputs, as `ModuleTask` takes them.
        objectives: Outputs to compare; by default all of them, by squared difference.
        run: Options, folder and progress.

    Raises:
        QuantizationError: As `compress_trained`.
    """
    options = run.options
    prepared = prepare_qat(module, recipe, learned_ranges=options.learned_ranges)
    task = ModuleTask(
        module, prepared.module, list(batches), objectives=objectives, seed=options.seed
    )
    train(task, run)
    return convert_qat(prepared).root


def train_system(
    model: Distillable,
    recipe: Recipe,
    texts: Sequence[tuple[str, int]],
    speak: Callable[[nn.Module], None],
    *,
    run: TrainingRun,
) -> tuple[Converted, TrainingRecord]:
    """Return a system's components, compressed and trained one after the other, and how.

    Args:
        model: The teacher; not modified.
        recipe: The format of each layer.
        texts: Texts to train on, each with the seed of its noise.
        speak: Makes the system speak them with another root.
        run: Options of each component's training; each is kept in a folder of its own.

    Raises:
        QuantizationError: As `compress_trained`.
        RecipeError: There is one text only.
        ModelError: The model cannot speak, or a component returns something else for the same call.
    """
    prepared = prepare_qat(model.root(), recipe, learned_ranges=run.options.learned_ranges)
    student = prepared.module
    datasets = record_datasets(model, student, texts, progress=run.progress)
    # Ranges are observed in the whole model's speech, also of parts that are not trained.
    if any(isinstance(part, ActivationFakeQuantize) for part in student.modules()):
        with observing(student):
            speak(student)
    records = {d.name: _train_component(d, model, student, run) for d in datasets}
    return convert_qat(prepared), TrainingRecord(
        steps=sum(record.steps for record in records.values()),
        seed=run.options.seed,
        before={f"{n}/{term}": v for n, r in records.items() for term, v in r.before.items()},
        after={f"{n}/{term}": v for n, r in records.items() for term, v in r.after.items()},
    )


def _train_component(
    dataset: ComponentDataset, model: TorchModel, student: nn.Module, run: TrainingRun
) -> TrainingRecord:
    component = student.get_submodule(dataset.objective.module)
    task = ComponentTask(dataset, model.root(), component, sample_rate=model.sample_rate)
    own = replace(
        run,
        folder=run.folder / dataset.name if run.folder else None,
        progress=ComponentProgress(dataset.name, run.progress),
    )
    return train(task, own).record
