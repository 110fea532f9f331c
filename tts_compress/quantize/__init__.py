"""Conversion: `compress` chooses, `onnx/` and later `torch/` do the work, one file a technique."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import SchemeError
from tts_compress.models import load
from tts_compress.models.base import GraphModel, TTSModel
from tts_compress.progress import Progress, Silent
from tts_compress.quantize.onnx.convert import compress_graph
from tts_compress.recipe import find_recipe, read_calibration_set

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["compress"]


def compress(
    model: TTSModel | str | Path,
    scheme: str = "int8",
    *,
    recipe: str | Path | None = None,
    calibration: str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TTSModel:
    """Return a compressed model; the input is not modified and nothing is written.

    Args:
        model: A loaded model, or a spec that `load` takes.
        scheme: What to do; `tts-compress schemes` lists the names.
        recipe: A recipe's TOML file, in the place of the shipped one.
        calibration: A calibration set's name or TOML file, in the place of the recipe's.
        seed: Of the noise used while calibrating; the same seed gives the same bytes.
        progress: Is told of each calibration text.

    Raises:
        SchemeError: The scheme is unknown, or the model's family does not have it.
        RecipeError: The recipe or calibration set is malformed, or a calibration set is given
            to a scheme that needs none.
        ModelError: The model cannot be loaded.
        QuantizationError: The model cannot be converted as the recipe promises.
    """
    loaded = load(model) if not isinstance(model, TTSModel) else model
    found = find_recipe(loaded.family, scheme, recipe)
    if not isinstance(loaded, GraphModel):
        raise SchemeError(f"family {loaded.family!r} is no ONNX graph; scheme {scheme!r} needs one")
    if found.calibration is None and calibration is not None:
        raise SchemeError(f"scheme {scheme!r} needs no calibration set; leave it out")
    texts = None
    if found.calibration is not None:
        texts = read_calibration_set(str(calibration or found.calibration.set))
    return compress_graph(loaded, found, texts, seed=seed, progress=progress or Silent())
