"""Voices of transformers that draw tokens are compared, and trained, along what they drew."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.families.tiny import write_voice
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.models.base import LanguageModel, Prompt, Speaking, Tokens

_TEXT = "call at ten"
_HEADS = {
    "csm": ("lm_head", "depth_decoder.codebooks_head"),
    "dia": ("logits_dense",),
    "higgs": ("audio_lm_head",),
}
"""Heads by whose scores the official code draws tokens, in the order of the codebooks."""


def _heard_while_speaking(voice: Any, name: str, outputs: int) -> npt.NDArray[np.float32]:
    """Return the scores of a text's steps as the official code computes them, shape `[S·K, V]`."""
    seen: list[npt.NDArray[np.float32]] = []

    def note(_head: Any, _inputs: Any, output: torch.Tensor) -> None:
        # The first of a batch is the text; Dia's second speaks without it.
        seen.append(output.detach()[0, -1].reshape(-1, outputs).numpy())

    handles = [voice.root().get_submodule(n).register_forward_hook(note) for n in _HEADS[name]]
    voice.synthesize(_TEXT, seed=3)
    for handle in handles:
        handle.remove()
    return np.concatenate(seen)


@pytest.mark.parametrize("name", _HEADS)
def test_scores_along_what_it_spoke_are_those_it_spoke_by(
    request: pytest.FixtureRequest, name: str
) -> None:
    voice: Any = request.getfixturevalue(name)
    assert isinstance(voice, LanguageModel)
    tokens = voice.generate_tokens(_TEXT, seed=3)
    scores = voice.logits(_TEXT, tokens)
    assert scores.shape[:2] == tokens.chosen.shape
    spoken = _heard_while_speaking(voice, name, scores.shape[2])
    rows = scores.reshape(-1, scores.shape[2])[-len(spoken) :]
    # Dia's first steps are not drawn: codebooks begin one after the other.
    assert len(spoken) >= 0.8 * len(scores) * scores.shape[1]
    np.testing.assert_allclose(rows, spoken, atol=1e-4)
    assert tokens.chosen.any(axis=0).all()
    assert tokens.stop not in set(tokens.ids[1:][tokens.chosen].tolist())


def test_a_recording_is_read_before_the_tokens(higgs: Any, tmp_path: Any) -> None:
    write_voice(tmp_path / "voice.wav", seconds=0.6)
    prompt = Prompt(audio=tmp_path / "voice.wav", text="hello there")
    voice = higgs.speaking_as(Speaking(prompt=prompt))
    tokens = voice.generate_tokens(_TEXT, seed=3)
    scores = voice.logits(_TEXT, tokens)
    spoken = _heard_while_speaking(voice, "higgs", scores.shape[2])
    np.testing.assert_allclose(scores.reshape(spoken.shape), spoken, atol=1e-4)


@pytest.mark.parametrize("name", _HEADS)
def test_tokens_of_another_model_are_refused(request: pytest.FixtureRequest, name: str) -> None:
    voice: Any = request.getfixturevalue(name)
    tokens = voice.generate_tokens(_TEXT, seed=0)
    for ids in (tokens.ids[:, :-1], tokens.ids + 1000, tokens.ids[:, 0]):
        with pytest.raises(ModelError, match="are not ones of 'call at ten'"):
            voice.logits(_TEXT, Tokens(ids=ids, chosen=tokens.chosen))


@pytest.mark.slow
@pytest.mark.parametrize("name", _HEADS)
def test_it_learns_along_what_it_spoke(
    request: pytest.FixtureRequest, train_on: Callable[..., Callable[..., Any]], name: str
) -> None:
    """In four bits its scores are then nearer to the original's, of a text it did not learn."""
    voice = request.getfixturevalue(name)
    texts = ("say one", "say two", "say three")
    rounded = compress(voice, "int4-weight-only")
    trained = train_on(voice, texts, steps=60, learning_rate=3e-4)()
    tokens = voice.generate_tokens("one more", seed=1)
    answers = [v.logits("one more", tokens) for v in (voice, rounded, trained)]
    errors = [np.abs(answer - answers[0]).mean() for answer in answers[1:]]
    assert errors[1] < 0.85 * errors[0]
