"""Normalisers are part of the metric."""

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import MissingExtraError
from tts_compress.evaluation import normalizers
from tts_compress.evaluation.normalizers import NORMALIZERS, counts_characters, english_v1


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
    """Whatever comes in, letters and inner apostrophes come out: a normal text stays as it is."""
    result = english_v1(text)
    assert re.fullmatch(r"([a-z]+('+[a-z]+)*( [a-z]+('+[a-z]+)*)*)?", result)


@given(st.text(alphabet="abcXYZ' .,-\u2019"))
def test_case_does_not_matter(text: str) -> None:
    """Recognizers differ in case."""
    assert english_v1(text.upper()) == english_v1(text.lower())


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("words-v1", "Füße, naïve Über-Größe!", "füße naïve über größe"),
        ("words-v1", "L\u2019e\u0301te\u0301 \u2014 ¿qué?", "l été qué"),
        ("characters-v1", "東京へ行く。OK?", "東 京 へ 行 く ok"),
        (
            "en-v2",
            "It's 8:30, 1900 oranges, 3.25 miles.",
            "it's eight thirty nineteen hundred oranges three point two five miles",
        ),
        (
            "en-v2",
            "In 1984, 2,250 of 50% on the 3rd.",
            "in nineteen hundred eighty four two thousand "
            "two hundred fifty of fifty percent on the third",
        ),
        (
            "de-v1",
            "Um 18.30 Uhr kamen 1.200 Gäste.",
            "um achtzehn uhr dreißig kamen eintausendzweihundert gäste",
        ),
        ("de-v1", "7,5 % der Straße", "sieben komma fünf prozent der straße"),
        (
            "es-v1",
            "La Sra. Peña: 16:30, 3,25 km, 1,05 l.",
            "la señora peña dieciséis treinta tres coma veinticinco km uno coma cero cinco l",
        ),
        (
            "fr-v1",
            "À 18 h 30, 71 œufs, le 1er.",
            "à dix huit heures trente soixante et onze oeufs le premier",
        ),
        (
            "zh-v1",
            "藥店晚上9點半，3.5公里，50%。",
            "药 店 晚 上 九 点 半 三 点 五 公 里 百 分 之 五 十",
        ),
        ("zh-v1", "2019年的16:30", "二 零 一 九 年 的 十 六 点 三 十"),
    ],
)
def test_numbers_are_spelled_out_and_letters_survive(
    name: str, written: str, expected: str
) -> None:
    """Umlauts, accents, and characters; a published normaliser keeps to these for ever."""
    pytest.importorskip("num2words")
    if name == "zh-v1":
        pytest.importorskip("opencc")
        pytest.importorskip("cn2an")
    assert NORMALIZERS[name](written) == expected
    assert NORMALIZERS[name](expected) == expected


@given(st.text(alphabet="0123456789.,:% áßé漢字ab'"))
def test_no_digits_however_strange_are_an_error(text: str) -> None:
    """A broken candidate makes a recognizer write anything."""
    pytest.importorskip("num2words")
    for name in ("en-v2", "de-v1", "es-v1", "fr-v1"):
        NORMALIZERS[name](text)


def test_characters_are_counted_where_they_are_words() -> None:
    assert [name for name in NORMALIZERS if counts_characters(name)] == ["zh-v1", "characters-v1"]


@pytest.mark.parametrize(
    ("package", "name", "text"), [("num2words", "de-v1", "7"), ("opencc", "zh-v1", "好")]
)
def test_a_missing_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, package: str, name: str, text: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    normalizers._converter.cache_clear()
    with pytest.raises(MissingExtraError, match=package):
        NORMALIZERS[name](text)
