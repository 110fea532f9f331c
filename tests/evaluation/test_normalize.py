"""Normalisers are part of the metric."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.evaluation.suite import english_v1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Well-known, isn't it?", "well known isn't it"),
        ("  The\tend.\n", "the end"),
        ("Don\u2019t shout \u2018stop\u2019!", "don't shout stop"),
        ("'quoted' rock 'n' roll", "quoted rock n roll"),
        ("caf\u00e9 42 %", "caf"),
        ("?!", ""),
        ("", ""),
    ],
)
def test_english_v1_keeps_words_only(text: str, expected: str) -> None:
    """Hand-made cases."""
    assert expected == english_v1(text)


@given(st.text())
def test_result_has_words_single_spaces_and_nothing_else(text: str) -> None:
    """Whatever comes in, letters and inner apostrophes come out."""
    result = english_v1(text)
    assert re.fullmatch(r"([a-z]+('+[a-z]+)*( [a-z]+('+[a-z]+)*)*)?", result)


@given(st.text())
def test_normalizing_twice_changes_nothing(text: str) -> None:
    """A hypothesis that was normalised before compares the same."""
    assert english_v1(text) == english_v1(english_v1(text))


@given(st.text(alphabet="abcXYZ' .,-\u2019"))
def test_case_does_not_matter(text: str) -> None:
    """Recognizers differ in case."""
    assert english_v1(text.upper()) == english_v1(text.lower())
