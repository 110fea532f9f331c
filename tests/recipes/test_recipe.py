"""Recipes: what goes with what, which rule decides."""

import json
import pathlib
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.errors import RecipeError, SchemeError
from tts_compress.recipes.formats import SCHEMES, Activations, Weights, find_scheme
from tts_compress.recipes.recipe import (
    Calibration,
    Recipe,
    Rule,
    find_recipe,
    read_calibration_set,
    schemes_of,
)

_RECIPE = """
version = 1
family = "{family}"
scheme = "{scheme}"
summary = "mine"
{calibration}
[[component]]
match = "*"
weights = "{weights}"
activations = "{activations}"
"""

_rules = st.builds(
    Rule,
    match=st.text(max_size=8),
    exclude=st.lists(st.text(max_size=8), max_size=2).map(tuple),
    operators=st.lists(st.sampled_from(["Conv", "MatMul"]), max_size=2).map(tuple),
    weights=st.just("int8"),
    activations=st.sampled_from(["none", "dynamic"]),
)


def _write(folder: Path, **changes: str) -> str:
    values = {"family": "piper", "scheme": "int8", "calibration": "", "weights": "int8"}
    path = folder / "mine.toml"
    path.write_text(_RECIPE.format(**{**values, "activations": "none", **changes}), "utf-8")
    return str(path)


def test_own_recipe_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    assert find_recipe("piper", "int8", _write(tmp_path)).summary == "mine"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"family": "f5-tts"}, "family 'f5-tts', not 'piper'"),
        ({"scheme": "fp16"}, "scheme 'fp16', not 'int8'"),
        ({"weights": "int9"}, "weights"),
        ({"activations": "fp8"}, "activations"),
        ({"activations": "static"}, r"needs a \[calibration\] table"),
        ({"calibration": "[calibration]"}, "no rule has static activations"),
        ({"calibration": 'format = "qoperator"'}, "'qoperator' is a form of static activations"),
        ({"weights": "float16", "activations": "static"}, "accepted: none, float16"),
        ({"weights": "float32", "activations": "dynamic"}, "accepted: none"),
        ({"calibration": "[calibration]\nutterances = 0"}, "utterances"),
        ({"calibration": "[calibration]\npercentile = 100.1"}, "percentile"),
        ({"calibration": "[calibration]\npercentile = nan"}, "percentile"),
        ({"calibration": '[calibration]\nobserver = "guess"'}, "observer"),
        ({"calibration": "[calibration]\nsets = 1"}, "sets"),
    ],
)
def test_wrong_recipe_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str], problem: str
) -> None:
    with pytest.raises(RecipeError, match=problem):
        find_recipe("piper", "int8", _write(tmp_path, **changes))


@pytest.mark.parametrize("algorithm", ["rtn", "inc-rtn", "gptq"])
@pytest.mark.parametrize("table", ["", "[calibration]"])
def test_algorithms_are_exchanged_with_the_calibration_table_in_place(
    tmp_path: Path, algorithm: str, table: str
) -> None:
    """`inc-rtn` was refused with the table that `inc-gptq` beside it needs."""
    path = _write(tmp_path, weights="int4", calibration=table)
    with pathlib.Path(path).open("a", encoding="utf-8") as file:
        file.write(f'algorithm = "{algorithm}"\n')
    if algorithm == "gptq" and not table:
        with pytest.raises(RecipeError, match=r"needs a \[calibration\] table"):
            find_recipe("piper", "int8", path)
        return
    found = find_recipe("piper", "int8", path)
    assert (found.calibration is not None) == (algorithm == "gptq"), "what nothing uses is left out"


def test_recipe_changed_in_a_program_is_checked() -> None:
    shipped = find_recipe("piper", "int8")
    changed = shipped.model_copy(update={"format": "qdq"})
    assert find_recipe("piper", "int8", changed) == changed != shipped
    for wrong in ({"format": "onnx"}, {"format": 5}, {"format": object()}, {"calibration": None}):
        with pytest.raises(RecipeError, match="not a valid recipe: "):
            find_recipe("piper", "int8", shipped.model_copy(update=wrong))
    with pytest.raises(RecipeError, match="'piper-int8' is for scheme 'int8', not 'fp16'"):
        find_recipe("piper", "fp16", shipped)


