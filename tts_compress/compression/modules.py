"""Compression of what runs in torch: a system's model, or any module."""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tts_compress.artifact import Manifest, Source
from tts_compress.compression.workbench import (
    Job,
    describe,
    largest_layers,
    read_texts,
    warn_of_float32,
)
from tts_compress.environment import describe_processor
from tts_compress.errors import (
    QuantizationError,
    RecipeError,
    SchemeError,
    TTSCompressError,
    TTSCompressWarning,
    reason,
)
from tts_compress.models.base import TorchModel
from tts_compress.progress import Progress, counted
from tts_compress.recipes.formats import Weights
from tts_compress.recipes.recipe import Calibration, Recipe, find_recipe
from tts_compress.torch.convert import Converted, convert, finish
from tts_compress.torch.decisions import STATED, count_decisions, decide, other_parts
from tts_compress.torch.devices import device_of
from tts_compress.torch.layers.checkpoint import stored_bytes, with_manifest
from tts_compress.torch.layers.module_surgery import copy_with_state, normalize

_FAST_IF: dict[str, frozenset[str]] = {
    "bfloat16": frozenset({"amx_bf16", "avx512_bf16", "bf16"}),
    "float16": frozenset({"amx_fp16", "avx512_fp16", "fphp"}),
}
"""Processor features; a type's arithmetic is fast only with one of its features."""


def compress_system(
    model: TorchModel, recipe: Recipe, calibration: str | Path | None, job: Job
) -> TorchModel:
    """Return a system with its modules converted by a recipe."""
    settings = recipe.calibration
    if settings is None and job.training is not None:  # the texts of the shipped one
        settings = find_recipe(recipe.family, "int8-qat").calibration
    seeded: list[tuple[str, int]] = []
    run, record = None, None
    if settings is not None:
        texts, record = read_texts(settings, calibration, job.seed, model.speaking.language)
        seeded = [(text, job.seed + number) for number, text in enumerate(texts)]
        run = speaking(model, seeded, job.progress)
    trained = None
    if job.training is None:
        done = _convert(model.root(), recipe, run, job.progress)
    elif model.objectives():
        from tts_compress.qat.training import train_system

        assert run is not None, "a shipped recipe for training has texts"
        if device_of(model.root()).type != "cpu":
            raise QuantizationError(
                f"'{model.spec}' lies on a GPU, and training prepares it on the processor; load it "
                "there, and let TrainingOptions.device say where it is trained"
            )
        done, trained = train_system(model, recipe, seeded, run, run=job.training)
    else:
        raise SchemeError(
            f"family {model.family!r} has no components that can be trained; give one of its "
            "modules, with batches of inputs"
        )
    manifest = describe(model, recipe, done, calibration=record, training=trained, seed=job.seed)
    return model.with_root(done.root, manifest)


def compress_module(module: nn.Module, recipe: Recipe, calibration: Any, job: Job) -> nn.Module:
    """Return a compressed copy of any module, which shares every other tensor with it."""
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        raise QuantizationError(
            "the module was compiled by torch.jit, which fixed its layers; give the one it was "
            "made from"
        )
    if job.training is not None:
        from tts_compress.qat.training import train_module

        if calibration is None:
            raise RecipeError("a module is trained on its inputs; give batches as calibration")
        root = train_module(module, recipe, calibration, run=job.training)
        # In training a weight under spectral norm changes buffers when it is read.
        done = finish(root, decide(normalize(copy_with_state(module)).eval(), recipe))
    else:
        batches = [] if recipe.calibration is None else _batches(calibration, recipe.calibration)

        def run(root: nn.Module) -> None:
            reported = counted(batches, job.progress, "calibrate", len(batches))
            for number, batch in enumerate(reported):
                call_module(root, copied(batch), number)

        done = _convert(module, recipe, run if batches else None, job.progress)
    manifest = _describe_module(module, recipe, done, job.seed)
    kept = [layer for layer in manifest.layers if layer.weights == Weights.FLOAT32]
    warn_of_float32(manifest.layers, [layer for layer in kept if layer.reason not in STATED])
    if manifest.size_bytes >= manifest.source.size_bytes:
        raise QuantizationError(
            f"'{recipe.scheme}' would not make this module smaller: {manifest.source.size_bytes:,} "
            f"→ {manifest.size_bytes:,} bytes{largest_layers(kept)}; keep the original"
        )
    return with_manifest(done.root, manifest)


