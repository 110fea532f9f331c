"""NaturalSpeech2 trained without data: the solver's states, what is read of the text, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress import load
from tts_compress.models.naturalspeech2.model import NaturalSpeech2Model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.qat.options import TrainingOptions

_TEXTS = ("good day", "hello there", "hello good day", "there")
_OBJECTIVES = ("prior_encoder.encoder", "diffusion.diff_estimator", "codec.decoder")


@pytest.fixture(scope="module")
def train(
    tiny_ns2: NaturalSpeech2Model, train_on: Callable[..., Callable[..., Any]]
) -> Callable[..., Any]:
    """Return a function that trains the model, in four bits by default."""
    return train_on(tiny_ns2, _TEXTS, steps=6, held_out_every=3, batch_size=2)


@pytest.fixture(scope="module")
def small(train: Callable[..., Any]) -> Any:
    """Return the model in four bits, trained without a stop."""
    return train()


def test_the_estimator_learns_four_bits_and_is_saved(
    small: NaturalSpeech2Model, tmp_path: Path
) -> None:
    assert small.manifest is not None
    training = small.manifest.training
    assert training is not None
    assert {name.rpartition("/")[0] for name in training.before} == set(_OBJECTIVES)
    term = "diffusion.diff_estimator/mse"
    assert training.after[term] < 0.8 * training.before[term]
    spoken = small.synthesize(_TEXTS[0], seed=0).samples
    again = load(small.save(tmp_path / "small"))
    assert isinstance(again, NaturalSpeech2Model)
    np.testing.assert_array_equal(again.synthesize(_TEXTS[0], seed=0).samples, spoken)


@pytest.mark.parametrize("scheme", ["int8-qat", "int4-weight-only"])
def test_deployed_components_answer_as_their_students_do(
    tiny_ns2: NaturalSpeech2Model,
    few_updates: TrainingOptions,
    deployed: Callable[..., Any],
    scheme: str,
) -> None:
    del few_updates  # what it needs is what training needs
    found = deployed(tiny_ns2, scheme, _TEXTS[:2])
    assert tuple(found) == _OBJECTIVES
    if scheme == "int4-weight-only":  # its kernel multiplies in bfloat16
        assert all(agreement.snr_db > 60 for agreement in found.values()), found
        return
    # A value in the middle of two codes may fall to either, one of some hundred thousand; random
    # weights make more of it from layer to layer.
    assert all(agreement.layers_db > 60 for agreement in found.values()), found
    assert all(agreement.snr_db > 40 for agreement in found.values()), found


@pytest.mark.slow
def test_stopped_it_goes_on_with_the_same_bytes(
    small: NaturalSpeech2Model,
    train: Callable[..., Any],
    resume: Callable[..., list[str]],
) -> None:
    lines = resume(train, small, ("train diffusion.diff_estimator", 3))
    unheard = [line.split(":")[0] for line in lines if "rounded without" in line]
    assert unheard == ["prompt_encoder gets the same inputs for every text"]
