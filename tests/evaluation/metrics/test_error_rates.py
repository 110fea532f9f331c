"""Error rates, against hand-computed cases and a plain edit distance."""

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metrics.error_rates import Unit, count_edits, summarize_edits

_WORDS = st.lists(st.sampled_from("abcd"), min_size=1, max_size=7).map(" ".join)
_MAYBE = st.one_of(st.just(""), _WORDS)


def _levenshtein(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the edit distance, by the textbook's table."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        previous, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


def test_the_rate_is_of_the_corpus_not_the_mean_of_sentences() -> None:
    """Ten right words and one wrong one-word sentence: 1/11, not 1/2."""
    same = "a b c d e f g h i j"
    edits = [count_edits(same, same, "word"), count_edits("yes", "no", "word")]
    found = summarize_edits(edits)
    assert found.rate == 1 / 11
    assert (found.substitutions, found.insertions, found.deletions) == (1, 0, 0)
    assert (found.reference_tokens, found.above_half) == (11, 0.5)


def test_exactly_half_is_not_above_half() -> None:
    """The share counts what is strictly worse than 50 %."""
    assert summarize_edits([count_edits("a b", "a", "word")]).above_half == 0.0


def test_spaces_between_characters_that_are_words_are_no_characters() -> None:
    for unit in get_args(Unit):
        assert count_edits("你 好", "你 号", unit, spaced=False) == (1, 0, 0, 2)


@given(_WORDS, _MAYBE)
def test_errors_are_the_edit_distance(transcript: str, hypothesis: str) -> None:
    """Both units agree with a plain implementation."""
    words = count_edits(transcript, hypothesis, "word")
    characters = count_edits(transcript, hypothesis, "character")
    assert _levenshtein(transcript.split(), hypothesis.split()) == words.errors
    assert _levenshtein(transcript, hypothesis) == characters.errors
    assert (len(transcript.split()), len(transcript)) == (words.tokens, characters.tokens)


def test_what_has_no_rate_is_refused() -> None:
    """An empty transcript would divide by zero; no utterances prove nothing."""
    for transcript in ("", "  "):
        with pytest.raises(EvaluationError, match="no words"):
            count_edits(transcript, "word", "word")
    with pytest.raises(EvaluationError, match="no utterances"):
        summarize_edits([])
