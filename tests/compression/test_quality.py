"""`int8` to a stated quality: what is chosen, and that it keeps the bound."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import chain, product, repeat
from math import inf
from pathlib import Path
from threading import current_thread, main_thread
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from tts_compress.compression import compress, quality, workbench
from tts_compress.compression.budget import Option, next_budget, select
from tts_compress.compression.quality import choose
from tts_compress.compression.sound import (
    SoundDamage,
    SpeechComparison,
    speech,
)
from tts_compress.compression.workbench import Job, Workbench
from tts_compress.errors import QuantizationError, SchemeError, TTSCompressWarning
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import copy_model, with_outputs
from tts_compress.onnx.nodes import rename_read
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.precision import length_outputs, rounded_durations
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.session import open_session, run_session
from tts_compress.progress import Silent
from tts_compress.recipes.formats import Activations, Quality, Weights
from tts_compress.recipes.recipe import (
    Group,
    Recipe,
    Rule,
    find_groups,
    find_recipe,
    read_calibration_set,
)

_JOB = Job(seed=0, progress=Silent())
_EXACT = Option((), (0.0, 0.0), 0.0)


@pytest.fixture(scope="module")
def bench(tiny: GraphModel, quick_recipe: Callable[[str], Path]) -> Workbench:
    return Workbench(tiny, find_recipe("piper", "int8", quick_recipe("int8")))


@pytest.fixture(scope="module")
def comparison(bench: Workbench) -> SpeechComparison:
    spoken = speech(bench, _JOB)
    assert spoken is not None
    return SpeechComparison(spoken, 0)


def _choose(bench: Workbench, bound: float) -> tuple[Conversion, Recipe]:
    chosen = choose(bench, bound, _JOB)
    assert chosen is not None
    return chosen


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_a_selection_is_near_the_best_of_all(seed: int, kinds: int) -> None:
    """Every combination of six groups is tried; the price loses little of the best saving."""
    draw = np.random.default_rng(seed)

    def option(energy: float, low: float, high: float) -> Option:
        energies = draw.exponential(energy, kinds)
        return Option((), tuple(energies.tolist()), float(draw.uniform(low, high)))

    options = {
        f"{group}": [
            option(0.3, 0.1, 1.0),
            option(0.05, 0.0, 0.3),
            Option((), (0.0,) * kinds, 0.0),
        ]
        for group in range(6)
    }
    budgets = [0.5, 0.2, 0.8][:kinds]

    def fits(chosen: Iterable[Option]) -> bool:
        used = np.sum([option.energies for option in chosen], axis=0)
        return bool(np.all(used <= budgets))

    chosen = select(options, budgets)
    assert fits(chosen.values())
    best = max(
        sum(option.saved for option in combination)
        for combination in product(*options.values())
        if fits(combination)
    )
    assert sum(option.saved for option in chosen.values()) >= 0.85 * best


def test_a_kind_of_damage_with_room_left_holds_nothing_back() -> None:
    """The use of one bound is no reason to save less within the others."""
    options = {f"{group}": [Option((), (0.2, 0.0), 1.0), _EXACT] for group in range(5)}
    assert sum(o.saved for o in select(options, (1.0, 0.1)).values()) == 5.0
    assert sum(o.saved for o in select(options, (0.5, 0.1)).values()) == 2.0


@pytest.mark.parametrize("exponent", [0.35, 0.5, 0.8])
@pytest.mark.parametrize("scale", [0.2, 1.0, 4.0])
def test_budgets_reach_most_of_a_bound_within_the_tries(scale: float, exponent: float) -> None:
    """Errors that do not add up exactly as energies use another share than predicted."""
    shares, budget = list[tuple[float, float]](), 1.0
    for _ in range(6):
        shares.append((budget, scale * budget**exponent))
        budget = next_budget(shares, budget)
    assert any(0.72 <= share <= 0.85 for _, share in shares)


def test_a_budget_that_other_kinds_left_unused_does_not_shrink() -> None:
    few, more, broken = (0.001, 0.02), (0.1, 0.2), (0.3, 1.6)
    assert next_budget([few], 0.64) == 0.64
    assert next_budget([few, more], 0.64) == pytest.approx(1.6)
    assert next_budget([more, few, more], 0.64) == pytest.approx(1.6)  # the latest counts
    assert next_budget([broken], 0.64) == pytest.approx(0.075)
    assert next_budget([broken, (0.1, 0.4)], 0.64) == pytest.approx(0.03**0.5)  # between


def test_a_choice_that_broke_a_bound_is_not_made_again() -> None:
    """Where chance let more energy pass, half-way between both would be more than was used."""
    tried = [(0.3, 0.5), (0.6, 1.4), (0.42, 0.52), (0.38, 1.41)]
    assert next_budget(tried, 0.5) < 0.38
    assert next_budget(tried[:3], 0.5) == pytest.approx((0.42 * 0.6) ** 0.5)


def test_what_moves_lengths_is_never_selected() -> None:
    options = {"a": [Option((), (np.inf, np.inf), 1.0), _EXACT]}
    assert select(options, (100.0, 100.0))["a"] == _EXACT
    assert select(options, (0.0, 0.0))["a"] == _EXACT


@pytest.mark.slow
def test_the_reference_itself_is_undamaged(bench: Workbench, comparison: SpeechComparison) -> None:
    same = comparison.damage(None)
    assert (same.distortion, same.floor_db, same.moved) == (0.0, 0.0, 0)
    assert comparison.damage(bench.convert(bench.recipe)).share(0.5) > 0.0


@pytest.mark.parametrize("refused", [False, True])
def test_weights_that_durations_depend_on_stay_whole_where_16_bits_move_them(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Unless nothing is compressed then, as in a graph all of whose layers decide durations."""

    def measured(bench: Workbench, _: SpeechComparison, recipe: Recipe) -> Any:
        if refused and recipe.component[0].weights == Weights.FLOAT32:
            raise QuantizationError("the recipe compresses nothing in this model")
        moved = SoundDamage(distortion=0.0, floor_db=0.0, moved=1, texts=1)
        return SimpleNamespace(decisions=bench.decisions(recipe)), recipe, moved

    monkeypatch.setattr(quality, "_measured", measured)
    _, (conversion, *_) = quality._exactly_timed(bench, cast("SpeechComparison", None))
    deciding = length_outputs(bench.base("qoperator"), bench.lengths)
    weights = {d.weights for d in conversion.decisions if d.output in deciding and d.weight}
    assert (Weights.INT16 in weights) == refused
    assert (weights == {Weights.FLOAT32}) != refused


