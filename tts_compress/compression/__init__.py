"""Compression: the one path from a model and a recipe to a compressed model.

Open → refuse what cannot be compressed → calibrate, or train → convert and check what the result
holds → the model again, with its manifest. `onnx/`, `torch/` and `qat/` do the work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import sqrt
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tts_compress.compression.quality import choose
from tts_compress.compression.sound import TEXTS
from tts_compress.compression.verification import check_converted, run_original, verify
from tts_compress.compression.workbench import (
    Job,
    Workbench,
    describe,
    is_feeds,
    join_manifests,
    source_of,
    trial_feeds,
    warn_of_float32,
)
from tts_compress.errors import ModelError, QuantizationError, RecipeError, SchemeError
from tts_compress.folders import temporary_folder
from tts_compress.models import open_model
from tts_compress.models.base import Model, OnnxGraph, TorchModel, TTSModel
from tts_compress.models.execution import PROCESSOR, execution_of
from tts_compress.models.feeds import write_calls
from tts_compress.onnx.quantize.convert import STAGE, convert, prepare_conversion, with_chosen_codes
from tts_compress.onnx.quantize.decisions import SMALL_TABLE
from tts_compress.progress import Progress, default_progress
from tts_compress.qat.options import TrainingOptions, TrainingRun, require_packages
from tts_compress.recipes.formats import Observer, Quality, Weights, find_quality, find_scheme
from tts_compress.recipes.recipe import find_recipe, schemes_of

if TYPE_CHECKING:
    from pathlib import Path

    import onnx
    from torch import nn

    from tts_compress.artifact import Manifest, Source
    from tts_compress.recipes.recipe import Recipe

    LoadedT = TypeVar("LoadedT", TTSModel, nn.Module)

__all__ = ["compress", "compress_trained", "is_feeds"]

_DATA = "texts, or a bare graph's inputs, dictionaries of arrays; or the name of a set or file"


@overload
def compress(
    model: LoadedT,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | Iterable[Any] | None = None,
    quality: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> LoadedT: ...


@overload
def compress(
    model: Model | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | Iterable[str] | Iterable[Mapping[str, Any]] | None = None,
    quality: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model: ...


def compress(  # noqa: PLR0913  the settings of one compression
    model: Model | nn.Module | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: Any = None,
    quality: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model | nn.Module:
    """Return a compressed model; the input is not modified and nothing is written.

    Args:
        model: A loaded model, a spec that `load` takes, or a bare ONNX graph: `onnx:` and its
            path, or just the path where `calibration` is of arrays. Or any torch module: then a
            module is returned, which shares with it what was not compressed.
        scheme: Name of the scheme; `tts-compress schemes` lists them. `int8` of a torch module is
            `int8-dynamic`; given batches it is `int8-static`. `int8-qat` trains, with the default
            options; `compress_trained` takes others, and resumes after an interruption.
        recipe: A recipe's TOML file in the place of the shipped one, or a recipe that
            `find_recipe` gave and `model_copy` changed, for another format.
        calibration: A calibration set's name or TOML file, or texts, in the place of the recipe's;
            for a bare graph dictionaries of arrays by input, one for each call, or an `.npz` of
            them, arrays named `<call>/<input>`, calls from 0; for a torch module an iterable of
            batches: tensors, tuples of arguments or dictionaries.
        quality: A bound on the sound of `int8` of an ONNX graph, `good` or `high`: the fastest
            formats of its layers are chosen that keep it. `fast` is the recipe as it is. None is
            what the recipe states: `good` in the shipped ones, else `fast`.
        seed: Seed of the noise used while calibrating; the same seed gives the same bytes, unless
            formats are chosen by the time that they save on this machine (`quality`).
        progress: Is advanced with each calibration text or call, and for graphs as a whole.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration is malformed, or the calibration is not of the
            kind the model needs.
        ModelError: The model cannot be loaded.
        QuantizationError: The model cannot be converted as the recipe promises.
    """
    kept = None if quality is None else find_quality(quality)
    told = progress or default_progress()
    job = Job(seed=seed, progress=told, quality=kept, is_asked=kept is not None)
    with _stated(model, calibration) as data:
        return _compress(model, scheme, recipe, data, job)


def compress_trained(
    model: Model | nn.Module | str | Path,
    scheme: str = "int8-qat",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: Any = None,
    run: TrainingRun | None = None,
) -> Model | nn.Module:
    """Return a compressed model that was trained to return what the original returns.

    The original is the teacher: texts, or a graph's or module's inputs, are the only data.

    Args:
        model: As `compress` takes it.
        scheme: `int8-qat`; with four-bit weights `int4-qat` for a graph, and `int4-weight-only`
            for what runs in torch.
        recipe: As `compress` takes it.
        calibration: The texts to train on, or a calibration set's name or TOML file; for a bare
            graph its inputs, as `compress` takes them; for a torch module batches, two or more.
        run: Options of the training, where it is kept, and where its progress is reported.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration is malformed, missing or of the wrong kind.
        ModelError: The model cannot be loaded.
        QuantizationError: The recipe rounds nothing, or training broke down.
        ArtifactError: The folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    training = run or TrainingRun()
    job = Job(seed=training.options.seed, progress=training.progress, training=training)
    with _stated(model, calibration) as data:
        return _compress(model, scheme, recipe, data, job)


