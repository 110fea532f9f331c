"""Language models score the same tokens, one process after the other, and nothing twice.

The figures are compared with independent formulas.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from tests.evaluation.subjects import make_subject
from tts_compress.errors import ArtifactError, EvaluationError
from tts_compress.evaluation import Evaluation, EvaluationOptions, Gate, Gates, Suite
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.metrics.teacher_forcing import (
    METRICS,
    TeacherForcing,
    compare_language_models,
    compare_scores,
)
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.store import Store, read_tokens, write_array, write_tokens
from tts_compress.evaluation.subject import Subject
from tts_compress.models.base import Tokens

Pair = tuple[Subject, Subject]


def _compare(
    store: Store, models: Pair, suite: Suite, options: EvaluationOptions
) -> TeacherForcing:
    run = Run(
        suite=suite,
        models=models,
        store=store,
        options=options,
        pairs=(),
        hypotheses={},
        measured={},
    )
    return compare_language_models(run)


@pytest.fixture
def pair(fake_spec: Callable[..., str], log: Path) -> Pair:
    """Return two made-up language models; the second errs in the first two tokens of a text."""
    specs = [
        fake_spec(name, kind="language", log=str(log), tag=name, wrong=wrong)
        for name, wrong in (("ref", 0), ("cand", 2))
    ]
    first, second = (make_subject(s, fingerprint=f * 64) for s, f in zip(specs, "ab", strict=True))
    return first, second


def test_the_scores_of_the_same_tokens_are_compared(
    store: Store,
    pair: Pair,
    small_suite: Suite,
    fast_options: EvaluationOptions,
    log: Path,
    recorder: Any,
) -> None:
    """The reference speaks, each text with a seed of its own; the candidate reads, then speaks."""
    options = replace(fast_options, teacher_forced_texts=2, progress=recorder)
    found = _compare(store, pair, small_suite, options)
    # Every letter and space of the shortest and the longest text is a token; two are wrong in each.
    texts = ["A cat sat down", "We saw 2 birds"]
    tokens = len("a cat sat down") + len("we saw  birds")
    assert (found.texts, found.positions) == (2, tokens)
    assert found.agreement == pytest.approx(1 - 4 / tokens)
    share = 1 / (math.e**5 + 27)  # of probability, for each token that is not the most probable
    divergence = 5 * (math.e**5 - 1) * share
    assert found.kl_nats == pytest.approx(divergence * 4 / tokens, rel=1e-5)
    assert found.steps_together is None
    said = [(f"say {text} {seed}", f"read {text}") for seed, text in enumerate(texts)]
    expected = [f"ref:{line}" for lines in said for line in lines]
    expected += [f"cand:{line}" for lines in said for line in reversed(lines)]
    assert log.read_text().splitlines() == expected
    assert recorder.steps[0] == ("teacher-forced", 0, 4)
    assert recorder.steps[-1] == ("teacher-forced", 4, 4)
    assert [done for _, done, _ in recorder.steps] == sorted(done for _, done, _ in recorder.steps)


@pytest.mark.slow
def test_what_was_compared_is_not_compared_again(
    store: Store, pair: Pair, small_suite: Suite, fast_options: EvaluationOptions, log: Path
) -> None:
    """Unless a model or the seed is another; tokens and scores do not stay."""
    first = _compare(store, pair, small_suite, fast_options)
    spoken = len(log.read_text().splitlines())
    (piece,) = (store.root / "teacher-forced").iterdir()
    assert piece.suffix == ".json"
    assert _compare(store, pair, small_suite, fast_options) == first
    assert len(log.read_text().splitlines()) == spoken
    changed = (pair[0], replace(pair[1], fingerprint="c" * 64))
    _compare(store, changed, small_suite, fast_options)
    assert len(log.read_text().splitlines()) == 2 * spoken
    _compare(store, pair, small_suite.with_seeds((5,)), fast_options)
    assert len(log.read_text().splitlines()) == 3 * spoken


@pytest.mark.slow
def test_after_an_interruption_it_goes_on(
    store: Store,
    pair: Pair,
    small_suite: Suite,
    fast_options: EvaluationOptions,
    fake_spec: Callable[..., str],
    log: Path,
) -> None:
    """The reference's tokens are not generated again when the candidate failed."""
    spec = fake_spec("bad", kind="language", log=str(log), tag="cand", fault="exit", wrong=2)
    bad = make_subject(spec, shown="bad", fingerprint=pair[1].fingerprint)
    with pytest.raises(EvaluationError, match="'bad' ended with exit code 3 during 'read'"):
        _compare(store, (pair[0], bad), small_suite, fast_options)
    before = log.read_text().splitlines()
    found = _compare(store, pair, small_suite, fast_options)
    assert found.agreement < 1
    after = log.read_text().splitlines()[len(before) :]
    assert len(after) == 2 * 3
    assert all(line.startswith("cand:") for line in after)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_language_models_are_compared_in_an_evaluation(
    evaluated: Callable[..., Evaluation],
) -> None:
    """The document holds the results, and a gate can check them."""
    options = {"teacher_forced_texts": 8, "seeds": (0,)}
    found = evaluated(reference={"kind": "language"}, options=options, kind="language", wrong=1)
    gate = Gate(metric="teacher_forced.agreement", limit=0.5, direction="at-least", kind="absolute")
    gates = Gates(version=1, name="g", summary="s", gate=(gate,))
    assert judge(found, gates).passed
    assert not judge(found.model_copy(update={"teacher_forced": None}), gates).passed


@pytest.mark.parametrize(("kinds", "texts"), [(("language", "language"), 0), (("language", ""), 8)])
def test_others_are_not_compared(
    fakes: Callable[..., Any], kinds: tuple[str, str], texts: int
) -> None:
    """Where no texts are asked for, or a model is none."""
    run: Any = SimpleNamespace(
        subjects=[SimpleNamespace(model=fakes("m", kind=kind)) for kind in kinds],
        options=EvaluationOptions(teacher_forced_texts=texts),
    )
    assert METRICS[-1].compute(run) is None


def test_negative_texts_are_refused() -> None:
    with pytest.raises(EvaluationError, match="teacher_forced_texts is -1"):
        EvaluationOptions(teacher_forced_texts=-1)


def test_tokens_survive_the_disk_whole(tmp_path: Path) -> None:
    tokens = Tokens(ids=np.arange(6).reshape(3, 2), chosen=np.array([[True, False]] * 2))
    write_tokens(tmp_path / "t.npz", tokens)
    found = read_tokens(tmp_path / "t.npz")
    np.testing.assert_array_equal(found.ids, tokens.ids)
    np.testing.assert_array_equal(found.chosen, tokens.chosen)
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
    with pytest.raises(ArtifactError, match=r"cannot write '.*none/s\.npy'"):
        write_array(tmp_path / "none" / "s.npy", np.zeros((1, 1, 1), np.float32))


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
