"""Text normalisers: what two texts must have in common to count as the same words.

They are part of the metric, therefore pinned by name and version: a published one never changes,
and a better one gets a new version beside it, so that two reports that name the same normaliser
compare. Texts of suites and transcripts of recognizers go through the same one.

Recognizers such as Whisper write numbers in digits and percent as a sign, others in words. The
normalisers of a language spell both out; `words-v1` and `characters-v1`, for any language, do not.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tts_compress.errors import needing

_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})
_NOT_ENGLISH = re.compile(r"[^a-z']+")
UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of scripts without spaces, Chinese and Japanese, as a set of a regular expression."""

_UNSPACED = re.compile(f"([{UNSPACED}])")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def english_v1(text: str) -> str:
    """Return the words of an English text: lower case, letters and apostrophes, single spaces.

    Everything else is a word boundary: "Well-known, isn't it?" becomes "well known isn't it".
    Apostrophes that stand alone or at the edge of a word are quotation marks and disappear.
    Numbers are not spelled out; a suite gives the spoken form of a text that has digits.
    """
    words = _NOT_ENGLISH.sub(" ", text.translate(_APOSTROPHES).lower()).split()
    return " ".join(bare for word in words if (bare := word.strip("'")))


def words_v1(text: str) -> str:
    """Return the words of a text in any alphabet: lower case, single spaces.

    Letters keep their accents, also where these are code points of their own; all but letters,
    marks and digits is a word boundary.
    """
    folded = unicodedata.normalize("NFKC", text).lower()
    kept = (c if unicodedata.category(c)[0] in "LMN" else " " for c in folded)
    return " ".join("".join(kept).split())


def characters_v1(text: str) -> str:
    """Return `words_v1` with each Chinese or Japanese character as a word of its own."""
    return " ".join(_UNSPACED.sub(r" \1 ", words_v1(text)).split())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Language:
    """Rules by which a language writes and speaks numbers."""

    code: str
    """Its name in num2words."""

    point: str
    """The decimal sign, as spoken."""

    grouping: str
    """A pattern of the signs between groups of three digits."""

    comma: bool = True
    """A comma is the decimal sign, rather than a full stop."""

    decimals_apart: bool = True
    """Decimals are spoken one by one, rather than as a number."""

    ordinal: str = ""
    """A pattern of what makes a number in digits an ordinal; empty where that is ambiguous."""

    signs: Mapping[str, str]
    """Patterns of what is not spoken as it is written, and what is spoken."""


def _spelled(language: _Language, text: str) -> str:
    """Return a text in lower case, with its numbers and signs spelled out."""
    text = unicodedata.normalize("NFKC", text).lower()
    for pattern, spoken in language.signs.items():
        text = re.sub(pattern, spoken, text)
    text = re.sub(rf"(?<=\d){language.grouping}(?=\d\d\d(?!\d))", "", text)
    if language.comma:
        text = re.sub(r"(?<=\d),(?=\d)", ".", text)
    if language.ordinal:
        pattern = rf"(\d{{1,4}})(?:{language.ordinal})\b"
        text = re.sub(pattern, lambda match: _spoken(language, match[1], "ordinal"), text)
    return _NUMBER.sub(lambda match: f" {_spoken(language, match[0])} ", text)


def _spoken(language: _Language, number: str, form: str = "cardinal") -> str:
    """Return the words of a number such as `12` or `3.5`, or of `12` as an ordinal."""
    with needing("evaluate"):
        from num2words import num2words
    if len(number) > 24:
        return " ".join(number)  # what a broken candidate makes a recognizer write
    if form == "ordinal":
        return str(num2words(int(number), lang=language.code, to=form)).replace(" and ", " ")
    whole, _, decimals = number.partition(".")
    words = [_whole(language, int(whole), num2words)]
    if decimals:
        apart = [*decimals] if language.decimals_apart or decimals[0] == "0" else [decimals]
        words += [language.point, *(num2words(int(part), lang=language.code) for part in apart)]
    return " ".join(words)


