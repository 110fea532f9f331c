"""Text normalisers: part of the metric, therefore pinned by name and version.

A published normaliser never changes; a better one gets a new version beside it, so that two
reports that name the same normaliser compare.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from tts_compress.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["NORMALIZERS", "Normalizer", "english_v1", "find_normalizer"]

Normalizer: TypeAlias = "Callable[[str], str]"

_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})
_NOT_ENGLISH = re.compile(r"[^a-z']+")


def english_v1(text: str) -> str:
    """Return the words of an English text: lower case, letters and apostrophes, single spaces.

    Everything else is a word boundary: "Well-known, isn't it?" becomes "well known isn't it".
    Apostrophes that stand alone or at the edge of a word are quotation marks and disappear.
    Numbers are not spelled out; a suite gives the spoken form of a text that has digits.
    """
    words = _NOT_ENGLISH.sub(" ", text.translate(_APOSTROPHES).lower()).split()
    return " ".join(bare for word in words if (bare := word.strip("'")))


NORMALIZERS: Mapping[str, Normalizer] = {"en-v1": english_v1}


def find_normalizer(name: str) -> Normalizer:
    """Return the normaliser of a name such as `en-v1`.

    Raises:
        RecipeError: There is none of that name.
    """
    try:
        return NORMALIZERS[name]
    except KeyError:
        known = ", ".join(sorted(NORMALIZERS))
        raise RecipeError(f"no normalizer named {name!r}; known: {known}") from None
