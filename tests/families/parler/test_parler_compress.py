"""Parler-TTS in fewer bits by the shipped recipes: how far it gets from the original."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.errors import TTSCompressWarning
from tts_compress.models import load
from tts_compress.models.parler.files import ParlerOptions
from tts_compress.models.parler.model import ParlerModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXTS = ("please call again at ten", "the door was open")

# Mean divergence in nats: three to five times what is measured on the tiny model.
_LIMITS = {
    "fp16": 1e-5,
    "bf16": 4e-4,
    "int8-weight-only": 2e-3,
    "int8-dynamic": 4e-3,
    "int8": 4e-3,
    "int4-weight-only": 0.1,
}


@pytest.mark.parametrize(("scheme", "limit"), _LIMITS.items())
def test_a_recipe_keeps_what_the_model_says(
    tiny_parler: ParlerModel,
    tmp_path: Path,
    compare_models: Callable[..., Any],
    scheme: str,
    limit: float,
) -> None:
    model = tiny_parler.with_options(ParlerOptions(max_length=100, min_new_tokens=80))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TTSCompressWarning)  # the processor has no such arithmetic
        small = compress(model, scheme)
    assert isinstance(small, ParlerModel)
    found = compare_models(model, small, TEXTS)
    assert found.positions > 1000
    assert 0 < found.kl_nats < limit
    assert found.agreement > (0.75 if scheme == "int4-weight-only" else 0.9)

    saved = small.save(tmp_path / scheme)
    assert small.components().keys() == model.components().keys()
    original = model.files().weights[0].stat().st_size
    assert (saved / "model.safetensors").stat().st_size < 0.62 * original
    again = load(saved)
    assert isinstance(again, ParlerModel)
    for seed in (0, None):
        spoken = small.synthesize(TEXTS[0], seed=seed).samples
        read = again.with_options(ParlerOptions(max_length=100, min_new_tokens=80))
        np.testing.assert_array_equal(read.synthesize(TEXTS[0], seed=seed).samples, spoken)