def _describe_module(module: nn.Module, recipe: Recipe, done: Converted, seed: int) -> Manifest:
    layers = (*done.layers, *other_parts(done.root))
    saved = all(layer.weights != Weights.FLOAT8 for layer in layers)  # nothing keeps those
    source = Source(spec=type(module).__name__, sha256="", size_bytes=stored_bytes(module))
    return replace(
        describe(source, recipe, done, calibration=None, training=None, seed=seed),
        layers=layers,
        counts=dict(sorted(count_decisions(layers).items())),
        size_bytes=stored_bytes(done.root) if saved else 0,
    )


def _convert(
    root: nn.Module, recipe: Recipe, run: Callable[[nn.Module], None] | None, progress: Progress
) -> Converted:
    features = set(describe_processor().features)
    for kind, needed in _FAST_IF.items() if device_of(root).type == "cpu" else ():
        if any(r.activations == kind for r in recipe.component) and not features & needed:
            warnings.warn(
                f"this processor has no {kind} arithmetic ({' or '.join(sorted(needed))}): the "
                "model gets smaller, but slower than FP32 here; int8 is faster on it",
                TTSCompressWarning,
                stacklevel=5,  # the caller of `compress`
            )
    return convert(root, recipe, run, progress=progress)


def speaking(
    model: TorchModel, texts: Sequence[tuple[str, int]], progress: Progress
) -> Callable[[nn.Module], None]:
    """Return a function that makes a model speak seeded texts with another root."""

    def run(root: nn.Module) -> None:
        observed = model.with_root(root, None)
        for text, seed in counted(texts, progress, "calibrate", len(texts)):
            observed.synthesize(text, seed=seed)

    return run


def copied(batch: Any) -> Any:
    """Return a copy of a batch without gradients, because a module may change its inputs."""

    def copy_leaf(leaf: Any) -> Any:
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)

    return tree_map(copy_leaf, batch)


def call_module(module: nn.Module, batch: Any, number: int) -> Any:
    """Return a module's output for a tensor, a tuple of arguments, or arguments by name."""
    try:
        if isinstance(batch, Mapping):
            return module(**batch)
        return module(*batch) if isinstance(batch, tuple | list) else module(batch)
    except TTSCompressError:
        raise
    # A module is its author's code, which fails in any way on what it is not made for.
    except Exception as error:
        raise RecipeError(
            f"the module cannot be called with batch {number} of those that were given, a "
            f"{type(batch).__name__}: {reason(error)}; give what it is called with"
        ) from error


def _tensors(value: Any, levels: int = 8) -> Iterator[torch.Tensor]:
    """Yield the tensors in a batch."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list) and levels:
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(inner, levels - 1)


def _batches(calibration: object, settings: Calibration) -> list[Any]:
    """Return the batches that a module is observed on."""
    if isinstance(calibration, str | torch.Tensor) or not isinstance(calibration, Iterable):
        raise RecipeError(
            f"a bare module is calibrated on batches, not on {calibration!r:.80}; give "
            "calibration=[...]: tensors, tuples of arguments or dictionaries of them"
        )
    batches = list(islice(calibration, settings.utterances))  # there may be no end of them
    if not batches:
        raise RecipeError("calibration holds no batch; give at least one")
    tensors = [tensor for batch in batches for tensor in _tensors(batch) if tensor.numel()]
    if not tensors:
        raise RecipeError(f"calibration holds no tensors, but {batches[0]!r:.80}; give some")
    if not any(tensor.any() for tensor in tensors):
        raise RecipeError("calibration is all zeros, which shows no ranges; give real inputs")
    return batches