@pytest.mark.slow
@pytest.mark.parametrize(("most", "least", "largest"), [(3e-5, 0.1, 0.6), (1.0, 0.8, 1.0)])
def test_weights_get_twelve_bits_where_durations_hardly_change(
    most: float, least: float, largest: float, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is measured again here, on other texts."""
    monkeypatch.setattr(quality, "_FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(quality, "_MOST_FRAMES", most / 0.02)
    conversion, _ = _choose(bench, 0.02)
    base = bench.base("qoperator")
    lengths = length_outputs(base)
    deciding = [d for d in conversion.decisions if d.output in lengths and d.weight]
    coarse = sum(d.parameters for d in deciding if d.weights == Weights.INT12)
    assert least <= coarse / sum(d.parameters for d in deciding) <= largest

    (ceil,) = rounded_durations(base)
    assert isinstance(bench.model, GraphModel)
    sessions = [
        open_session(with_outputs(feed_noise(copy_model(graph)), [ceil.input[0]]), "tiny")
        for graph in (base, convert(conversion))
    ]
    changes = []
    for feeds in bench.model.calibration_calls(read_calibration_set("en").texts[10:18], seed=5):
        before, after = (run_session(session, feeds, "tiny")[0] for session in sessions)
        changes.append(float(np.mean(np.abs(after - before))))
    assert 0.0 < np.mean(changes) < 1.5 * most


@pytest.mark.slow
def test_weights_that_durations_depend_on_keep_16_bits_where_12_are_heard(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "_FEWEST_WEIGHTS", 0)
    monkeypatch.setattr(SpeechComparison, "energies", lambda *_: (np.inf, 0.0, 0.0))
    conversion, _ = _choose(bench, 100.0)
    deciding = length_outputs(bench.base("qoperator"))
    weights = {d.weights for d in conversion.decisions if d.output in deciding and d.weight}
    assert Weights.INT16 in weights
    assert Weights.INT12 not in weights


@pytest.mark.slow
def test_layers_without_names_are_tried_in_integers(bench: Workbench) -> None:
    """Without a module they would all decide durations, as the nameless one among them does."""
    numbered = copy_model(bench.model.graph())
    for index, node in enumerate(numbered.graph.node):
        node.name = f"p2o.{node.op_type}.{index}"
    names = {tensor.name: f"w_{i}" for i, tensor in enumerate(numbered.graph.initializer)}
    for tensor in numbered.graph.initializer:
        tensor.name = names[tensor.name]
    for node in numbered.graph.node:
        rename_read(node, names)
    model = cast("GraphModel", bench.model).with_graphs({"": numbered}, None)
    plain = Workbench(model, bench.recipe, held_out=2)
    groups = quality._groups(plain)
    assert sum(len(group.modules) for group in groups) > 4
    assert not set(quality._deciding(plain)).intersection(m for g in groups for m in g.modules)


@pytest.mark.slow
def test_a_recipe_within_the_bound_is_taken_as_it_is(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices aim at less, but as much as theirs may be its damage, too."""
    monkeypatch.setattr(SoundDamage, "share", lambda *_: 0.83)
    monkeypatch.setattr(quality, "_options", lambda *_: pytest.fail("nothing else is to be tried"))
    conversion, _ = _choose(bench, 0.5)
    assert conversion.static


def test_what_the_recipe_leaves_in_fp32_is_no_part_of_a_choice(bench: Workbench) -> None:
    """The source of a signal had 16 bits in every choice, and 11 dB were left of it."""
    real = Rule(match="dec.conv_pre", weights=Weights.FLOAT32)
    recipe = bench.recipe.model_copy(update={"component": (real, *bench.recipe.component)})
    groups = quality._groups(Workbench(bench.model, recipe))
    assert "dec.conv_pre" not in [module for group in groups for module in group.modules]
    assert not any(fnmatchcase("dec.conv_pre", p) for group in groups for p in group.patterns)


@pytest.mark.parametrize("damage", [3.0, 0.9])
def test_the_least_of_what_breaks_a_bound_is_taken(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, damage: float
) -> None:
    """The recipe had been measured, and worse was taken for it."""
    tried: list[Any] = [
        (name, bench.recipe, SoundDamage(distortion=size, floor_db=0.0))
        for name, size in (("plain", damage), ("safest", 1.0))
    ]
    monkeypatch.setattr(quality, "_measured", lambda *_: tried[1])
    nothing: Any = None
    only = Option((), (0.0,) * 4, 0.0)
    best = quality._fit(bench, nothing, bench.recipe, 0.5, {"g": [only]}, tried[0])
    assert best is min(tried, key=lambda one: one[2].distortion)


def test_a_form_is_heard_only_where_it_saves_more_than_a_gentler_one() -> None:
    none, inputs, channels = Activations.NONE, Activations.INPUTS, Activations.CHANNELS
    saved: dict[Activations | None, dict[str, float]] = {
        none: {"quick": 0.01, "alike": 0.01, "slow": 0.01},
        channels: {"quick": 0.08, "alike": 0.06, "slow": 0.012},
        inputs: {"quick": 0.06, "alike": 0.06, "slow": 0.012},
        None: {"quick": 0.05, "alike": 0.05, "slow": 0.01},
    }
    heard = {group: quality._worthwhile(saved, group, 0.01) for group in saved[none]}
    assert heard["quick"] == [none, channels, inputs, None]
    assert heard["alike"] == [none, inputs, None]
    assert heard["slow"] == [none]
    assert not quality._worthwhile(saved, "slow", 0.0001)


def test_a_weight_that_operators_share_counts_once(bench: Workbench) -> None:
    """Kokoro's text encoder has one layer, which it runs twelve times."""
    decisions = [d for d in bench.decisions(bench.recipe) if d.weight is not None]
    shared = [
        replace(d, module="encoder", output=f"{d.output}.{n}") for d in decisions for n in "ab"
    ]
    sizes = quality._sizes(shared)
    assert sizes == {"encoder": sum(d.parameters for d in decisions)}


@pytest.mark.parametrize(("more", "taken"), [(0.002, "first"), (0.1, "second")])
def test_no_damage_is_taken_for_time_that_cannot_be_measured(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, more: float, taken: str
) -> None:
    tried: list[Any] = [
        (name, bench.recipe, SoundDamage(distortion=size, floor_db=0.0))
        for name, size in (("first", 0.1), ("second", 0.4))
    ]
    turns = chain(tried, repeat(tried[1]))
    monkeypatch.setattr(quality, "_measured", lambda *_: next(turns))
    nothing: Any = None
    options = [Option((), (0.1,) * 4, 0.5), Option((), (0.7, 0.1, 0.1, 0.1), 0.5 + more)]
    best: Any = quality._fit(bench, nothing, bench.recipe, 0.5, {"g": options}, tried[0])
    assert best[0] == taken


@pytest.mark.slow
def test_a_bound_that_nothing_keeps_is_told(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SoundDamage, "share", lambda *_: 4.0)
    monkeypatch.setattr(quality, "_options", lambda *_: {})
    with pytest.warns(TTSCompressWarning, match="keeps the bound on the sound: sound of"):
        _choose(bench, 0.5)


@pytest.mark.slow
def test_forms_that_the_runtime_refuses_are_not_chosen(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(conversion: Conversion) -> onnx.ModelProto:
        if current_thread() is not main_thread():  # of a group alone
            raise QuantizationError("the runtime has no such kernel")
        return convert(conversion)

    monkeypatch.setattr(workbench, "convert", refusing)
    conversion, _ = _choose(bench, 0.004)
    assert not [d for d in conversion.decisions if d.weights == Weights.INT8]


def test_rules_of_a_group_match_no_neighbour_that_decides_durations() -> None:
    (group,) = find_groups(["encoder.0.value", "encoder.0.out"])
    apart = quality._without(group, ["encoder.0.length"])
    matched = {m for m in (*group.modules, "encoder.0.length") for p in apart.patterns if m == p}
    assert matched == set(group.modules)
    assert quality._without(group, ["encoder.1.length"]) is group


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [0, 4])
def test_a_choice_equalizes_no_channels_that_durations_depend_on(
    held_out: int, bench: Workbench
) -> None:
    """There weights have a scale for each row, and lose where their columns are unlike."""
    base = Workbench(bench.model, bench.recipe, held_out=held_out).base("qoperator")
    lengths = length_outputs(base)
    deciding = [node for node in base.graph.node if node.output[0] in lengths]
    names = {name for node in deciding for name in node.input if name.endswith(".equalized")}
    assert bool(names) == (not held_out)
    assert any(tensor.name.endswith(".equalized") for tensor in base.graph.initializer)


@pytest.mark.slow
def test_a_choice_keeps_its_bound(bench: Workbench, comparison: SpeechComparison) -> None:
    """The recipe breaks it; judged by a comparison of its own, the choice keeps it."""
    bound = 0.01
    assert comparison.damage(bench.convert(bench.recipe)).share(bound) > 1.0
    conversion, recipe = _choose(bench, bound)
    damage = comparison.damage(convert(conversion))
    assert damage.share(bound) <= 1.0
    assert not damage.moved
    assert f"of {bound}" in recipe.summary


@pytest.mark.slow
def test_weights_get_twelve_bits_where_eight_break_the_bound(
    bench: Workbench, comparison: SpeechComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "_FEWEST_WEIGHTS", 0)
    conversion, _ = _choose(bench, 0.002)
    assert any(decision.weights == Weights.INT12 for decision in conversion.decisions)
    assert comparison.damage(convert(conversion)).share(0.002) <= 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("energy", "alone"), [(0.01, False), (0.2, True)])
