"""The data folders: every shipped file parses, and no model is judged on what it was fitted to."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tts_compress.config import data_names
from tts_compress.evaluation.gates import read_gates
from tts_compress.evaluation.suite import read_suite
from tts_compress.families import family_names
from tts_compress.recipes.family import find_recipe, schemes_of
from tts_compress.recipes.recipe import read_calibration_set
from tts_compress.recipes.schemes import SCHEMES

_SHARED_WORDS = 5


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def _sequences(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    return {tuple(words[i : i + _SHARED_WORDS]) for i in range(len(words) - _SHARED_WORDS + 1)}


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


_IN_TORCH = {"int4-weight-only", "fp8"}
_TRAINED = {scheme.name for scheme in SCHEMES if scheme.trained}


@pytest.mark.parametrize("family", family_names())
def test_every_family_has_a_recipe_for_every_scheme(family: str) -> None:
    """But four bits and 8-bit floats are for what runs in torch, and not everything is trained."""
    schemes = {scheme.name for scheme in SCHEMES} - _TRAINED
    if family in {"piper", "onnx"}:
        schemes -= _IN_TORCH
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


@pytest.mark.parametrize("name", data_names("eval/suites"))
def test_suite_parses(name: str) -> None:
    assert read_suite(name).name == name


@pytest.mark.parametrize("name", data_names("eval/gates"))
def test_gates_parse(name: str) -> None:
    assert read_gates(name) is not None


def test_promised_sizes_of_sets_and_suites() -> None:
    assert len(read_calibration_set("en").texts) == 128
    assert len(read_suite("en-quick").utterances) == 24
    assert len(read_suite("en-full").utterances) == 200


@pytest.mark.parametrize(
    ("calibration", "suite"), list(product(data_names("calib/sets"), data_names("eval/suites")))
)
def test_calibration_and_evaluation_texts_are_disjoint(calibration: str, suite: str) -> None:
    """Neither a text, nor one that differs in case or punctuation, nor five words in a row."""
    fitted = read_calibration_set(calibration).texts
    judged = [u.text for u in read_suite(suite).utterances]
    judged += [u.spoken for u in read_suite(suite).utterances if u.spoken]
    assert not set(fitted) & set(judged)
    assert not {tuple(_words(t)) for t in fitted} & {tuple(_words(t)) for t in judged}
    seen = set().union(*map(_sequences, fitted))
    assert not [(text, seen & _sequences(text)) for text in judged if seen & _sequences(text)]
