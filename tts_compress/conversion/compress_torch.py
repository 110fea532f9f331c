"""Compressing what runs in torch: a system's model, or any module."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tts_compress.artifact import CalibrationRecord, Manifest, Source, sha256_of
from tts_compress.environment import describe_environment, describe_processor
from tts_compress.errors import ModelError, QuantizationError, RecipeError, TTSCompressWarning
from tts_compress.recipes.recipe import read_calibration_set
from tts_compress.torch.convert import Converted, convert
from tts_compress.torch.gpu import convert_on_gpu, runs_on_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.progress import Progress
    from tts_compress.recipes.recipe import Calibration, Recipe

__all__ = [
    "calibration_texts",
    "check_recipe",
    "compress_module",
    "compress_torch",
    "describe_compression",
    "refuse_compressed",
    "speaking",
]

_FAST_IF: dict[str, frozenset[str]] = {
    "bfloat16": frozenset({"amx_bf16", "avx512_bf16", "bf16"}),
    "float16": frozenset({"amx_fp16", "avx512_fp16", "fphp"}),
}
"""Processor features one of which a type's arithmetic needs to be fast."""


def compress_torch(
    model: TorchModel,
    recipe: Recipe,
    calibration: str | Path | None,
    *,
    seed: int,
    progress: Progress,
) -> TorchModel:
    """Return the model with its modules converted as a recipe says.

    Args:
        model: Not modified; layers that are not compressed are shared with it.
        recipe: What happens to which layer.
        calibration: A calibration set in the place of the recipe's.
        seed: Of the noise the model is calibrated with.
        progress: Is told of every text and layer.

    Raises:
        QuantizationError: The recipe does not fit the model, or the finished model does not hold
            what the recipe promises.
        RecipeError: There is no such calibration set, or the recipe has what only ONNX graphs have.
    """
    refuse_compressed(model)
    root = model.root()
    check_recipe(recipe)
    run, record = None, None
    if recipe.calibration is not None:
        texts, record = calibration_texts(recipe.calibration, calibration, seed)
        run = speaking(model, texts, progress)
    done = _convert(root, recipe, run, progress)
    manifest = describe_compression(model, recipe, done, seed=seed)
    return model.with_root(done.root, replace(manifest, calibration=record))


def refuse_compressed(model: TorchModel) -> None:
    """Refuse a model that is compressed already.

    Raises:
        QuantizationError: It is.
    """
    if model.manifest is not None:
        raise QuantizationError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); compress the original"
        )


def describe_compression(
    model: TorchModel, recipe: Recipe, done: Converted, *, seed: int
) -> Manifest:
    """Return a manifest that says how a model was compressed, but not on which texts.

    Args:
        model: The original.
        recipe: What was done.
        done: What came of it.
        seed: Of the noise.
    """
    return Manifest(
        family=model.family,
        scheme=recipe.scheme,
        source=_source(model),
        recipe=recipe.model_dump(mode="json"),
        layers=done.layers,
        counts=dict(done.counts),
        calibration=None,
        seed=seed,
        environment=describe_environment().to_dict(),
    )


def compress_module(
    module: nn.Module, recipe: Recipe, calibration: object, *, progress: Progress
) -> nn.Module:
    """Return a compressed copy of any module, which shares every other tensor with it.

    Args:
        module: In FP32; not modified.
        recipe: What happens to which layer.
        calibration: Batches to call the module with, where the recipe needs them: each a tensor,
            a tuple of arguments or a dictionary of them.
        progress: Is told of every batch and layer.

    Raises:
        QuantizationError: The module cannot be compressed as the recipe says.
        RecipeError: The calibration is not of that kind, or missing.
    """
    check_recipe(recipe)
    run = None
    if recipe.calibration is not None:
        run = _calling(_batches(calibration), recipe.calibration.utterances, progress)
    return _convert(module, recipe, run, progress).root


def _convert(
    root: nn.Module,
    recipe: Recipe,
    run: Callable[[nn.Module], None] | None,
    progress: Progress,
) -> Converted:
    if runs_on_gpu(root, recipe):
        return convert_on_gpu(root, recipe, run, progress=progress)
    _warn_if_slow(recipe)
    return convert(root, recipe, run, progress=progress)