def test_durations_with_little_damage_by_all_groups_are_not_heard_for_each(
    energy: float, alone: bool, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[onnx.ModelProto]()

    def energies(candidate: onnx.ModelProto, _: float) -> tuple[float, float, float]:
        heard.append(candidate)
        return energy, 0.0, 0.0

    comparison: Any = SimpleNamespace(energies=energies)
    monkeypatch.setattr(quality, "_FEWEST_WEIGHTS", 0)
    exact = quality._stored(quality._deciding(bench), Weights.INT16)
    whole = quality._with_rules(bench.recipe, exact)
    deciding = quality._deciding_options(bench, comparison, whole, 1.0)
    assert deciding
    assert len(heard) == 1 + alone * len(deciding)


@pytest.mark.parametrize(
    ("alone", "heard"),
    [
        ([0.001] * 6, ["abcdef"]),
        ([0.01] * 6, ["abcdef", "abcde", "f"]),
        ([0.001, 0.001, 0.04, 0.001, 0.001, 0.03], ["abcdef", "abcd", "ef"]),
        ([0.001] * 5 + [0.1], ["abcdef", "ab", "cd", "ef", "e", "f"]),
        ([0.001] * 5 + [inf], ["abcdef", "a", "b", "c", "d", "e", "f"]),
    ],
    ids=["all at once", "two parts", "unlike parts", "a part twice", "each"],
)
def test_groups_with_little_damage_together_are_not_heard_alone(
    alone: list[float], heard: list[str]
) -> None:
    groups = [Group(name=name, patterns=(name,), modules=(name,)) for name in "abcdef"]
    energies = dict(zip("abcdef", alone, strict=True))
    parts, coded = list[str](), list[str]()

    def damage(several: Sequence[Group], arithmetic: Activations | None) -> tuple[float, ...]:
        names = "".join(group.name for group in several)
        (parts if arithmetic == Activations.NONE else coded).append(names)
        return sum(energies[name] for name in names), 0.0, 0.0

    tried = {name: [Activations.NONE, None] for name in "abcdef"}
    damages = quality._damages(damage, groups, tried, Silent())
    assert sorted(parts) == sorted(heard)
    assert sorted(coded) == list("abcdef")  # results on codes always
    for name in "abcdef":
        assert damages[name, None][0] == energies[name]
        (last,) = [part for part in heard if name in part][-1:]
        share = sum(energies[other] for other in last) / len(last)
        assert damages[name, Activations.NONE][0] == pytest.approx(share)


@pytest.mark.slow
def test_a_graph_without_groups_has_no_options(
    bench: Workbench, comparison: SpeechComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where durations depend on every layer, nothing else is compressed."""
    modules = [d.module for d in bench.decisions(bench.recipe)]
    monkeypatch.setattr(quality, "_deciding", lambda _: modules)
    monkeypatch.setattr(quality, "_saved_ms", lambda *_: {})
    assert quality._options(bench, comparison, bench.recipe, 0.5, [], Silent()) == {}


@pytest.mark.slow
def test_what_decides_lengths_computes_in_fp32(bench: Workbench) -> None:
    conversion, _ = _choose(bench, 100.0)
    deciding = length_outputs(bench.base("qoperator"), bench.lengths)
    shared = [d for d in conversion.decisions if d.output in deciding and d.weight is not None]
    assert any(not d.decides_durations for d in shared)  # the encoder, which is heard as well
    for decision in shared:
        assert decision.activations == Activations.NONE
        assert decision.weights in {Weights.INT16, Weights.FLOAT32}  # what cannot be converted
    assert any(d.weights == Weights.INT16 for d in shared)
    assert any(d.activations == Activations.STATIC for d in conversion.decisions)


@pytest.mark.slow
def test_fast_is_the_recipe(
    tiny: GraphModel,
    quick_recipe: Callable[[str], Path],
    compressed: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    plain = find_recipe("piper", "int8", quick_recipe("int8"))
    assert plain.quality == Quality.FAST
    good = plain.model_copy(update={"quality": Quality.GOOD})
    made = compress(tiny, recipe=good, quality="fast").save(tmp_path / "fast")
    graphs = [(folder / "tiny.onnx").read_bytes() for folder in (made, compressed("int8"))]
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize("family", ["piper", "contract", "onnx"])
def test_int8_keeps_quality_good_where_nobody_says_otherwise(family: str) -> None:
    assert find_recipe(family, "int8").quality == Quality.GOOD


@pytest.mark.parametrize(("scheme", "name"), [("fp16", "good"), ("int8", "best")])
def test_other_uses_are_refused(tiny: GraphModel, scheme: str, name: str) -> None:
    with pytest.raises(SchemeError, match="quality"):
        compress(tiny, scheme, quality=name)