@contextmanager
def _stated(model: object, calibration: Any) -> Iterator[Any]:
    """Yield the calibration of a voice or graph as texts or by a name; calls are in a file then."""
    is_named = calibration is None or isinstance(calibration, str | PathLike)
    if is_named or _is_module(model):
        yield calibration
        return
    if isinstance(calibration, Mapping) or not isinstance(calibration, Iterable):
        raise RecipeError(f"the calibration is a {type(calibration).__name__}; give {_DATA}")
    values = iter(calibration)
    first = next(values, None)
    if first is None:
        raise RecipeError(f"the calibration is empty; give {_DATA}")
    if isinstance(first, str):
        texts = (first, *values)
        if others := [type(text).__name__ for text in texts if not isinstance(text, str)]:
            raise RecipeError(f"among the texts is a {others[0]}; give {_DATA}")
        yield texts
        return
    with temporary_folder() as folder:
        path = write_calls(chain([first], values), folder / "calls.npz")
        try:
            yield path
        except RecipeError as error:  # of a file that the caller does not know
            told = str(error).replace(f"'{path}'", "the calls of the calibration")
            raise RecipeError(told) from error


def _is_module(model: object) -> bool:
    torch = sys.modules.get("torch")  # whoever has a module has imported it
    return torch is not None and isinstance(model, torch.nn.Module)


def _compress(
    model: Model | nn.Module | str | Path,
    scheme: str,
    recipe: Recipe | str | Path | None,
    calibration: Any,
    job: Job,
) -> Model | nn.Module:
    is_module = _is_module(model)
    opened: Any = model
    if not is_module and not isinstance(model, Model):
        opened = open_model(opened, bare=is_feeds(calibration))
    resolved = find_recipe("module" if is_module else opened.family, scheme, recipe)
    if not is_module and opened.manifest is not None:
        raise QuantizationError(
            f"'{opened.spec}' is already compressed ({opened.manifest.scheme}); compress the "
            "original"
        )
    if recipe is None and execution_of(opened).provider != PROCESSOR.provider:
        # Other providers know standard operators alone.
        resolved = resolved.model_copy(update={"format": "qdq"})
    if resolved.format == "qdq16" and resolved.calibration is not None:
        # All values have codes: other observers cut some off for finer steps of 8 bits.
        whole = resolved.calibration.model_copy(update={"observer": Observer.MINMAX})
        resolved = resolved.model_copy(update={"calibration": whole})
    job = _with_quality(_with_training(job, resolved), resolved, opened)
    if resolved.calibration is None and calibration is not None and job.training is None:
        if not is_module or resolved.scheme != "int8" or recipe is not None:
            raise SchemeError(_needless_calibration(resolved))
        resolved = find_recipe("module", "int8-static")
    if is_module:
        from tts_compress.compression.modules import compress_module

        return compress_module(opened, resolved, calibration, job)
    if isinstance(opened, TorchModel):
        from tts_compress.compression.modules import compress_system

        return compress_system(opened, resolved, calibration, job)
    if isinstance(opened, OnnxGraph):
        return _compress_graphs(opened, resolved, calibration, job)
    raise SchemeError(f"family {opened.family!r} has neither a graph nor modules to compress")


def _with_training(job: Job, recipe: Recipe) -> Job:
    """Return the job, with the default training where the recipe is of a trained scheme."""
    training = job.training
    if training is None and find_scheme(recipe.scheme).trained:
        training = TrainingRun(options=TrainingOptions(seed=job.seed), progress=job.progress)
    if training is not None:
        require_packages()
        from tts_compress.qat.trainer import choose_device

        choose_device(training.options)  # before calls are observed or recorded
        if training.options.loss is not None and recipe.family != "module":
            raise QuantizationError(
                f"loss {training.options.loss!r} is for a torch module; family {recipe.family!r} "
                "has losses of its own: leave it out"
            )
    return replace(job, training=training)