def test_unknown_scheme_and_family_are_scheme_errors() -> None:
    with pytest.raises(SchemeError, match="unknown scheme 'int5'"):
        find_recipe("piper", "int5")
    with pytest.raises(SchemeError, match="unknown scheme 8; known schemes: int8, "):
        find_recipe("piper", cast("str", 8))
    with pytest.raises(SchemeError, match="no scheme 'int8' for family 'flute'; available: none"):
        find_recipe("flute", "int8")
    assert schemes_of("flute") == []


def test_calibration_set_that_is_no_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="CalibrationSet"):
        read_calibration_set(_write(tmp_path))


@given(rules=st.lists(_rules, min_size=1, max_size=3), summary=st.text(max_size=10))
def test_recipe_survives_the_manifest(rules: list[Rule], summary: str) -> None:
    recipe = Recipe(
        version=1, family="piper", scheme="int8", summary=summary, component=tuple(rules)
    )
    stored: dict[str, Any] = json.loads(json.dumps(recipe.model_dump(mode="json")))
    assert Recipe.model_validate_json(json.dumps(stored)) == recipe


@pytest.mark.parametrize(
    ("sizes", "least"), [([], 1), ([0, 0], 1), ([0, 1, 8, 1], 8), ([5, 5, 5], 5), ([3, 97], 97)]
)
def test_a_share_of_the_weights_is_a_size(sizes: list[int], least: int) -> None:
    """As far as all that are smaller are within it; a model may hold no weights at all."""
    rules = (Rule(match="*", skip_smallest=0.2), Rule(match="*"))
    recipe = Recipe(version=1, family="onnx", scheme="mixed", summary="", component=rules)
    first, second = recipe.for_sizes(sizes).component
    assert (first.min_weights, second.min_weights) == (least, 1)


def test_rule_covers_by_pattern_and_operator() -> None:
    rule = Rule(match="dec.*", operators=("Conv",), exclude=("dec.conv_*",), weights=Weights.INT8)
    assert rule.covers("dec.ups.0", "Conv")
    assert not rule.covers("dec.ups.0", "MatMul")
    assert not rule.covers("decoder.ups.0", "Conv")
    assert rule.excludes("dec.conv_post")
    assert not rule.excludes("dec.ups.0")


def test_tables_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Calibration().utterances = 3


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


_NAMES = [scheme.name for scheme in SCHEMES]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("INT8", "int8"),
        ("int8_dynamic", "int8-dynamic"),
        ("Int8_Weight_Only", "int8-weight-only"),
        ("INT4", "int4-weight-only"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("FP16", "fp16"),
        ("bfloat16", "bf16"),
        ("float8", "fp8"),
        (" int8 ", "int8"),
    ],
)
def test_what_torch_and_others_call_a_scheme_is_understood(given: str, name: str) -> None:
    assert find_scheme(given).name == name


@pytest.mark.parametrize(
    ("given", "suggested"), [("int8-dynamc", "int8-dynamic"), ("int8_statik", "int8-static")]
)
def test_the_nearest_name_is_suggested(given: str, suggested: str) -> None:
    with pytest.raises(SchemeError, match=f"unknown scheme '{given}'; .*mean '{suggested}'"):
        find_scheme(given)


def _is_unknown(text: str) -> bool:
    plain = text.strip().lower().replace("_", "-")
    return plain not in {*_NAMES, "float16", "bfloat16", "float8", "half", "int4"}


@given(st.text().filter(_is_unknown))
def test_unknown_scheme_is_refused_with_the_value_and_all_that_are_known(name: str) -> None:
    with pytest.raises(SchemeError) as caught:
        find_scheme(name)
    assert repr(name) in str(caught.value)
    assert all(known in str(caught.value) for known in _NAMES)


def test_names_and_summaries_are_unique() -> None:
    assert len(set(_NAMES)) == len(_NAMES)
    assert len({scheme.summary for scheme in SCHEMES}) == len(SCHEMES)
