"""F5-TTS in fewer bits by the shipped recipes: how far it gets from the original."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.compression.hybrid import compressed_components, hybrids
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import load
from tts_compress.models.f5.model import F5Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_TEXT = "hello there, this is a text."

# Signal above its difference from the original's, in dB, 6 below what is measured on the tiny
# model; and the share of the original's bytes, of which names take much in so small a file.
_LIMITS = {
    "fp16": (61, 0.6),
    "bf16": (54, 0.6),
    "int8-weight-only": (55, 0.52),
    "int8-dynamic": (49, 0.54),
    "int8-static": (43, 0.54),
    "int8": (49, 0.54),
    "int4-weight-only": (26, 0.47),
}


@pytest.mark.parametrize(("scheme", "limits"), _LIMITS.items())
def test_a_recipe_keeps_what_the_model_says(
    tiny_f5: F5Model,
    tmp_path: Path,
    snr_db: Callable[[Any, Any], float],
    scheme: str,
    limits: tuple[float, float],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        small = compress(tiny_f5, scheme)
    assert isinstance(small, F5Model)
    original, spoken = (model.synthesize(_TEXT, seed=0).samples for model in (tiny_f5, small))
    assert limits[0] < snr_db(original, spoken) < 100

    saved = small.save(tmp_path / scheme)
    before = sum(path.stat().st_size for path in tiny_f5.files().weights)
    assert (saved / "model.safetensors").stat().st_size < limits[1] * before
    again = load(saved)
    assert isinstance(again, F5Model)
    np.testing.assert_array_equal(again.synthesize(_TEXT, seed=0).samples, spoken)
    counted = [sum(c.size_bytes for c in m.components().values()) for m in (small, again)]
    assert counted[0] == counted[1] < 0.52 * before


def test_one_compressed_component_at_a_time_speaks_in_the_reference(
    tiny_f5: F5Model, tmp_path: Path, snr_db: Callable[[Any, Any], float]
) -> None:
    """Saved and opened, which `evaluate --blame` does with each; together they are the whole."""
    small = compress(tiny_f5, "int8-weight-only")
    before = tiny_f5.synthesize(_TEXT, seed=0).samples
    names = compressed_components(small)
    assert {"transformer.transformer_blocks", "vocoder"} <= {*names}
    levels = []
    for name, model in hybrids(tiny_f5, small, names):
        spoken = load(model.save(tmp_path / name)).synthesize(_TEXT, seed=0).samples
        np.testing.assert_array_equal(spoken, model.synthesize(_TEXT, seed=0).samples)
        levels.append(snr_db(before, spoken))
    whole = snr_db(before, small.synthesize(_TEXT, seed=0).samples)
    assert whole - 3 < min(levels) < 100
    assert max(levels) > whole
