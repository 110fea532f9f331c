"""Training of voices of transformers, component by component."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.models import load

TEXTS = tuple(f"say {number}" for number in ("one", "two", "three", "four", "five", "six", "seven"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vits", "speecht5", "fastspeech2"])
def test_a_vocoder_and_what_is_before_it_are_trained(
    request: pytest.FixtureRequest,
    train_on: Callable[..., Callable[..., Any]],
    tmp_path: Path,
    name: str,
) -> None:
    voice = request.getfixturevalue(name)
    small = train_on(voice, (*TEXTS, "eight"), steps=4)("int8-qat")
    samples = small.synthesize("hello", seed=0).samples
    assert samples.shape == voice.synthesize("hello", seed=0).samples.shape
    again: Any = load(small.save(tmp_path / "trained"))
    np.testing.assert_array_equal(again.synthesize("hello", seed=0).samples, samples)
