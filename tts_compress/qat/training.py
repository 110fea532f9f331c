"""Training of graphs, modules and systems: make a task, train its student, return the result."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import RecipeError
from tts_compress.models.base import TorchModel
from tts_compress.numerics.four_bits import Blocks
from tts_compress.onnx.durations import length_outputs
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import Conversion
from tts_compress.progress import ComponentProgress
from tts_compress.qat.call_task import call_task, module_task
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, observing
from tts_compress.qat.graph.network import GraphNetwork
from tts_compress.qat.graph.student import learned_conversion
from tts_compress.qat.graph.task import graph_task
from tts_compress.qat.options import TrainingRun
from tts_compress.qat.prepare import convert_qat, prepare_qat
from tts_compress.qat.recorded_calls import record_calls
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
    # One text at a time is all that such graphs promise to take.
    decides = recipe.family != "piper" and length_outputs(conversion.graph, conversion.lengths)
    if recipe.family == "contract" or decides:
        options, size = run.options, run.options.batch_size
        alone = replace(options, batch_size=1, accumulation=options.accumulation * size)
        run = replace(run, options=alone)
    # What is trained is rounded to nearest: codes chosen before are not those of what it becomes.
    blocks = {out: codes for out, codes in conversion.chosen.items() if isinstance(codes, Blocks)}
    conversion = replace(conversion, chosen=blocks)
    learned = run.options.learned_ranges
    task = graph_task(conversion, recipe, calls, sample_rate=sample_rate, learned_ranges=learned)
    record = train(task, run)
    assert isinstance(task.student, GraphNetwork)
    return learned_conversion(conversion, task.student), record


def train_module(
    module: nn.Module,
    recipe: Recipe,
    batches: Iterable[Any],
    *,
    run: TrainingRun,
) -> nn.Module:
    """Return a compressed and trained copy of any module.

    Args:
        module: In FP32; not modified.
        recipe: The format of each layer.
        batches: Its inputs, as `module_task` takes them.
        run: Options, folder and progress.

    Raises:
        QuantizationError: As `compress_trained`.
    """
    options = run.options
    prepared = prepare_qat(module, recipe, learned_ranges=options.learned_ranges)
    loss = options.loss or "mse"
    task = module_task(module, prepared.module, list(batches), loss=loss, seed=options.seed)
    train(task, run)
    return convert_qat(prepared).root


def train_system(
    model: TorchModel,
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
    recorded = record_calls(model, student, texts, progress=run.progress)
    # Ranges are observed in the whole model's speech, also of parts that are not trained.
    if any(isinstance(part, ActivationFakeQuantize) for part in student.modules()):
        with observing(student):
            speak(student)
    records: dict[str, TrainingRecord] = {}
    for calls in recorded:
        name, component = calls.objective.name, student.get_submodule(calls.objective.module)
        own = replace(
            run,
            folder=run.folder / name if run.folder else None,
            progress=ComponentProgress(name, run.progress),
        )
        task = call_task(calls, model.root(), component, sample_rate=model.sample_rate)
        records[name] = train(task, own)
    return convert_qat(prepared), TrainingRecord(
        steps=sum(record.steps for record in records.values()),
        seed=run.options.seed,
        before={f"{n}/{term}": v for n, r in records.items() for term, v in r.before.items()},
        after={f"{n}/{term}": v for n, r in records.items() for term, v in r.after.items()},
    )
