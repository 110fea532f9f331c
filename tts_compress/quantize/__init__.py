"""Conversion: `compress` chooses, `onnx/` and later `torch/` do the work, one file a technique."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from tts_compress.errors import SchemeError
from tts_compress.models import open_model
from tts_compress.models.base import Model, OnnxGraph, TTSModel
from tts_compress.progress import Progress, Silent
from tts_compress.quantize.calibration import is_feeds, open_calibration
from tts_compress.quantize.onnx.convert import compress_graph
from tts_compress.recipe import find_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.recipe import Recipe

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
    model: Model | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model: ...


def compress(
    model: Model | str | Path,
    scheme: str = "int8",
    *,
    recipe: Recipe | str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Model:
    """Return a compressed model; the input is not modified and nothing is written.

    Args:
        model: A loaded model, a spec that `load` takes, or a bare ONNX graph: `onnx:` and its
            path, or just the path where `calibration` is an `.npz`.
        scheme: What to do; `tts-compress schemes` lists the names.
        recipe: A recipe's TOML file in the place of the shipped one, or a recipe that
            `find_recipe` gave and `model_copy` changed, for another target or format.
        calibration: A calibration set's name or TOML file, in the place of the recipe's; for a
            bare graph an `.npz` of its inputs, arrays named `<call>/<input>`, calls from 0.
        seed: Of the noise used while calibrating; the same seed gives the same bytes.
        progress: Is told of each calibration text or call.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration is malformed, or the calibration is not of the
            kind the model needs.
        ModelError: The model cannot be loaded.
        QuantizationError: The model cannot be converted as the recipe promises.
    """
    loaded = model if isinstance(model, Model) else open_model(model, bare=is_feeds(calibration))
    found = find_recipe(loaded.family, scheme, recipe)
    if not isinstance(loaded, OnnxGraph):
        raise SchemeError(f"family {loaded.family!r} is no ONNX graph; scheme {scheme!r} needs one")
    if found.calibration is None and calibration is not None:
        raise SchemeError(f"scheme {scheme!r} needs no calibration set; leave it out")
    data = None
    if found.calibration is not None:
        data = open_calibration(loaded, found.calibration, calibration, seed=seed)
    return compress_graph(loaded, found, data, seed=seed, progress=progress or Silent())