def check_recipe(recipe: Recipe) -> None:
    """Refuse what only ONNX graphs have.

    Raises:
        RecipeError: The recipe has some of it.
    """
    given = {
        f"format = {recipe.format!r}": recipe.format != "qdq",
        "float_residuals": recipe.float_residuals,
        "equalize": recipe.calibration is not None and recipe.calibration.equalize,
        "skip_graph_inputs": any(rule.skip_graph_inputs for rule in recipe.component),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise RecipeError(
            f"{', '.join(wrong)}: a matter of ONNX graphs, and this model runs in torch; "
            "leave it out"
        )


def _warn_if_slow(recipe: Recipe) -> None:
    if torch.cuda.is_available():
        return
    features = set(describe_processor().features)
    for kind, needed in _FAST_IF.items():
        if any(r.activations == kind for r in recipe.component) and not features & needed:
            warnings.warn(
                f"this processor has no {kind} arithmetic ({' or '.join(sorted(needed))}): the "
                "model gets smaller, but slower than FP32 here; int8 is faster on it",
                TTSCompressWarning,
                stacklevel=4,
            )


def calibration_texts(
    settings: Calibration, given: str | Path | None, seed: int
) -> tuple[list[tuple[str, int]], CalibrationRecord]:
    """Return what a model says while it is observed, and the record of it.

    Args:
        settings: The recipe's table.
        given: A calibration set in the place of the recipe's.
        seed: Of the first text's noise; each next one has the next number.

    Returns:
        Texts, each with its seed, and what a manifest says of them.

    Raises:
        RecipeError: There is no such calibration set.
    """
    name = str(given or settings.set or "")
    if not name:
        raise RecipeError("the recipe names no calibration set; give one with --calibration")
    chosen = read_calibration_set(name)
    texts = chosen.texts[: settings.utterances]
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    record = CalibrationRecord(
        set=chosen.name,
        sha256=digest,
        utterances=len(texts),
        observer=settings.observer,
        seed=seed,
    )
    return [(text, seed + number) for number, text in enumerate(texts)], record


def speaking(
    model: TorchModel, texts: Sequence[tuple[str, int]], progress: Progress
) -> Callable[[nn.Module], None]:
    """Return what has a model say texts with another root.

    Args:
        model: Not modified.
        texts: What it says, each with the seed of its noise.
        progress: Is told of every text.
    """

    def run(root: nn.Module) -> None:
        observed = model.with_root(root, None)
        for done, (text, seed) in enumerate(texts):
            progress.advance("calibrate", done, len(texts))
            observed.synthesize(text, seed=seed)
        progress.advance("calibrate", len(texts), len(texts))

    return run


def _calling(batches: list[object], most: int, progress: Progress) -> Callable[[nn.Module], None]:
    def run(root: nn.Module) -> None:
        chosen = batches[:most]
        for done, batch in enumerate(chosen):
            progress.advance("calibrate", done, len(chosen))
            if isinstance(batch, Mapping):
                root(**batch)
            elif isinstance(batch, tuple | list):
                root(*batch)
            else:
                root(batch)
        progress.advance("calibrate", len(chosen), len(chosen))

    return run


def _batches(calibration: object) -> list[object]:
    if isinstance(calibration, str | torch.Tensor) or not isinstance(calibration, Iterable):
        raise RecipeError(
            f"a bare module is calibrated on batches, not on {calibration!r:.80}; give "
            "calibration=[...]: tensors, tuples of arguments or dictionaries of them"
        )
    batches = list(calibration)
    if not batches:
        raise RecipeError("calibration holds no batch; give at least one")
    return batches


def _source(model: TorchModel) -> Source:
    try:
        files = model.files().weights
    except ModelError:  # made in memory
        return Source(spec=model.spec, sha256="", size_bytes=0)
    digests = [sha256_of(path) for path in files]
    joined = hashlib.sha256("".join(digests).encode()).hexdigest()
    return Source(
        spec=model.spec,
        sha256=digests[0] if len(digests) == 1 else joined,
        size_bytes=sum(path.stat().st_size for path in files),
    )
