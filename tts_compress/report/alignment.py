"""Which words of a hypothesis differ from the transcript."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Span", "align"]

Kind: TypeAlias = Literal["equal", "substitute", "delete", "insert"]

# Chinese and Japanese are written without spaces: each character is a token of its own.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")

# The table has one cell per pair of words. Beyond this (1000 by 1000 words) the page would wait
# for seconds on one utterance.
_MOST_CELLS = 1_000_000

# Costs: one edit outweighs any number of equal words, which decide between alignments with as many
# edits, so that a shifted sentence is not shown as all of it misheard.
_EDIT = 1 << 20
_EQUAL = -1


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring words that went the same way."""

    kind: Kind
    expected: str
    """Words of the transcript; empty for an insertion."""

    heard: str
    """Words of the hypothesis; empty for a deletion."""


def align(transcript: str, hypothesis: str) -> tuple[Span, ...]:
    """Return the hypothesis as spans of equal, substituted, deleted and inserted words.

    The alignment has the fewest edits, as the word error rate has, and of those the most equal
    words. Only beyond about a thousand words each, what lies between the common beginning and the
    common end is one substitution.
    """
    expected, heard = _TOKEN.findall(transcript), _TOKEN.findall(hypothesis)
    start = _common(expected, heard)
    end = _common(expected[start:][::-1], heard[start:][::-1])
    middle = (
        expected[start : len(expected) - end],
        heard[start : len(heard) - end],
    )
    steps: list[tuple[Kind, str, str]] = [("equal", word, word) for word in expected[:start]]
    if len(middle[0]) * len(middle[1]) > _MOST_CELLS:
        steps.append(("substitute", " ".join(middle[0]), " ".join(middle[1])))
    else:
        steps.extend(_fewest_edits(*middle))
    steps.extend(("equal", word, word) for word in expected[len(expected) - end :])
    return _merge(steps)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many words the two begin with alike."""
    count = 0
    for one, other in zip(first, second, strict=False):  # the shorter one ends the comparison
        if one != other:
            break
        count += 1
    return count


def _fewest_edits(expected: Sequence[str], heard: Sequence[str]) -> list[tuple[Kind, str, str]]:
    """Return the steps of a shortest edit, walking back through the distance table."""
    table = _distances(expected, heard)
    row, column = len(expected), len(heard)
    steps: list[tuple[Kind, str, str]] = []
    while row or column:
        here = table[row][column]
        same = row > 0 and column > 0 and expected[row - 1] == heard[column - 1]
        if row and column and here == table[row - 1][column - 1] + (_EQUAL if same else _EDIT):
            row, column = row - 1, column - 1
            steps.append(("equal" if same else "substitute", expected[row], heard[column]))
        elif row and here == table[row - 1][column] + _EDIT:
            row -= 1
            steps.append(("delete", expected[row], ""))
        else:
            column -= 1
            steps.append(("insert", "", heard[column]))
    return steps[::-1]


def _distances(expected: Sequence[str], heard: Sequence[str]) -> list[list[int]]:
    """Return the table of costs: `[i][j]` for the first i and the first j words."""
    table = [[_EDIT * column for column in range(len(heard) + 1)]]
    for row, word in enumerate(expected, start=1):
        above, current = table[-1], [_EDIT * row]
        for column, other in enumerate(heard, start=1):
            diagonal = above[column - 1] + (_EQUAL if word == other else _EDIT)
            current.append(min(diagonal, above[column] + _EDIT, current[-1] + _EDIT))
        table.append(current)
    return table


def _merge(steps: Sequence[tuple[Kind, str, str]]) -> tuple[Span, ...]:
    """Join neighbours of one kind; substitutions stay word by word, so that pairs read together."""
    spans: list[Span] = []
    for kind, expected, heard in steps:
        if spans and spans[-1].kind == kind and kind != "substitute":
            last = spans.pop()
            expected = f"{last.expected} {expected}".strip()  # noqa: PLW2901
            heard = f"{last.heard} {heard}".strip()  # noqa: PLW2901
        spans.append(Span(kind, expected, heard))
    return tuple(spans)
