"""INT8 to a stated quality: the fastest formats of a model's layers that keep it, by listening.

A recipe says what can be integers; the model at hand says what should. It speaks calibration texts
in FP32, and again with one group of layers at a time in its compressed form; `budget` has the
choice that saves most. It is made whole, compared again, and made smaller or larger until it fits.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from fnmatch import fnmatchcase
from math import inf, sqrt
from typing import TypeAlias

import onnx
from threadpoolctl import threadpool_limits

from tts_compress.compression.budget import AIM, Option, energies_of, next_budget, select
from tts_compress.compression.sound import (
    DurationComparison,
    Energies,
    SoundDamage,
    SpeechComparison,
    side_by_side,
    speech,
)
from tts_compress.compression.workbench import Job, Workbench
from tts_compress.errors import QuantizationError, TTSCompressWarning
from tts_compress.onnx.precision import length_outputs
from tts_compress.onnx.quantize.convert import STAGE, Conversion, convert
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.session import group_ms
from tts_compress.progress import Progress, report_status
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Group, Recipe, Rule, exact_pattern, find_groups

_Tried: TypeAlias = tuple[Conversion, Recipe, SoundDamage]

_MOST = 0.85
"""Largest share of a bound that is taken, so that other texts keep the bound, too: the interval of
their mean is about a tenth of it."""

_TRIED_WEIGHTS = 3_000_000_000
"""Weights over all candidates of one arithmetic, enough for each block of a voice of 80 million. In
a group of several blocks one layer that breaks the bound keeps all of them in FP32."""

_TINY = 0.001
"""Share of the weights below which a group is not tried in INT8 weights: 16 bits cost no bytes."""

_FEWEST_WEIGHTS = 100_000
"""Weights of a graph from which 12 bits are tried: below, they save little more than what unpacks
them takes, 6 kB for a layer of a medium voice."""

_FEWEST_CALLS = 12
"""Calls that the ranges of channels are found on; after fewer, new texts would exceed them."""

_NEGLIGIBLE = 0.004
"""Share of the time: what saves no more of it is not worth any damage."""

_MOST_FRAMES = 0.001
"""Mean change of durations for a bound of 1, before they are made whole: at 0.5 one symbol of two
thousand, so one text of twenty, lasts a frame (about 10 ms) more or less."""

_LEAST_SHARE = 0.005
"""Share of the weights from which on 12 bits are tried in a group that durations depend on."""

_DECIDING_GROUPS = 8
"""Groups of layers that durations depend on: neighbours of an encoder are alike."""

_FINER = 256.0
"""Energy of weights in 8 bits over that of 12, whose steps are a sixteenth."""

_KINDS = 4
"""Kinds of damage, each of which has a bound: `SoundDamage.shares`, and changes of durations."""

_LITTLE = 0.05
"""Energy of several groups in one form together up to which none of them is heard alone."""

_LEAST_ENERGY = 1e-6
"""Energy that a choice without any counts as, so that the next can have more."""

_TRIES = 6
"""Choices that are made whole and compared."""


def choose(bench: Workbench, bound: float, job: Job) -> tuple[Conversion, Recipe] | None:
    """Return the fastest conversion of a graph within a bound, and its recipe.

    Args:
        bench: Converts the graph; its recipe says what may be integers.
        bound: Largest distortion by this graph.
        job: Has the seed of the noise; its progress is advanced with every group that is tried.

    Returns:
        None where the graph makes no sound that could be judged.
    """
    # Small products would keep every core waiting for the next one.
    with threadpool_limits(1):
        spoken = speech(bench, job)
        if spoken is None:
            return None
        job.progress.advance(STAGE, 0, 1)
        report_status(job.progress, STAGE, "listen to the original")
        comparison = SpeechComparison(spoken, job.seed)
        report_status(job.progress, STAGE, "calibrate")
        groups = _groups(bench)
        _observe(bench, groups)
        report_status(job.progress, STAGE, "compare formats")
        whole, best = _exactly_timed(bench, comparison)
        options = _deciding_options(bench, comparison, whole, bound)
        if best[2].share(bound) > _MOST:
            options |= _options(bench, comparison, whole, bound, groups, job.progress)
        if options:
            best = _fit(bench, comparison, whole, bound, options, best)
    conversion, recipe, damage = best
    if damage.share(bound) > 1:
        warnings.warn(
            f"no choice of formats keeps the bound on the sound: {damage.describe()}; evaluate the "
            "result, or take int8-weight-only or fp16",
            TTSCompressWarning,
            stacklevel=6,  # the caller of `compress`
        )
    summary = (
        f"formats chosen by listening to {comparison.texts} texts: distortion "
        f"{damage.distortion:.2f} of {bound:.2g}, pauses {damage.floor_db:+.1f} dB"
    )
    return conversion, recipe.model_copy(update={"summary": summary})


def _groups(bench: Workbench) -> list[Group]:
    """Return groups of the layers that durations do not depend on."""
    decisions = [d for d in bench.decisions(bench.recipe) if d.weight is not None]
    # What the recipe leaves in FP32, such as the source of a signal, is no part of the choice.
    real = [d.module for d in decisions if d.weights == Weights.FLOAT32]
    left, weights = {*_deciding(bench), *real}, sum(_sizes(decisions).values())
    groups = find_groups(d.module for d in decisions if d.module not in left)
    merged = _merged(groups, most=max(4, int(_TRIED_WEIGHTS / weights)))
    return [_without(group, left) for group in merged]


def _observe(bench: Workbench, groups: Sequence[Group]) -> None:
    """Find what any choice needs: ranges in one pass, moments of what layers read in another."""
    exact = _with_rules(bench.recipe, _stored(_deciding(bench), Weights.INT16))
    coarse = _with_rules(exact, _stored(_deciding_shares(bench, exact), Weights.INT12))
    forms = _forms(bench, exact, groups).values()
    bench.observe([coarse, *(_with_rules(exact, rules) for rules in forms)])


def _exactly_timed(bench: Workbench, comparison: SpeechComparison) -> tuple[Recipe, _Tried]:
    """Return a recipe by which the layers that durations depend on compute in FP32, and its sound.

    Their weights have 16 bits. That moves a symbol in some thousands by a frame. Where it moves one
    in more texts than may move, weights stay in FP32.
    """
    deciding = _deciding(bench)
    whole = _with_rules(bench.recipe, _stored(deciding, Weights.INT16))
    tried = _measured(bench, comparison, whole)
    if deciding and tried[2].is_elsewhere:
        with suppress(QuantizationError):  # durations depend on every layer
            real = _with_rules(bench.recipe, _stored(deciding, Weights.FLOAT32))
            return real, _measured(bench, comparison, real)
    return whole, tried


def _stored(modules: Iterable[str], weights: Weights) -> list[Rule]:
    """Return rules by which modules compute in FP32."""
    return [Rule(match=exact_pattern(module), weights=weights) for module in modules]


def _fit(
    bench: Workbench,
    comparison: SpeechComparison,
    whole: Recipe,
    bound: float,
    options: Mapping[str, Sequence[Option]],
    plain: _Tried,
) -> _Tried:
    """Return the choice of formats that uses a bound best; of those beyond it, the least.

    One of them is the plain recipe.
    """
    best: _Tried | None = None
    most, budgets = -inf, [AIM**2] * _KINDS
    tries: list[list[tuple[float, float]]] = [[] for _ in budgets]
    chosen: dict[str, Option] = {}
    for _ in range(_TRIES):
        last, chosen = chosen, select(options, budgets)
        if chosen == last:
            break
        tried = _measured(bench, comparison, _with_rules(whole, _rules(chosen.values())))
        saved, share = sum(o.saved for o in chosen.values()), tried[2].share(bound)
        if share <= _MOST and saved > most + _NEGLIGIBLE:
            best, most = tried, saved
        used = energies_of(chosen.values())
        # Changes of durations do add up as energies: most texts show none of them.
        shared = *tried[2].shares(bound), sqrt(used[-1])
        for shares, energy, kind in zip(tries, used, shared, strict=True):
            shares.append((max(energy, _LEAST_ENERGY), kind))
        budgets = list(map(next_budget, tries, budgets))
    if best is None:
        safest = _rules(forms[-1] for forms in options.values())
        several = plain, _measured(bench, comparison, _with_rules(whole, safest))
        best = min(several, key=lambda tried: tried[2].share(bound))
    return best


def _part(energies: Energies, groups: int) -> Energies:
    """Return the energies of each of so many groups where all together have these."""
    return tuple(energy / groups for energy in energies)


def _options(
    bench: Workbench,
    comparison: SpeechComparison,
    whole: Recipe,
    bound: float,
    groups: Sequence[Group],
    progress: Progress,
) -> dict[str, list[Option]]:
    """Return what each group can be, with its damage alone and what it saves."""
    sizes, forms = _sizes(bench.decisions(whole)), _forms(bench, whole, groups)
    weights = sum(sizes.values())
    alone = _with_rules(bench.recipe, _stored(_deciding(bench), Weights.FLOAT32))
    saved_ms = _saved_ms(bench, whole, groups, forms)
    shares = {g.name: sum(sizes[module] for module in g.modules) / weights for g in groups}
    tried: dict[str, list[Activations | None]] = {}
    options: dict[str, list[Option]] = {}

    def formed(several: Sequence[Group], arithmetic: Activations | None) -> Recipe:
        """Return the recipe by which several groups have a form, and the others compute in FP32."""
        forms = (_coded(g, arithmetic) if g in several else _rules_of(g) for g in groups)
        return _with_rules(alone, [rule for rules in forms for rule in rules])

    def damage(several: Sequence[Group], arithmetic: Activations | None) -> Energies:
        try:
            return comparison.energies(bench.convert(formed(several, arithmetic)), bound)
        except QuantizationError:
            return inf, inf, inf  # the runtime has no such form of the groups

    for group in groups:
        distinct: dict[tuple[Decision, ...], Activations | None] = {}
        for arithmetic in _worthwhile(saved_ms, group.name, shares[group.name]):
            with suppress(QuantizationError):  # nothing of the group has such a form
                distinct.setdefault(tuple(bench.decisions(formed([group], arithmetic))), arithmetic)
        tried[group.name] = list(distinct.values())
    damages = _damages(damage, groups, tried, progress)
    for group in groups:
        name, share = group.name, shares[group.name]
        coded = [
            Option(
                _coded(group, arithmetic),
                (*damages[name, arithmetic], 0.0),
                saved_ms[arithmetic][name] + 0.75 * share,
            )
            for arithmetic in tried[name]
        ]
        plain = saved_ms[Activations.NONE][name]
        least = min((option.energies for option in coded), key=max, default=None)
        if weights >= _FEWEST_WEIGHTS and least is not None:
            finer = tuple(energy / _FINER for energy in least)
            rules = _rules_of(group, Weights.INT12)
            coded.append(Option(rules, finer, plain + 0.625 * share))
        rules = _rules_of(group, Weights.INT16)
        options[name] = [*coded, Option(rules, (0.0,) * _KINDS, plain + 0.5 * share)]
    return options


def _damages(
    damage: Callable[[Sequence[Group], Activations | None], Energies],
    groups: Sequence[Group],
    tried: Mapping[str, Collection[Activations | None]],
    progress: Progress,
) -> dict[tuple[str, Activations | None], Energies]:
    """Return the damage of each group in each arithmetic that is tried.

    INT8 weights alone do so little that neighbours are heard together, of all groups at first.

    Args:
        damage: Returns that of several groups in an arithmetic; threads call it.
        groups: All of them.
        tried: The arithmetics of each group.
        progress: Is advanced with every group and arithmetic.
    """
    stored = [group for group in groups if Activations.NONE in tried[group.name]]
    parts: list[tuple[Sequence[Group], Activations | None]] = [
        ([g], a) for g in groups for a in tried[g.name] if a != Activations.NONE
    ]
    heard: dict[tuple[str, Activations | None], Energies] = {}
    total = len(stored) + len(parts)
    if stored:
        parts.insert(0, (stored, Activations.NONE))
    with side_by_side() as pool:
        waiting = {pool.submit(damage, *part): part for part in parts}
        while waiting:
            progress.advance("listen", len(heard), total)
            done = next(as_completed(waiting))
            several, arithmetic = waiting.pop(done)
            energies = done.result()
            if len(several) == 1 or max(energies) <= _LITTLE:
                part = _part(energies, len(several))
                heard |= {(group.name, arithmetic): part for group in several}
                continue
            size = max(1, int(len(several) * _LITTLE / max(energies)))  # does little, if all do
            for begin in range(0, len(several), size):
                fewer = several[begin : begin + size]
                waiting[pool.submit(damage, fewer, arithmetic)] = fewer, arithmetic
    progress.advance("listen", total, total)
    return heard


def _worthwhile(
    saved_ms: Mapping[Activations | None, Mapping[str, float]], group: str, share: float
) -> list[Activations | None]:
    """Return the arithmetic with weights in INT8 that may save enough for its damage.

    Args:
        saved_ms: Share of the time that each group saves in each arithmetic.
        group: Name of the group.
        share: Share of all weights that it has.
    """
    worthwhile: list[Activations | None] = [] if share < _TINY else [Activations.NONE]
    for arithmetic, saved in saved_ms.items():
        # Results on codes do more damage than inputs alone.
        does_more = arithmetic == Activations.CHANNELS
        gentler = saved_ms[Activations.INPUTS if does_more else Activations.NONE]
        if saved[group] - gentler[group] >= _NEGLIGIBLE:
            worthwhile.append(arithmetic)
    return worthwhile


def _deciding_options(
    bench: Workbench, comparison: SpeechComparison, whole: Recipe, bound: float
) -> dict[str, list[Option]]:
    """Return what groups of layers that durations depend on can be: weights in 12 or 16 bits."""
    shares = _deciding_shares(bench, whole)
    groups = find_groups(shares)
    large = [g for g in groups if sum(shares[m] for m in g.modules) >= _LEAST_SHARE]
    if not large:
        return {}
    base = bench.base(bench.recipe.format)
    durations = DurationComparison(base, bench.lengths, bench.held_out, bench.model.spec)
    if not durations.exist:
        return {}
    real = _stored(_deciding(bench), Weights.FLOAT32)
    rest = [*real, Rule(match="*", weights=Weights.FLOAT32)]

    def conversion(modules: Iterable[str]) -> Conversion:
        rules = [*_stored(modules, Weights.INT12), *rest]
        return bench.conversion(_with_rules(bench.recipe, rules))

    def damage(conversion: Conversion) -> Energies:
        candidate = convert(conversion)
        (change,) = durations.changes(candidate, [{}])
        return *comparison.energies(candidate, bound), (change / (_MOST_FRAMES * bound)) ** 2

    merged = _merged(large, _DECIDING_GROUPS)
    *heard, changed = damage(conversion(module for group in merged for module in group.modules))
    if max(heard) <= _LITTLE and changed <= AIM**2:
        damages = [_part((*heard, changed), len(merged))] * len(merged)
    else:
        with side_by_side() as pool:
            damages = list(pool.map(damage, [conversion(group.modules) for group in merged]))
    options = {}
    for group, energies in zip(merged, damages, strict=True):
        share = sum(shares[module] for module in group.modules)
        coarse, fine = (tuple(_stored(group.modules, w)) for w in (Weights.INT12, Weights.INT16))
        options[group.name] = [
            Option(coarse, energies, 0.625 * share),
            Option(fine, (0.0,) * _KINDS, 0.5 * share),
        ]
    return options


def _deciding_shares(bench: Workbench, whole: Recipe) -> dict[str, float]:
    """Return the share of all weights that each module has which durations depend on.

    Empty for a graph so small that 12 bits are not tried.
    """
    decisions, deciding = bench.decisions(whole), _deciding(bench)
    sizes = _sizes(decisions)
    weights = sum(sizes.values())
    if weights < _FEWEST_WEIGHTS:
        return {}
    fine = (d.module for d in decisions if d.weights == Weights.INT16)
    return {module: sizes[module] / weights for module in fine if module in deciding}


def _sizes(decisions: Sequence[Decision]) -> Mapping[str, float]:
    """Return the weights that each module stores; those that operators share are divided."""
    decisions = [d for d in decisions if d.weight is not None]
    readers, sizes = Counter(d.tensor for d in decisions), defaultdict[str, float](float)
    for decision in decisions:
        sizes[decision.module] += decision.parameters / readers[decision.tensor]
    return sizes


def _merged(groups: Sequence[Group], most: int) -> list[Group]:
    """Return at most so many groups, neighbours joined."""
    size = max(1, -(-len(groups) // most))
    joined = []
    for begin in range(0, len(groups), size):
        several = groups[begin : begin + size]
        patterns = tuple(pattern for group in several for pattern in group.patterns)
        modules = tuple(module for group in several for module in group.modules)
        joined.append(Group(name=several[0].name, patterns=patterns, modules=modules))
    return joined


def _without(group: Group, modules: Iterable[str]) -> Group:
    """Return a group whose patterns match none of certain modules that are not in it."""
    if not any(fnmatchcase(module, p) for module in modules for p in group.patterns):
        return group
    exact = tuple(exact_pattern(module) for module in group.modules)
    return Group(name=group.name, patterns=exact, modules=group.modules)


def _forms(
    bench: Workbench, whole: Recipe, groups: Sequence[Group]
) -> dict[Activations | None, list[Rule]]:
    """Return the rules of all groups for each arithmetic with weights in INT8 that is tried.

    None stands for the recipe's own. Its calibrated integers are one region of a graph: of a group
    alone little is left of what they save, and more of what they damage.
    """
    tried: list[Activations | None] = [Activations.NONE]
    if whole.format == "qoperator" and bench.calls().total >= _FEWEST_CALLS:
        tried += [Activations.CHANNELS, Activations.INPUTS]
    if len(tried) == 1 or any(d.activations == Activations.DYNAMIC for d in bench.decisions(whole)):
        tried.append(None)
    return {a: [rule for group in groups for rule in _coded(group, a)] for a in tried}


def _saved_ms(
    bench: Workbench,
    whole: Recipe,
    groups: Sequence[Group],
    forms: Mapping[Activations | None, Sequence[Rule]],
) -> dict[Activations | None, dict[str, float]]:
    """Return the share of FP32's time that each group takes less of in each arithmetic."""
    calls = [next(bench.calls().feeds())]
    blocks = {block.name: group.name for group in groups for block in find_groups(group.modules)}

    def group_times(graph: onnx.ModelProto) -> dict[str, float]:
        times = {"": 0.0} | {group.name: 0.0 for group in groups}
        for block, ms in group_ms(graph, calls, list(blocks)).items():
            times[blocks.get(block, "")] += ms
        return times

    before, names = group_times(bench.model.graph(bench.part)), [group.name for group in groups]
    total = sum(before.values())
    saved: dict[Activations | None, dict[str, float]] = {}
    for arithmetic, rules in forms.items():
        after = group_times(bench.convert(_with_rules(whole, rules)))
        saved[arithmetic] = {g: max(0.0, before[g] - after[g]) / total for g in names}
    return saved


