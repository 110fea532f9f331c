"""The data folders: every shipped file parses, and no model is judged on what it was fitted to."""

import re
import unicodedata
from functools import cache
from itertools import combinations, product

import pytest
from pydantic import BaseModel

from tts_compress.config import Card, data_file, data_names, read_table
from tts_compress.evaluation.suite import SuiteText, read_suite
from tts_compress.families import family_names
from tts_compress.recipes.formats import SCHEMES
from tts_compress.recipes.recipe import (
    CalibrationSet,
    find_recipe,
    read_calibration_set,
    schemes_of,
)

_SHARED_WORDS = 5
_WORD = re.compile(r"[\u4e00-\u9fff]|[^\W_\u4e00-\u9fff]+(?:'[^\W_\u4e00-\u9fff]+)*")

_LETTERS = {
    "en-us": "a-z",
    "de": "a-zäöüß",
    "es": "a-záéíóúüñ",
    "fr": "a-zàâçéèêëîïôœùûü",
    "cmn": "\u4e00-\u9fff",
}
_MARKS = {
    "en-us": " .,?':",
    "de": " .,?!%",
    "es": " .,?!%:¿¡",
    "fr": " .,?!%'-",
    "cmn": "。，？！、.%",
}
"""Characters besides letters and digits; decimal point and percent sign are ASCII in Chinese."""


class _Texts(BaseModel):
    """A suite's texts, read without what its normaliser needs."""

    name: str
    language: str
    utterances: tuple[SuiteText, ...]
    card: Card | None = None


_NAMES = data_names("eval/suites")
_SUITES = [
    _Texts.model_validate_json(read_table(data_file("eval/suites", name))) for name in _NAMES
]
_SETS = [*map(read_calibration_set, data_names("calib/sets"))]


def test_shipped_texts_state_their_origin() -> None:
    """Texts of your own need not."""
    assert all(suite.card for suite in _SUITES)
    assert all(texts.card for texts in _SETS)


@cache
def _words(text: str) -> list[str]:
    """Return the words in lower case; a Chinese character is a word."""
    return _WORD.findall(text.lower())


@cache
def _sequences(text: str) -> frozenset[tuple[str, ...]]:
    words = _words(text)
    last = len(words) - _SHARED_WORDS
    return frozenset(tuple(words[i : i + _SHARED_WORDS]) for i in range(last + 1))


@pytest.mark.parametrize("family", data_names("calib/recipes"))
def test_recipes_of_a_family_parse(family: str) -> None:
    for scheme in schemes_of(family):
        calibration = find_recipe(family, scheme).calibration
        if calibration is not None:
            # Graphs and modules are called with the user's data; a system speaks a shipped set.
            assert (calibration.set is None) == (family in {"onnx", "module"})
            if calibration.set is not None:
                texts = read_calibration_set(calibration.set).texts
                assert calibration.utterances <= len(texts)


_IN_GRAPHS = {"int4-int8"}
_BY_DATA = ("parler-tts", "pocket-tts", "transformers", "module")
_OF_FEW = {"fp8": ("module",), "int4-gptq": _BY_DATA, "int4-inc": _BY_DATA}
_TRAINED = {scheme.name for scheme in SCHEMES if scheme.trained}
_TRAINED.add("mixed")  # of one voice, by a recipe that a search wrote


@pytest.mark.parametrize("family", family_names())
def test_every_family_has_a_recipe_for_every_scheme(family: str) -> None:
    """But not everything is trained, and 8-bit floats need a GPU, which no system is moved to."""
    schemes = {scheme.name for scheme in SCHEMES} - _TRAINED
    schemes -= {scheme for scheme, families in _OF_FEW.items() if family not in families}
    schemes -= set() if family in {"piper", "contract", "onnx"} else _IN_GRAPHS
    assert set(schemes_of(family)) - _TRAINED == schemes


def test_only_ranges_from_calibration_need_it() -> None:
    for family, scheme in product(
        family_names(), ("int8-dynamic", "int8-weight-only", "fp16", "bf16")
    ):
        assert find_recipe(family, scheme).calibration is None
    for family in family_names():
        assert find_recipe(family, "int8-static").calibration is not None


@pytest.mark.parametrize("name", data_names("calib/sets"))
def test_calibration_set_parses(name: str) -> None:
    found = read_calibration_set(name)
    assert found.name == name
    assert len(set(found.texts)) == len(found.texts)