def _whole(language: _Language, number: int, num2words: Callable[..., str]) -> str:
    words = num2words(number, lang=language.code)
    if language.code != "en":
        return words
    # As espeak-ng speaks: "nineteen hundred eighty four", and no "and" behind hundreds.
    if 1100 <= number < 2000:
        hundreds, rest = divmod(number, 100)
        words = f"{num2words(hundreds)} hundred {num2words(rest) if rest else ''}"
    return words.replace(" and ", " ")


def chinese_v1(text: str) -> str:
    """Return the simplified characters of a Chinese text as words, with numbers spelled out.

    Years are read digit by digit, percent before its number.

    Raises:
        MissingExtraError: opencc or cn2an is not installed.
    """
    simplified = str(_converter().convert(unicodedata.normalize("NFKC", text)))
    if _NUMBER.search(simplified):
        with needing("zh"):
            from cn2an import transform
        simplified = re.sub(r"(?<=\d),(?=\d\d\d(?!\d))", "", simplified)
        simplified = transform(re.sub(r"(\d):(\d\d)", r"\1点\2", simplified), "an2cn")
    return characters_v1(simplified)


@cache
def _converter() -> Any:
    with needing("zh"):
        from opencc import OpenCC
    return OpenCC("t2s")


_ENGLISH = _Language(
    code="en",
    point="point",
    grouping=",",
    comma=False,
    ordinal="st|nd|rd|th",
    signs={
        r"(\d):00\b": r"\1",
        r"(\d):0(\d)\b": r"\1 o \2",
        r"(\d):(\d\d)\b": r"\1 \2",
        r"%": " percent ",
        r"\$ ?(\d[\d,.]*\d|\d)": r"\1 dollars",
    },
)
_GERMAN = _Language(
    code="de",
    point="komma",
    grouping=r"[. ]",
    signs={
        r"\b(\d\d?)[:.](\d\d) uhr\b": r"\1 uhr \2",
        r"\buhr 00\b": "uhr",
        r"%": " prozent ",
        r"€": " euro ",
    },
)
_SPANISH = _Language(
    code="es",
    point="coma",
    grouping=r"[. ]",
    decimals_apart=False,
    signs={
        r"\bsra\.": "señora",
        r"\bsr\.": "señor",
        r"(\d):(\d\d)": r"\1 \2",
        r"%": " por ciento ",
        r"€": " euros ",
    },
)
_FRENCH = _Language(
    code="fr",
    point="virgule",
    grouping=r"[. ]",
    decimals_apart=False,
    ordinal="er|ère|re|e|ème",
    signs={
        r"\bmme\b": "madame",
        r"\bm\. ": "monsieur ",
        r"(\d) ?h ?(\d\d)\b": r"\1 heures \2",
        r"%": " pour cent ",
        r"€": " euros ",
        r"œ": "oe",
        r"æ": "ae",
    },
)

NORMALIZERS: Mapping[str, Callable[[str], str]] = {
    "en-v1": english_v1,
    "en-v2": lambda text: english_v1(_spelled(_ENGLISH, text.translate(_APOSTROPHES))),
    "de-v1": lambda text: words_v1(_spelled(_GERMAN, text)),
    "es-v1": lambda text: words_v1(_spelled(_SPANISH, text)),
    "fr-v1": lambda text: words_v1(_spelled(_FRENCH, text)),
    "zh-v1": chinese_v1,
    "words-v1": words_v1,
    "characters-v1": characters_v1,
}
"""Text normalisers by the name suites use."""

_OF_CHARACTERS = frozenset({"characters-v1", "zh-v1"})


def counts_characters(name: str) -> bool:
    """Return True if a normaliser's words are single characters, as in Chinese and Japanese."""
    return name in _OF_CHARACTERS
