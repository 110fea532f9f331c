"""Recipes of a family in one file: components once, schemes as tables of formats."""

import pathlib
from pathlib import Path

import pytest

from tts_compress.errors import RecipeError, SchemeError
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Calibration, Rule, find_recipe

_FILE = """
version = 1
family = "piper"

[calibration]
set = "en"
utterances = 8

[component.decoder]
match = "dec.*"
operators = ["Conv"]

[component.durations]
match = ["dp.a.*", "dp.b"]

[component.rest]
match = "*"

[scheme.int8]
summary = "best"
format = "qoperator"
calibration = { equalize = true }
[scheme.int8.formats]
durations = "float16"
rest = "int8"
"*" = { format = "int8 static", min_channels = 8 }

[scheme.int8-qat]
base = "int8"
summary = "trained"
calibration = { utterances = 4 }

[scheme.fp16]
summary = "halves"
formats = { durations = "skip", "*" = "float16" }
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a file of three schemes."""
    path = tmp_path / "mine.toml"
    path.write_text(_FILE, encoding="utf-8")
    return str(path)


def test_components_in_their_order_and_the_first_pattern_give_the_rules(path: str) -> None:
    recipe = find_recipe("piper", "int8", path)
    assert recipe.component == (
        Rule(
            match="dec.*",
            operators=("Conv",),
            weights=Weights.INT8,
            activations=Activations.STATIC,
            min_channels=8,
        ),
        Rule(match="dp.a.*", weights=Weights.FLOAT16),
        Rule(match="dp.b", weights=Weights.FLOAT16),
        Rule(match="*", weights=Weights.INT8),
    )
    assert recipe.calibration == Calibration(set="en", utterances=8, equalize=True)


def test_a_trained_scheme_is_its_base_but_for_its_own_keys(path: str) -> None:
    base, trained = (find_recipe("piper", scheme, path) for scheme in ("int8", "int8-qat"))
    assert (trained.component, trained.format) == (base.component, base.format)
    assert trained.summary == "trained"
    assert trained.calibration == Calibration(set="en", utterances=4, equalize=True)


def test_a_skipped_component_is_left_to_those_below_and_nothing_is_calibrated(path: str) -> None:
    recipe = find_recipe("piper", "fp16", path)
    assert [rule.match for rule in recipe.component] == ["dec.*", "*"]
    assert recipe.calibration is None


@pytest.mark.parametrize(
    ("scheme", "before", "after", "message"),
    [
        ("int8-qat", 'base = "int8"', 'base = "int9"', "no valid base 'int9'; accepted: "),
        ("int8-qat", 'base = "int8"', 'base = "int8-qat"', "no valid base 'int8-qat'"),
        ("fp16", '"*" = "float16"', '"*" = "float16 static"', "'fp16', is not .*do not go"),
        ("int8", "min_channels", "channels", "'int8', is not a valid Recipe: .*0.channels"),
        ("int8", '"skip"', "3", "not a valid FamilyFile: scheme.fp16.formats.durations"),
        ("int8", "operators", "operator", "not a valid FamilyFile: component.decoder.operator"),
    ],
)
def test_a_wrong_key_is_named(
    path: str, scheme: str, before: str, after: str, message: str
) -> None:
    pathlib.Path(path).write_text(_FILE.replace(before, after), encoding="utf-8")
    with pytest.raises(RecipeError, match=message):
        find_recipe("piper", scheme, path)


def test_a_scheme_that_the_file_lacks_is_refused_with_those_it_has(path: str) -> None:
    with pytest.raises(SchemeError, match="no scheme 'bf16' for family 'piper'; available: fp16, "):
        find_recipe("piper", "bf16", path)