@pytest.mark.parametrize("name", _NAMES)
def test_suite_parses(name: str) -> None:
    if name.startswith("zh"):
        pytest.importorskip("opencc")
    suite = read_suite(name)
    assert suite.name == name
    assert suite.normalizer.split("-")[0] == name.split("-", maxsplit=1)[0]


@pytest.mark.parametrize("name", _NAMES)
def test_digits_and_words_of_a_suite_are_the_same_to_its_normalizer(name: str) -> None:
    """A recognizer may write numbers either way; so a text counts as its spoken form does."""
    pytest.importorskip("num2words")
    if name.startswith("zh"):
        pytest.importorskip("opencc")
        pytest.importorskip("cn2an")
    suite = read_suite(name).with_recognizer("transformers")
    different = [u.text for u in suite.utterances if suite.normalize(u.text) != suite.transcript(u)]
    assert not different


@pytest.mark.parametrize("name", ["en-quick", "en-full"])
def test_the_embedded_recognizer_scores_alike_by_both_normalizers(name: str) -> None:
    """It writes words alone."""
    suite = read_suite(name)
    other = suite.with_recognizer("whisper")
    assert (suite.normalizer, other.normalizer) == ("en-v1", "en-v2")
    assert [*map(suite.transcript, suite.utterances)] == [*map(other.transcript, suite.utterances)]


def test_promised_sizes_of_sets_and_suites() -> None:
    sizes = {found.name: len(found.texts) for found in _SETS}
    assert sizes == {"en": 128, "de": 64, "es": 64, "fr": 64, "zh": 64}
    sizes = {suite.name: len(suite.utterances) for suite in _SUITES}
    assert sizes == {
        **{f"{language}-quick": 24 for language in ("en", "de", "es", "fr", "zh")},
        **{f"{language}-full": 100 for language in ("de", "es", "fr", "zh")},
        "en-full": 200,
    }


_OTHERS = [suite for suite in _SUITES if suite.language != "en-us"]


@pytest.mark.parametrize("suite", _OTHERS, ids=lambda suite: suite.name)
def test_spoken_forms_follow_the_rules(suite: _Texts) -> None:
    """Digits and symbols have a spoken form: words in lower case, without punctuation."""
    for utterance in suite.utterances:
        assert utterance.spoken is not None or not re.search(r"[\d%]", utterance.text)
        if utterance.spoken is not None:
            marks = set("-' ") & set(_MARKS[suite.language])
            pattern = rf"[{_LETTERS[suite.language]}{''.join(sorted(marks))}]+"
            assert re.fullmatch(pattern, utterance.spoken)


_ALL = [(found.name, found.language, [*found.texts]) for found in _SETS]
_ALL += [(suite.name, suite.language, [u.text for u in suite.utterances]) for suite in _SUITES]


@pytest.mark.parametrize(("name", "language", "texts"), _ALL, ids=[each[0] for each in _ALL])
def test_texts_have_the_characters_of_their_language(
    name: str, language: str, texts: list[str]
) -> None:
    """A letter of another alphabet, or one of two code points, looks right and is not."""
    accepted = re.compile(
        rf"[{_LETTERS[language]}0-9{re.escape(_MARKS[language])}]+", re.IGNORECASE
    )
    assert not [text for text in texts if not accepted.fullmatch(text)], name
    assert all(text == unicodedata.normalize("NFC", text) for text in texts)


def _judged(suite: _Texts) -> list[str]:
    spoken = [u.spoken for u in suite.utterances if u.spoken]
    return [*(u.text for u in suite.utterances), *spoken]


def _assert_disjoint(one: list[str], other: list[str]) -> None:
    assert not {tuple(_words(t)) for t in one} & {tuple(_words(t)) for t in other}
    seen = frozenset().union(*map(_sequences, one))
    assert not [(text, seen & _sequences(text)) for text in other if seen & _sequences(text)]


@pytest.mark.parametrize("found", _SETS, ids=lambda found: found.name)
@pytest.mark.parametrize("suite", _SUITES, ids=lambda suite: suite.name)
def test_calibration_and_evaluation_texts_are_disjoint(
    found: CalibrationSet, suite: _Texts
) -> None:
    """Neither a text, nor one that differs in case or punctuation, nor five words in a row."""
    _assert_disjoint([*found.texts], _judged(suite))


def test_no_text_is_in_two_suites() -> None:
    """The same holds between suites, and no text occurs twice in one."""
    for one, other in combinations(_SUITES, 2):
        _assert_disjoint(_judged(one), _judged(other))
    for suite in _SUITES:
        texts = [tuple(_words(u.text)) for u in suite.utterances]
        assert len({*texts}) == len(texts)
