"""Answers of two models to the same latents, against independent formulas; planted changes."""

from typing import Any

import numpy as np
import pytest

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metrics.teacher_forcing import answer_columns, compare_answers
from tts_compress.models.base import Reading

special = pytest.importorskip("scipy.special")

_THRESHOLD = -4.0


def _answers(rng: Any, steps: int = 60) -> Any:
    """Return answers whose log-odds of the end rise from -10 to 3, with noise."""
    stop = np.linspace(-10, 3, steps) + rng.standard_normal(steps)
    latents = rng.standard_normal((steps, 8))
    return answer_columns(
        Reading(
            latents=latents.astype(np.float32), stop=stop.astype(np.float32), threshold=_THRESHOLD
        )
    )


def _rounded(rng: Any, answers: Any, bias: float = 0.0) -> Any:
    """Return answers as a compressed model gives them; its errors last for a few steps."""
    slow = np.repeat(rng.standard_normal(len(answers) // 10 + 1), 10)[: len(answers)]
    changed = answers + 0.1 * rng.standard_normal(answers.shape)
    changed[:, 0] += 0.3 * slow + bias
    changed[:, 1] = answers[:, 1]
    return changed.astype(np.float32)


def test_figures_are_those_of_the_definitions() -> None:
    rng = np.random.default_rng(0)
    before = [_answers(rng, steps) for steps in (20, 45)]
    after = [_rounded(rng, answers) for answers in before]
    found = compare_answers(zip(before, after, strict=True))
    first, second = (np.concatenate(each).astype(np.float64) for each in (before, after))
    change = second[:, 0] - first[:, 0]
    ends = [np.stack((p := special.expit(each[:, 0]), 1 - p), -1) for each in (first, second)]
    assert (found.steps, found.texts, found.stop_shift_interval) == (65, 2, None)
    assert found.stop_shift == pytest.approx(change.mean())
    assert found.stop_spread == pytest.approx(np.sqrt(np.square(change).mean()))
    decided = [each[:, 0] > _THRESHOLD for each in (first, second)]
    assert found.agreement == np.mean(decided[0] == decided[1])
    assert found.kl_nats == pytest.approx(special.rel_entr(*ends).sum(-1).mean(), rel=1e-6)
    moved = np.linalg.norm(second[:, 2:] - first[:, 2:]) / np.linalg.norm(first[:, 2:])
    assert found.latent_distance == pytest.approx(moved)


def test_equal_answers_do_not_differ() -> None:
    answers = _answers(np.random.default_rng(0))
    answers[:2, 0] = -200, 200  # certainty does not overflow
    found = compare_answers([(answers, answers)])
    assert (found.stop_shift, found.agreement, found.kl_nats) == (0.0, 1.0, 0.0)
    assert found.latent_distance == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "least", "most"), [(-1.0, 100, 100), (0.0, 0, 12), (1.0, 100, 100)]
)
def test_a_bias_of_one_nat_is_always_found_and_rounding_alone_rarely(
    bias: float, least: int, most: int
) -> None:
    """In 100 draws of 24 texts; 5 alarms are expected, and more in one series of a hundred."""
    detected = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        before = [_answers(rng, int(rng.integers(40, 120))) for _ in range(24)]
        found = compare_answers((each, _rounded(rng, each, bias)) for each in before)
        assert found.stop_shift_interval is not None
        low, high = found.stop_shift_interval
        detected += (bias >= 0 and low > 0) or (bias <= 0 and high < 0)
    assert least <= detected <= most


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (np.zeros((3, 4)), np.zeros((2, 4)), "do not belong together"),
        (np.zeros((0, 4)), np.zeros((0, 4)), "do not belong together"),
        (np.zeros((3, 4)), np.full((3, 4), np.nan), "candidate's answers are not finite"),
    ],
)
def test_what_cannot_be_compared_is_said(before: Any, after: Any, reason: str) -> None:
    with pytest.raises(EvaluationError, match=reason):
        compare_answers([(before, after)])
    with pytest.raises(EvaluationError, match="no texts"):
        compare_answers([])