def _with_quality(job: Job, recipe: Recipe, model: object) -> Job:
    """Return the job, with the bound of the recipe where the caller gave none."""
    if recipe.format == "qdq16":
        if job.training is not None or job.quality not in {None, Quality.FAST}:
            raise SchemeError(
                "format 'qdq16' is for NPUs, and computed in FP32 here: it is neither trained nor "
                "chosen by speed; leave the quality out, or take format 'qdq'"
            )
        return replace(job, quality=Quality.FAST)
    if recipe.scheme == "int8" and isinstance(model, OnnxGraph):
        return replace(job, quality=job.quality or recipe.quality)
    if job.quality is not None:
        raise SchemeError(
            f"quality {job.quality.value!r} is for scheme 'int8' of ONNX graphs, and this is "
            f"{recipe.scheme!r} of family {recipe.family!r}; leave it out"
        )
    return replace(job, quality=Quality.FAST)


def _needless_calibration(recipe: Recipe) -> str:
    """Return the error for calibration that a recipe has no use for."""
    schemes = {name: find_recipe(recipe.family, name) for name in schemes_of(recipe.family)}
    using = ", ".join(name for name, other in schemes.items() if other.calibration is not None)
    return (
        f"scheme {recipe.scheme!r} needs no calibration set; leave it out, or take a scheme that "
        f"uses one: {using}"
    )


def _compress_graphs(
    model: OnnxGraph, recipe: Recipe, calibration: str | Path | None, job: Job
) -> OnnxGraph:
    """Return a model with every graph compressed; all are observed in FP32."""
    bound = None if job.quality is None else job.quality.bound
    # The energies of the damage that each graph does add up.
    share = None if bound is None else bound / sqrt(len(model.parts))
    graphs, manifests = {}, {}
    source = source_of(model)
    for number, part in enumerate(model.parts, 1):
        bench = Workbench(
            model, recipe, calibration=calibration, part=part, seed=job.seed, held_out=TEXTS
        )
        part_job = job
        if part and job.training is not None and job.training.folder is not None:
            folder = job.training.folder / f"graph-{number}"
            part_job = replace(job, training=replace(job.training, folder=folder))
        try:
            graphs[part], manifests[part] = _compress_graph(bench, source, part_job, share)
        except (ModelError, QuantizationError) as error:
            if (spec := model.parts[part].spec) in str(error):
                raise
            raise type(error)(f"'{spec}': {error}") from error
    manifest = join_manifests(manifests)
    kept = [layer for layer in manifest.layers if layer.reason not in {"", SMALL_TABLE}]
    warn_of_float32(manifest.layers, kept)
    return model.with_graphs(graphs, manifest)


def _compress_graph(
    bench: Workbench, source: Source, job: Job, bound: float | None
) -> tuple[onnx.ModelProto, Manifest]:
    """Return a graph of a model compressed, and the record of that."""
    model, part, recipe = bench.model, bench.part, bench.recipe
    calls, record, chosen = None, None, None
    # Copies that say something else cannot be compared by their sound.
    if bound is not None and recipe.calibration is not None and not model.parts[part].steers:
        chosen = choose(bench, bound, job)
        if chosen is None and job.is_asked:
            raise QuantizationError(
                f"no quality of '{model.spec}' can be judged: with its calibration calls the first "
                "output is no single channel of a tenth of a second or more; leave the quality out"
            )
    quality = job.quality if chosen else Quality.FAST
    recipe = (chosen[1] if chosen else recipe).model_copy(update={"quality": quality})
    if chosen is not None:
        calls, conversion = bench.calls(), chosen[0]
        record = bench.record
    else:
        if recipe.calibration is not None:
            calls, record = bench.open_calibration()
        conversion = prepare_conversion(
            lambda: model.graph(part),
            recipe,
            calls,
            batch_one=model.sample_rate is not None,
            lengths=bench.lengths,
            progress=job.progress,
        )
        if calls is not None and job.training is None:
            conversion = with_chosen_codes(conversion, calls, job.progress)
    feeds = trial_feeds(model, calls, seed=job.seed, part=part)
    original = run_original(model.graph(part), model.parts[part].spec, feeds)
    check_converted(original, conversion.graph)
    trained = None
    # A graph of nothing but durations has no integers to learn.
    learns = not bench.lengths or any(d.weights == Weights.INT8 for d in conversion.decisions)
    if job.training is not None and learns:
        from tts_compress.qat.graph.task import train_graph

        conversion, trained = train_graph(
            conversion,
            recipe,
            calls,
            sample_rate=model.sample_rate,
            run=job.training,
        )
    finished = convert(conversion)
    if conversion.form == "qoperator" and calls is not None:  # other runtimes may have no loops
        finished = model.in_chunks(part, finished, calls.feeds())
    manifest = describe(
        source, recipe, conversion, calibration=record, training=trained, seed=job.seed
    )
    # Texts are for `evaluate`; choice and training judge what they make.
    is_judged = model.sample_rate is not None or chosen is not None or trained is not None
    warns = calls is not None and not is_judged
    verified = verify(original, finished, warns=warns)
    job.progress.advance(STAGE, 1, 1)
    return finished, replace(manifest, run=verified)
