"""Conversion: `compress` chooses, `onnx/` and `torch/` do the work, one file a technique."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, overload

from tts_compress.conversion.calibration import is_feeds, open_calibration
from tts_compress.conversion.convert_graph import compress_graph
from tts_compress.errors import SchemeError
from tts_compress.models import open_model
from tts_compress.models.base import Model, OnnxGraph, TorchModel, TTSModel
from tts_compress.progress import Progress, Silent
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.schemes import find_scheme

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import nn
    from typing_extensions import TypeIs

    from tts_compress.recipes.recipe import Recipe

__all__ = ["compress"]


@overload
def compress(
    model: TTSModel,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TTSModel: ...


@overload
def compress(
    model: nn.Module,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: Iterable[Any] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module: ...


@overload
def compress(
    model: Model | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model: ...


def compress(
    model: Model | nn.Module | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: Any = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model | nn.Module:
    """Return a compressed model; the input is not modified and nothing is written.

    Args:
        model: A loaded model, a spec that `load` takes, or a bare ONNX graph: `onnx:` and its
            path, or just the path where `calibration` is an `.npz`. Or any torch module: the
            answer is one, too, and shares with it what was not compressed.
        scheme: What to do; `tts-compress schemes` lists the names. `int8-qat` trains, with the
            default options; `tts_compress.qat.compress` takes others, and goes on after
            it was interrupted.
        recipe: A recipe's TOML file in the place of the shipped one, or a recipe that
            `find_recipe` gave and `model_copy` changed, for another target or format.
        calibration: A calibration set's name or TOML file, in the place of the recipe's; for a
            bare graph an `.npz` of its inputs, arrays named `<call>/<input>`, calls from 0; for
            a torch module an iterable of batches: tensors, tuples of arguments or dictionaries.
        seed: Of the noise used while calibrating; the same seed gives the same bytes.
        progress: Is told of each calibration text or call.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration is malformed, or the calibration is not of the
            kind the model needs.
        ModelError: The model cannot be loaded.
        QuantizationError: The model cannot be converted as the recipe promises.
    """
    progress = progress or Silent()
    if find_scheme(scheme).trained:
        return _train(model, scheme, recipe, calibration, seed, progress)
    if _is_module(model):
        from tts_compress.conversion.compress_torch import compress_module

        found = find_recipe("module", scheme, recipe)
        _check_calibration(found, calibration)
        return compress_module(model, found, calibration, progress=progress)
    loaded = model if isinstance(model, Model) else open_model(model, bare=is_feeds(calibration))
    found = find_recipe(loaded.family, scheme, recipe)
    _check_calibration(found, calibration)
    if isinstance(loaded, TorchModel):
        from tts_compress.conversion.compress_torch import compress_torch

        return compress_torch(loaded, found, calibration, seed=seed, progress=progress)
    if not isinstance(loaded, OnnxGraph):
        raise SchemeError(f"family {loaded.family!r} has neither a graph nor modules to compress")
    data = None
    if found.calibration is not None:
        data = open_calibration(loaded, found.calibration, calibration, seed=seed)
    return compress_graph(loaded, found, data, seed=seed, progress=progress)


def _train(
    model: Any, scheme: str, recipe: Any, calibration: Any, seed: int, progress: Progress
) -> Model | nn.Module:
    from tts_compress.qat.train.processes import require_packages

    require_packages()
    from tts_compress.qat.compress import Workplace, compress_trained
    from tts_compress.qat.train.options import TrainingOptions

    return compress_trained(
        model,
        scheme,
        recipe=recipe,
        calibration=calibration,
        options=TrainingOptions(seed=seed),
        workplace=Workplace(progress=progress),
    )


def _check_calibration(recipe: Recipe, calibration: Any) -> None:
    if recipe.calibration is None and calibration is not None:
        raise SchemeError(f"scheme {recipe.scheme!r} needs no calibration set; leave it out")


def _is_module(model: Any) -> TypeIs[nn.Module]:
    """Return whether a model is a torch module; who has one has imported torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
