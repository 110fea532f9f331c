"""GPT-SoVITS trained without data: token scores, the prior, the flow, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress import load
from tts_compress.models.gpt_sovits.model import GptSovitsModel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.qat.options import TrainingOptions

_TEXTS = ("please call at ten", "the door was open", "a quiet day", "who are you")
_OBJECTIVES = ("t2s", "vits.enc_p", "vits.flow", "vits.dec")


@pytest.fixture(scope="module")
def train(tiny: GptSovitsModel, train_on: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that trains the model, in four bits by default."""
    return train_on(tiny, _TEXTS, steps=6, held_out_every=3, batch_size=2)


@pytest.fixture(scope="module")
def small(train: Callable[..., Any]) -> Any:
    """Return the model in four bits, trained without a stop."""
    return train()


def test_the_language_model_learns_four_bits_and_is_saved(
    small: GptSovitsModel, tmp_path: Path
) -> None:
    assert small.manifest is not None
    training = small.manifest.training
    assert training is not None
    assert {name.rpartition("/")[0] for name in training.before} == set(_OBJECTIVES)
    assert training.after["t2s/kl"] < 0.8 * training.before["t2s/kl"]
    spoken = small.synthesize(_TEXTS[0], seed=0).samples
    again = load(small.save(tmp_path / "small"))
    assert isinstance(again, GptSovitsModel)
    np.testing.assert_array_equal(again.synthesize(_TEXTS[0], seed=0).samples, spoken)


@pytest.mark.parametrize("scheme", ["int8-qat", "int4-weight-only"])
def test_deployed_components_answer_as_their_students_do(
    tiny: GptSovitsModel, few_updates: TrainingOptions, deployed: Callable[..., Any], scheme: str
) -> None:
    """Up to single codes that fall to the other side, which random weights make much of."""
    del few_updates  # what it needs is what training needs
    found = deployed(tiny, scheme, _TEXTS[:2])
    assert tuple(found) == _OBJECTIVES
    for agreement in found.values():
        assert agreement.layers_db > 60 or scheme != "int8-qat", found
        assert agreement.snr_db > 30, found
        assert agreement.loss_ratio == pytest.approx(1, abs=0.1), found


@pytest.mark.slow
def test_stopped_it_goes_on_with_the_same_bytes(
    small: GptSovitsModel, train: Callable[..., Any], resume: Callable[..., list[str]]
) -> None:
    lines = resume(train, small, ("train vits.flow", 3))
    unheard = [line.split(":")[0] for line in lines if "rounded without" in line]
    assert unheard == ["bert is not called", "hubert gets the same inputs for every text"]
