"""Language models score the same tokens, one process after the other, and nothing twice."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.evaluation.subjects import make_subject
from tts_compress.errors import ArtifactError, EvaluationError
from tts_compress.evaluation import Evaluation, EvaluationOptions, Gate, Gates, Suite
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.metrics.teacher_forcing import (
    METRICS,
    TeacherForcing,
    compare_language_models,
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
