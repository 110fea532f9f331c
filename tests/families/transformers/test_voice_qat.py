"""Training of voices of transformers, component by component."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tts_compress.compression import compress
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pocket", "phonon"])
def test_a_language_model_of_latents_learns_along_what_it_spoke(
    request: pytest.FixtureRequest, train_on: Callable[..., Callable[..., Any]], name: str
) -> None:
    """In four bits it then answers nearer to the original, on a text that it was not trained on."""
    voice = request.getfixturevalue(name)
    train = train_on(voice, TEXTS[:3], steps=24, learning_rate=1e-3)
    rounded, trained = compress(voice, "int4-weight-only"), train()
    terms = trained.manifest.training
    assert terms.after["model/mse"] < 0.5 * terms.before["model/mse"]
    assert {"flow_head/mse", "vocoder.decoder/waveform"} <= terms.after.keys()
    said = voice.generate_latents("one more", seed=1)
    answers = [v.read_latents("one more", said) for v in (voice, rounded, trained)]
    errors = [np.abs(answer.latents - answers[0].latents).mean() for answer in answers[1:]]
    shifts = [np.abs(answer.stop - answers[0].stop).mean() for answer in answers[1:]]
    assert errors[1] < 0.8 * errors[0]
    assert shifts[1] < 0.8 * shifts[0]