def _measured(bench: Workbench, comparison: SpeechComparison, recipe: Recipe) -> _Tried:
    conversion = bench.conversion(recipe)
    return conversion, recipe, comparison.damage(convert(conversion))


def _rules(options: Iterable[Option]) -> list[Rule]:
    return [rule for option in options for rule in option.rules]


def _rules_of(
    group: Group,
    weights: Weights = Weights.FLOAT32,
    arithmetic: Activations = Activations.NONE,
) -> tuple[Rule, ...]:
    """Return rules by which a group gets a form; what has no such form keeps its weights so."""
    stored = tuple(Rule(match=pattern, weights=weights) for pattern in group.patterns)
    if arithmetic == Activations.NONE:
        return stored
    rules = [rule.model_copy(update={"activations": arithmetic}) for rule in stored]
    return (*rules, *stored)


def _coded(group: Group, arithmetic: Activations | None) -> tuple[Rule, ...]:
    """Return rules by which a group has INT8 weights in an arithmetic; None is the recipe's own."""
    return () if arithmetic is None else _rules_of(group, Weights.INT8, arithmetic)


def _deciding(bench: Workbench) -> list[str]:
    """Return the modules with a layer that durations depend on."""
    deciding = length_outputs(bench.base(bench.recipe.format), bench.lengths)
    layers = (d for d in bench.decisions(bench.recipe) if d.weight is not None)
    return list(dict.fromkeys(d.module for d in layers if d.output in deciding))


def _with_rules(recipe: Recipe, rules: Sequence[Rule]) -> Recipe:
    return recipe.model_copy(update={"component": (*rules, *recipe.component)})
