"""Scores of two language models on the same tokens, against independent formulas."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metrics.teacher_forcing import TeacherForcing, compare_scores

if TYPE_CHECKING:
    from tts_compress.models.parler.model import ParlerModel

stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")

TEXTS = ("please call again at ten", "the door was open")


def _scores(seed: int, *, spread: float = 3.0, shape: tuple[int, ...] = (7, 3, 11)) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.floats(1e-3, 80),
    noise=st.floats(0, 10),
    share=st.floats(0.1, 1),
)
@settings(max_examples=60, deadline=None)
def test_figures_are_those_of_the_definitions(
    seed: int, spread: float, noise: float, share: float
) -> None:
    reference = _scores(seed, spread=spread)
    candidate = reference + noise * _scores(seed + 1, spread=1)
    chosen = np.random.default_rng(seed).random((7, 3)) < share
    chosen[0, 0] = True
    found = compare_scores([(reference, candidate, chosen)])

    first, second = (scores[chosen].astype(np.float64) for scores in (reference, candidate))
    divergence = stats.entropy(special.softmax(first, -1), special.softmax(second, -1), axis=-1)
    assert found.positions == chosen.sum()
    assert found.agreement == np.mean(first.argmax(-1) == second.argmax(-1))
    assert found.kl_nats == pytest.approx(np.mean(divergence), rel=1e-6, abs=1e-9)
    spreads = [scores - scores.mean(-1, keepdims=True) for scores in (first, second)]
    distance = np.linalg.norm(spreads[1] - spreads[0]) / np.linalg.norm(spreads[0])
    assert found.logit_distance == pytest.approx(distance, rel=1e-9)
    assert 0 <= found.agreement <= 1
    assert found.kl_nats >= 0


@given(seed=st.integers(0, 2**32 - 1), shift=st.floats(-50, 50))
@settings(max_examples=30, deadline=None)
def test_what_no_probability_depends_on_does_not_count(seed: int, shift: float) -> None:
    reference = _scores(seed)
    moved = reference + np.float32(shift) * _scores(seed + 1, shape=(7, 3, 1))
    found = compare_scores([(reference, moved, np.ones((7, 3), bool))])
    assert found.kl_nats < 1e-6
    assert found.logit_distance < 1e-4


def test_positions_that_do_not_count_may_be_anything() -> None:
    reference, candidate = _scores(0), _scores(0)
    chosen = np.ones((7, 3), bool)
    chosen[2:, 1] = False
    candidate[2:, 1] = np.nan
    found = compare_scores([(reference, candidate, chosen)])
    assert found == TeacherForcing(
        agreement=1.0, kl_nats=0.0, logit_distance=0.0, positions=16, texts=1
    )


def test_certainty_does_not_overflow() -> None:
    sure = np.zeros((1, 1, 4), np.float32)
    sure[..., 0] = 1e4
    other = np.roll(sure, 1, axis=-1)
    found = compare_scores([(sure, other, np.ones((1, 1), bool))])
    assert found.kl_nats == pytest.approx(1e4)
    assert found.agreement == 0


@pytest.mark.parametrize(
    ("reference", "candidate", "chosen", "reason"),
    [
        (_scores(0), _scores(0)[:-1], np.ones((7, 3), bool), "do not belong together"),
        (_scores(0), _scores(0), np.ones((6, 3), bool), "do not belong together"),
        (_scores(0), _scores(0), np.zeros((7, 3), bool), "no tokens to compare"),
        (_scores(0), _scores(0) * np.inf, np.ones((7, 3), bool), "candidate's scores of codebook"),
        (_scores(0) * np.nan, _scores(0), np.ones((7, 3), bool), "reference's scores of codebook"),
    ],
)
def test_what_cannot_be_compared_is_said(
    reference: Any, candidate: Any, chosen: Any, reason: str
) -> None:
    with pytest.raises(EvaluationError, match=reason):
        compare_scores([(reference, candidate, chosen)])


def test_texts_count_by_their_positions() -> None:
    """A long text weighs as many tokens as it has."""
    first = [_scores(0, shape=(2, 3, 5)), _scores(1, shape=(8, 3, 5))]
    second = [_scores(2, shape=(2, 3, 5)), _scores(3, shape=(8, 3, 5))]
    chosen = [np.ones((2, 3), bool), np.ones((8, 3), bool)]
    found = compare_scores(zip(first, second, chosen, strict=True))
    parts = [np.concatenate(part) for part in (first, second, chosen)]
    together = compare_scores([(parts[0], parts[1], parts[2])])
    assert (found.texts, found.positions) == (2, 30)
    assert found.agreement == together.agreement
    assert found.kl_nats == pytest.approx(together.kl_nats)
    assert found.logit_distance == pytest.approx(together.logit_distance)


def test_no_texts_are_an_error() -> None:
    with pytest.raises(EvaluationError, match="no tokens to compare"):
        compare_scores([])


def test_more_damage_is_further_away(
    tiny_parler: ParlerModel, compare_models: Callable[..., Any]
) -> None:
    import torch

    figures = []
    for damage in (0.01, 0.1, 1.0):
        root = copy.deepcopy(tiny_parler.root())
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for weight in root.get_submodule("decoder.model.decoder.layers").parameters():
                noise = torch.randn(weight.shape, generator=generator)
                weight.add_(noise * damage * weight.square().mean().sqrt())
        hurt = tiny_parler.with_root(root, None)
        figures.append(compare_models(tiny_parler, hurt, TEXTS))
    for better, worse in pairwise(figures):
        assert better.agreement > worse.agreement
        assert better.kl_nats < worse.kl_nats
        assert better.logit_distance < worse.logit_distance
    assert figures[0].agreement > 0.9
    assert figures[0].kl_nats < 0.01
