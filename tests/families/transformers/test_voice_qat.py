"""Training of voices of transformers, component by component."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress.models import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXTS = tuple(f"say {number} words" for number in ("one", "two", "three", "four", "five", "six"))


@pytest.mark.slow
def test_flow_and_decoder_are_trained(
    vits: Any, train_on: Callable[..., Callable[..., Any]], tmp_path: Path
) -> None:
    small = train_on(vits, (*TEXTS, "seven", "eight"), steps=4)("int8-qat")
    samples = small.synthesize("hello", seed=0).samples
    assert samples.shape == vits.synthesize("hello", seed=0).samples.shape
    again = load(small.save(tmp_path / "trained"))
    np.testing.assert_array_equal(again.synthesize("hello", seed=0).samples, samples)
