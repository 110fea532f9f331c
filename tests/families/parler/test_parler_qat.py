"""Parler-TTS trained without data: token scores, what the encoder makes of words, samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tts_compress import find_recipe, load
from tts_compress.models.parler.files import ParlerOptions
from tts_compress.models.parler.model import ParlerModel
from tts_compress.progress import Silent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tts_compress.qat.options import TrainingOptions

_TEXTS = ("please call at ten", "the door was open", "a quiet day", "who are you")
_OBJECTIVES = ("text_encoder", "decoder", "audio_encoder.decoder")


@pytest.fixture(scope="module")
def wide(make_parler_dir: Callable[..., Path]) -> ParlerModel:
    """Return a tiny model whose layers are as wide as a group of four-bit weights."""
    folder = make_parler_dir("wide", decoder_width=64, encoder_width=64)
    model = load(f"parler-tts:{folder}")
    assert isinstance(model, ParlerModel)
    return model.with_options(ParlerOptions(max_length=30, min_new_tokens=20))


@pytest.fixture(scope="module")
def train(wide: ParlerModel, train_on: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function that trains the model, in four bits by default."""
    return train_on(wide, _TEXTS)


@pytest.fixture(scope="module")
def small(train: Callable[..., Any]) -> Any:
    """Return the model in four bits, trained without a stop."""
    return train()


def test_decoder_and_encoder_learn_four_bits_and_are_saved(
    small: ParlerModel, tmp_path: Path
) -> None:
    assert small.manifest is not None
    training = small.manifest.training
    assert training is not None
    assert {name.rpartition("/")[0] for name in training.before} == set(_OBJECTIVES)
    for term in ("decoder/kl", "text_encoder/mse"):
        assert training.after[term] < 0.8 * training.before[term], term
    spoken = small.synthesize(_TEXTS[0], seed=0).samples
    again = load(small.save(tmp_path / "small"))
    assert isinstance(again, ParlerModel)
    read = again.with_options(small.options)
    np.testing.assert_array_equal(read.synthesize(_TEXTS[0], seed=0).samples, spoken)


def test_only_scores_of_speech_are_learned_from(wide: ParlerModel) -> None:
    """The tiny decoder has the text's positions before those of speech."""
    pytest.importorskip("accelerate")
    from tts_compress.qat.prepare import prepare_qat
    from tts_compress.qat.recorded_calls import compared_outputs, record_calls

    prepared = prepare_qat(wide.root(), find_recipe("parler-tts", "int4-weight-only"))
    seeded = [(text, number) for number, text in enumerate(_TEXTS[:2])]
    datasets = record_calls(wide, prepared.module, seeded, progress=Silent())
    encoder, decoder, _ = datasets
    assert [dataset.objective.name for dataset in datasets] == list(_OBJECTIVES)
    (call,) = decoder.train
    tokens = wide.generate_tokens(_TEXTS[0], seed=0)
    (scores,) = compared_outputs(decoder.objective, call.output, call.keywords)
    assert call.output.logits.shape[-2] > scores.shape[-2] == len(tokens.ids) - 1
    meant = wide.logits(_TEXTS[0], tokens)
    np.testing.assert_allclose(scores.numpy().transpose(1, 0, 2), meant, atol=1e-5)
    (heard,) = encoder.train
    assert heard.keywords["input_ids"].shape[1] == len(_TEXTS[0]) + 1


def test_deployed_components_answer_as_their_students_do(
    wide: ParlerModel, few_updates: TrainingOptions, deployed: Callable[..., Any]
) -> None:
    del few_updates  # what it needs is what training needs
    # The tiny codec has too few channels for integers to be worth it. An activation that lies
    # between two codes may fall to either side: 60 dB (see the test of F5-TTS). The kernel of four
    # bits multiplies in bfloat16, and 40.6 dB are measured with it.
    for scheme, learning, least in (
        ("int8-qat", _OBJECTIVES[:2], 60),
        ("int4-weight-only", _OBJECTIVES, 38),
    ):
        found = deployed(wide, scheme, _TEXTS[:2])
        assert tuple(found) == learning
        assert all(agreement.snr_db > least for agreement in found.values()), found


def test_stopped_it_goes_on_with_the_same_bytes(
    small: ParlerModel, train: Callable[..., Any], resume: Callable[..., list[str]]
) -> None:
    resume(train, small, ("train decoder", 13))
