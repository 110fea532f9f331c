"""Choices as recipes, the first ones of a search, the front, and what is said of a bound."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tts_compress.errors import RecipeError
from tts_compress.models import open_model
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.session import group_of
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import find_groups, find_recipe, scheme_of
from tts_compress.search.choices import (
    BASELINE,
    SCHEME,
    Space,
    find_formats,
    find_options,
    recipe_toml,
    selections,
)
from tts_compress.search.measure import MeasuredDamage
from tts_compress.search.outcome import Point, Prediction, Row, Sensitivity, find_front, judge_words
from tts_compress.search.sensitivity import single_graph


@pytest.fixture(scope="module")
def space() -> Space:
    groups = find_groups(["dec.ups.0", "dec.ups.1", "flow.flows.6.pre"])
    forms = find_formats("piper", ["float16", "int8", "int8 static"])
    return Space(
        base=find_recipe("piper", "int8"),
        groups=groups,
        formats={group.name: forms for group in groups},
    )


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ({"dec.ups.0": "int8 static", "flow.flows.6": "float16"}, "qoperator"),
        ({"dec.ups.0": "int8", "dec.ups.1": "float16"}, "qdq"),
    ],
)
def test_a_recipe_is_read_back_as_it_was_written(
    space: Space, choice: Mapping[str, str], form: str, tmp_path: Path
) -> None:
    recipe = space.recipe(choice)
    assert recipe.format == form
    assert (recipe.calibration is not None) == (form == "qoperator")
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_toml(recipe), "utf-8")
    assert scheme_of(path) == SCHEME
    assert find_recipe("piper", SCHEME, path) == recipe
    covering = next(r for r in recipe.component if r.covers("flow.flows.6.pre", "Conv"))
    assert covering.weights == choice.get("flow.flows.6", "float32")


@pytest.mark.slow
def test_every_group_as_in_the_scheme_is_the_scheme() -> None:
    graph = single_graph(open_model("demo")).graph()
    scheme = find_recipe("piper", BASELINE)
    decided = decide(graph, scheme)
    groups = find_groups([layer.module for layer in decided if layer.weight is not None])
    forms = {group.name: find_formats("piper", ["float16"]) for group in groups}
    space = Space(base=scheme, groups=groups, formats=forms)
    assert decide(graph, space.recipe(space.baseline())) == decided
    choice = space.baseline() | {"dec.ups.0": "float16"}
    changed = zip(decided, decide(graph, space.recipe(choice)), strict=True)
    assert {one.module for one, other in changed if one != other} == {"dec.ups.0"}


def test_nothing_but_fp32_is_no_recipe(space: Space) -> None:
    with pytest.raises(ValueError, match="every group is in FP32"):
        space.recipe({"dec.ups.0": "float32"})


def _damage(distortion: float, **others: float) -> MeasuredDamage:
    given = {"same_noise": distortion, "floor_db": 0.0, "duration_frames": 0.0} | others
    return MeasuredDamage(distortion=distortion, **given)


def _row(group: str, form: str, damage: float, saved: int) -> Row:
    found = _damage(damage)
    return Row(
        group=group,
        component=group,
        patterns=(group,),
        format=form,
        parameters=1,
        estimate=found,
        measured=found,
        saved_bytes=saved,
        saved_ms=-float(saved),
    )


def _sensitivity(rows: list[Row]) -> Sensitivity:
    return Sensitivity(
        model="x",
        sha256="",
        formats=("float16", "int8"),
        texts=(),
        seed=0,
        environment={},
        reference_bytes=1,
        reference_ms=1.0,
        prediction=Prediction(sound=None, durations=None),
        rows=tuple(rows),
    )


def test_first_choices_save_most_for_the_least_damage() -> None:
    rows = [
        _row("a", "int8", 0.1, 300),
        _row("a", "float16", 0.001, 200),
        _row("b", "int8", 0.9, 300),
        _row("b", "float16", 0.001, 200),
        _row("c", "int8", 0.5, -10),
    ]
    found = _sensitivity(rows)
    choices = selections(find_options(found, by_time=False, bound=0.2))
    assert choices[0] == {"a": "int8", "b": "float16", "c": "float32"}
    assert choices[-1] == {"a": "int8", "b": "int8", "c": "float32"}  # whatever it does
    by_time = selections(find_options(found, by_time=True, bound=9.0))
    assert by_time == [{"a": "float32", "b": "float32", "c": "int8"}]


def test_the_front_has_what_no_other_is_better_than() -> None:
    pairs = [(3.0, 0.1), (1.0, 0.9), (2.0, 0.5), (2.5, 0.6), (1.0, 1.0)]
    points = [Point(choice={}, cost=cost, damage=_damage(value)) for cost, value in pairs]
    front = [(point.cost, point.damage.distortion) for point in find_front(points)]
    assert front == [(1.0, 0.9), (2.0, 0.5), (3.0, 0.1)]


def test_a_bound_is_on_distortion_pauses_and_durations() -> None:
    """As of `quantize --quality`, but for durations, which may move a little."""
    assert _damage(0.25).share(0.5) == pytest.approx(0.5)
    assert _damage(0.25, floor_db=6.0).share(0.5) == pytest.approx(2.0)
    assert _damage(0.25, duration_frames=0.02).share(0.5) == pytest.approx(2.0)
    assert _damage(-0.1).share(0.5) == 0.0


def test_energies_are_squares_of_the_bound() -> None:
    assert _damage(0.25).energy(0.5) == pytest.approx(0.25)
    assert _damage(0.25, pause_noise=0.3).energy(0.5) == pytest.approx(0.3)
    assert _damage(0.25, moment=0.45).energy(0.5) == pytest.approx(2.25)
    assert _damage(0.25, duration_frames=0.01).energy(0.5) == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("rise", "interval", "words"),
    [
        (0.2, (-0.3, 0.5), "kept"),
        (0.2, (-0.7, 1.1), "not excluded"),
        (0.6, (0.1, 1.1), "broken"),
        (0.6, (-2.0, 3.0), "broken"),
    ],
)
def test_a_bound_is_kept_only_where_the_whole_interval_is_within_it(
    rise: float, interval: tuple[float, float], words: str
) -> None:
    assert judge_words(rise, interval, 0.5) == words


_MODULES = [
    "dec.conv_pre",
    "dec.resblocks.1.convs.0",
    "dec.resblocks.1.convs.1",
    "dec.resblocks.10.convs.0",
    "flow.flows.6.pre",
    "flow.flows.6.enc.in_layers.0",
]


def test_layers_are_grouped_up_to_the_first_number_of_their_names() -> None:
    groups = {group.name: group for group in find_groups(_MODULES)}
    assert list(groups) == ["dec.conv_pre", "dec.resblocks.1", "dec.resblocks.10", "flow.flows.6"]
    # Not `dec.resblocks.1*`, which would also match block 10.
    assert groups["dec.resblocks.1"].patterns == ("dec.resblocks.1.*",)
    assert groups["dec.conv_pre"].patterns == ("dec.conv_pre",)
    assert groups["flow.flows.6"].component == "flow"


def test_patterns_that_are_given_come_first_and_take_what_they_match() -> None:
    groups = find_groups(_MODULES, ["flow.*", "*.convs.0"])
    assert [group.name for group in groups[:2]] == ["flow.*", "*.convs.0"]
    assert groups[1].modules == ("dec.resblocks.1.convs.0", "dec.resblocks.10.convs.0")
    assert [group.name for group in groups[2:]] == ["dec.conv_pre", "dec.resblocks.1"]
    assert len(find_groups(_MODULES, each_layer=True)) == len(_MODULES)


def test_a_pattern_without_layers_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"'vocoder.\*' matches no layer.*dec, flow"):
        find_groups(_MODULES, ["vocoder.*"])


def test_formats_are_those_of_the_family_s_recipes_that_help_a_cpu() -> None:
    names = [form.name for form in find_formats("piper")]
    assert {"float16", "int8", "int8 static", "int8 dynamic"} <= set(names)
    assert not {"bfloat16", "float16 float16"} & set(names)
    assert [form.name for form in find_formats("piper", ["bfloat16"])] == ["bfloat16"]
    with pytest.raises(RecipeError, match=r"no format 'int7' for family 'piper'.*'int8 static'"):
        find_formats("piper", ["int7"])


def test_layers_without_an_integer_kernel_are_stored_in_eight_bits() -> None:
    (form,) = find_formats("piper", ["int8 static"])
    computed, stored = form.rules("dec.*")
    assert (computed.weights, computed.activations) == (Weights.INT8, Activations.STATIC)
    assert (stored.weights, stored.activations) == (Weights.INT8, Activations.NONE)


@pytest.mark.parametrize(
    ("operator", "group"),
    [
        ("/dec/resblocks.1/convs.0/Conv", "dec.resblocks.1"),
        ("/dec/resblocks.10/convs.0/Conv_nchwc", "dec.resblocks.10"),
        ("dec.conv_pre.weight.dequantized/DequantizeLinear", "dec.conv_pre"),
        ("/Ceil", ""),
    ],
)
def test_kernels_belong_to_the_group_that_their_name_holds(operator: str, group: str) -> None:
    assert group_of(operator, ["dec.conv_pre", "dec.resblocks.1", "dec.resblocks.10"]) == group
