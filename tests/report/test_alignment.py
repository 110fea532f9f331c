"""The words of a hypothesis that differ from the transcript."""

import jiwer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.report.html import Span, align

words = st.lists(st.sampled_from("abcd"), max_size=9).map(" ".join)


def test_each_kind_of_difference_is_marked() -> None:
    assert align("the quick brown fox ran", "the brown fox runs now") == (
        Span("equal", "the", "the"),
        Span("delete", "quick", ""),
        Span("equal", "brown fox", "brown fox"),
        Span("insert", "", "runs"),
        Span("substitute", "ran", "now"),
    )


@pytest.mark.parametrize(
    ("transcript", "hypothesis", "kinds"),
    [("", "", []), ("a b", "", ["delete"]), ("", "a b", ["insert"]), ("a b", "a b", ["equal"])],
)
def test_empty_sides(transcript: str, hypothesis: str, kinds: list[str]) -> None:
    assert [span.kind for span in align(transcript, hypothesis)] == kinds


@given(words, words)
def test_both_sides_can_be_read_off_the_spans(transcript: str, hypothesis: str) -> None:
    spans = align(transcript, hypothesis)
    assert " ".join(span.expected for span in spans if span.expected) == transcript
    assert " ".join(span.heard for span in spans if span.heard) == hypothesis


@given(words.filter(bool), words)
def test_it_marks_as_many_words_as_the_word_error_rate_counts(
    transcript: str, hypothesis: str
) -> None:
    """The oracle is jiwer, which counts the errors that the report's numbers are made of."""
    marked = sum(
        max(len(span.expected.split()), len(span.heard.split()))
        for span in align(transcript, hypothesis)
        if span.kind != "equal"
    )
    counted = jiwer.process_words(transcript, hypothesis)
    assert marked == counted.substitutions + counted.deletions + counted.insertions


def test_chinese_is_aligned_by_character() -> None:
    spans = align("\u4f60\u597d\u5417", "\u4f60\u5f88\u5417")
    assert [span.kind for span in spans] == ["equal", "substitute", "equal"]
