"""The damage of each layer, and its savings, alone in each format."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import isfinite
from operator import attrgetter
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from threadpoolctl import threadpool_limits

from tts_compress.compression.workbench import Workbench, read_texts
from tts_compress.environment import describe_environment, installed_version
from tts_compress.errors import ModelError, QuantizationError, RecipeError
from tts_compress.evaluation.metric import Record
from tts_compress.evaluation.store import read_piece, short_hash, write_piece
from tts_compress.folders import make_directory
from tts_compress.models import open_model
from tts_compress.models.base import GraphModel, Model, TTSModel
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.progress import counted
from tts_compress.recipes.formats import Weights
from tts_compress.recipes.recipe import (
    Calibration,
    Group,
    Recipe,
    Rule,
    find_groups,
    find_recipe,
    read_calibration_set,
)
from tts_compress.search.choices import BASELINE, FLOAT32, Format, find_formats
from tts_compress.search.measure import (
    Damage,
    Estimator,
    GraphComparison,
    MeasuredDamage,
    Times,
    has_formula,
    profile_formats,
)
from tts_compress.search.options import SensitivityOptions
from tts_compress.search.outcome import Prediction, Row, Sensitivity

_SHORTEST = 16
"""Characters; a word or two hardly show a voice."""

_NEGLIGIBLE = 1e-3
"""Share of the power of all estimates of a format that the least ones may make together without
being measured: 3 % of its whole damage."""


def short_texts(model: TTSModel, recipe: Recipe, chosen: str | None, count: int) -> tuple[str, ...]:
    """Return the shortest texts of a calibration set from a sentence's length on.

    They are never those of a suite, so that what is found on them is judged on others.

    Args:
        model: Its language decides between the shipped sets.
        recipe: Its calibration table names the set.
        chosen: A set in the place of the recipe's.
        count: Number of texts; fewer where the set is smaller.
    """
    settings = recipe.calibration or Calibration(set="en")
    whole = settings.model_copy(update={"utterances": 10_000})
    texts, _ = read_texts(whole, chosen, 0, model.speaking.language)
    long_enough = [text for text in texts if len(text) >= _SHORTEST] or list(texts)
    return tuple(sorted(long_enough, key=lambda text: (len(text), text))[:count])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """One group in one format, before it is measured."""

    group: Group
    format: Format
    recipe: Recipe
    decisions: tuple[Decision, ...]
    """Those that change something."""

    @property
    def spared_bytes(self) -> int:
        """Bytes that its weights take less of than in FP32, about."""
        stored = {Weights.FLOAT16: 2.0, Weights.BFLOAT16: 2.0, Weights.INT16: 2.0}
        stored |= {Weights.INT12: 1.5, Weights.INT8: 1.0, Weights.INT4: 0.5}
        spared = (d.parameters * (4.0 - stored.get(d.weights, 4.0)) for d in self.decisions)
        return int(sum(spared))


_Measurement: TypeAlias = tuple[MeasuredDamage, int]
"""Damage of a trial that was measured, and the bytes of its graph."""

_ValueT = TypeVar("_ValueT")


class _Stored(Record, Generic[_ValueT]):
    """A value on disk."""

    made_from: dict[str, Any]
    """Everything that decides it."""

    value: _ValueT


def find_sensitivity(
    model: Model | str | Path,
    output: Path | str,
    options: SensitivityOptions | None = None,
) -> Sensitivity:
    """Measure each group of layers of a voice alone in each format.

    A run into the same folder that was interrupted goes on where it ended.
    """
    options = options or SensitivityOptions()
    voice = single_graph(model)
    # Small products would keep every core waiting for the next one.
    with threadpool_limits(1):
        return Experiment(voice, Path(output), options).find()


def single_graph(named: Model | str | Path) -> GraphModel:
    """Return a voice of one ONNX graph as such, opened where it is named by its spec."""
    model = open_model(named) if isinstance(named, str | Path) else named
    if model.manifest is not None:
        raise ModelError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); give the original"
        )
    if not isinstance(model, GraphModel) or len(model.parts) > 1:
        raise ModelError(
            f"'{model.spec}' is not a voice of a single ONNX graph (family {model.family!r}); "
            "only such voices are measured layer by layer: compress it by a scheme, and see "
            "`evaluate --blame`"
        )
    return model


def base_recipe(voice: GraphModel, options: SensitivityOptions) -> Recipe:
    """Return the recipe of the baseline, whose form and calibration hold for every choice."""
    recipe = find_recipe(voice.family, BASELINE, options.recipe)
    if recipe.format == "qdq16":
        raise RecipeError(
            "format 'qdq16' is for NPUs, and computed in FP32 here: neither its times nor its "
            "estimates, which are of 8 bits, would be right; give a recipe of format 'qdq'"
        )
    return recipe


def find_trials(
    bench: Workbench, options: SensitivityOptions, formats: Sequence[Format]
) -> Iterator[Trial]:
    """Yield every group in every format that changes it.

    A format that does the same to a group as one before, such as `int8 static` to a table, is left
    out.
    """
    for group in compressible_groups(bench, options):
        seen: list[tuple[Decision, ...]] = []
        for form in formats:
            rules = [rule for pattern in group.patterns for rule in form.rules(pattern)]
            recipe = bench.recipe.model_copy(update={"component": tuple(rules)})
            try:
                decisions = bench.decisions(recipe)
            except QuantizationError:  # nothing of the group has this format
                continue
            changed = tuple(
                d for d in decisions if d.module in group.modules and d.weights != FLOAT32
            )
            if changed and changed not in seen:
                seen.append(changed)
                yield Trial(group=group, format=form, recipe=recipe, decisions=changed)


def compressible_groups(bench: Workbench, options: SensitivityOptions) -> tuple[Group, ...]:
    """Return the groups of all layers with weights."""
    modules = [layer.module for layer in bench.decisions(bench.recipe) if layer.weight is not None]
    return find_groups(modules, options.groups, each_layer=options.each_layer)


def decisive_settings(recipe: Recipe, options: SensitivityOptions) -> dict[str, Any]:
    """Return what decides measurements beside graph, texts and rules."""
    calibration = recipe.calibration
    stated = options.calibration or (calibration and calibration.set)
    texts = read_calibration_set(stated).texts if stated else ()
    return {
        "calibration": None if calibration is None else calibration.model_dump(mode="json"),
        "observed": short_hash("\n".join([str(options.calibration), *texts])),
        "form": recipe.format,
        "seed": options.seed,
        "onnxruntime": installed_version("onnxruntime"),
        "tts-compress": installed_version("tts-compress"),
    }


class Experiment:
    """Trials of one voice; what an earlier run into the folder measured is not measured again."""

    def __init__(self, voice: GraphModel, folder: Path, options: SensitivityOptions) -> None:
        self._folder, self._options = folder, options
        make_directory(folder)
        options.progress.advance("prepare", 0, 3)
        recipe = base_recipe(voice, options)
        formats = find_formats(voice.family, options.formats)
        self.bench = Workbench(voice, recipe, calibration=options.calibration, seed=options.seed)
        self._texts = short_texts(voice, recipe, options.calibration, options.texts)
        self._base = self.bench.base(recipe.format)
        options.progress.advance("prepare", 1, 3)
        self.comparison = GraphComparison(voice, self._base, self._texts, seed=options.seed)
        self.trials = tuple(find_trials(self.bench, options, formats))
        options.progress.advance("prepare", 2, 3)
        graph = voice.graph().SerializeToString(deterministic=True)
        self._made_from = {
            "sha256": hashlib.sha256(graph).hexdigest(),
            "texts": list(self._texts),
        } | decisive_settings(recipe, options)

    def find(self) -> Sensitivity:
        """Return everything measured."""
        times = self._times()
        self._options.progress.advance("prepare", 3, 3)
        estimates = self._estimates()
        wanted: Sequence[Trial] = self.trials
        if not self._options.everything:
            wanted = worth_measuring(wanted, estimates, Graph(self._base))
        measured = self._measurements(wanted)
        rows = [self._row(t, estimates[t], measured.get(t), times) for t in self.trials]
        rows.sort(key=attrgetter("damage.same_noise", "damage.duration_frames"), reverse=True)
        return Sensitivity(
            model=self.bench.model.spec,
            sha256=self._made_from["sha256"],
            formats=tuple(dict.fromkeys(trial.format.name for trial in self.trials)),
            texts=self._texts,
            seed=self._options.seed,
            environment=describe_environment(),
            reference_bytes=self._reference_bytes,
            reference_ms=sum(times.reference.values()),
            prediction=_prediction(rows),
            rows=tuple(rows),
        )

    def _times(self) -> Times:
        """Return the profiles of whole graphs, which another run on this machine uses again."""
        rules: dict[str, list[Rule]] = {}
        for trial in self.trials:
            rules.setdefault(trial.format.name, []).extend(trial.recipe.component)
        groups = list(dict.fromkeys(trial.group.name for trial in self.trials))
        stated = {
            "times": {name: _stated(several) for name, several in rules.items()},
            "groups": groups,
            "machine": describe_environment()["processor"],
        }
        profile = partial(profile_formats, self.bench, self.comparison.feeds, groups, rules)
        return self._stored(_Stored[Times], stated, profile)

    @cached_property
    def _reference_bytes(self) -> int:
        return len(self._base.SerializeToString())

    @cached_property
    def _estimator(self) -> Estimator:
        self._options.progress.advance("estimate", 0, 1)
        layers = self.bench.decisions(self.bench.recipe)
        return Estimator(self._base, layers, self.comparison)

    def _estimates(self) -> dict[Trial, Damage]:
        """Return what second moments predict of each trial."""
        estimates = {}
        for trial in self.trials:
            stated = {"rules": _stated(trial.recipe.component), "estimate": True}
            estimate = partial(self._estimate, trial)
            estimates[trial] = self._stored(_Stored[Damage], stated, estimate)
        self._options.progress.advance("estimate", 1, 1)
        return estimates

    def _estimate(self, trial: Trial) -> Damage:
        return self._estimator.estimate(trial.decisions)

    def _measurements(self, trials: Sequence[Trial]) -> dict[Trial, _Measurement]:
        """Return damage and size of trials."""

        @cache
        def observe() -> None:
            self.bench.observe([trial.recipe for trial in trials])

        def measure(trial: Trial) -> _Measurement:
            observe()
            graph = self.bench.convert(trial.recipe)
            return self.comparison.measure(graph), len(graph.SerializeToString())

        measured = {}
        for trial in counted(trials, self._options.progress, "measure", len(trials)):
            stated = {"rules": _stated(trial.recipe.component)}
            measured[trial] = self._stored(_Stored[_Measurement], stated, partial(measure, trial))
        return measured

    def _stored(
        self,
        kind: type[_Stored[_ValueT]],
        stated: dict[str, Any],
        measure: Callable[[], _ValueT],
    ) -> _ValueT:
        """Return a value from its file; if there is none, measure it and write one."""
        made_from = self._made_from | stated
        name = short_hash(json.dumps(made_from, sort_keys=True))
        path = self._folder / "measurements" / f"{name}.json"
        piece = read_piece(path, kind, made_from=made_from)
        if piece is None:
            piece = kind(made_from=made_from, value=measure())
            write_piece(path, piece)
        return piece.value

    def _row(
        self, trial: Trial, estimate: Damage, measured: _Measurement | None, times: Times
    ) -> Row:
        saved = trial.spared_bytes
        if measured is not None:
            saved = self._reference_bytes - measured[1]
        return Row(
            group=trial.group.name,
            component=trial.group.component,
            patterns=trial.group.patterns,
            format=trial.format.name,
            parameters=sum(decision.parameters for decision in trial.decisions),
            estimate=estimate,
            measured=measured and measured[0],
            saved_bytes=saved,
            saved_ms=times.saved_ms(trial.group.name, trial.format.name),
        )


def worth_measuring(
    trials: Sequence[Trial], estimates: Mapping[Trial, Damage], graph: Graph
) -> list[Trial]:
    """Return the trials without those that together do next to nothing, by their estimates.

    Trials of a layer that has none are kept.
    """
    kept = {t for t in trials if not all(has_formula(graph, d) for d in t.decisions)}
    for name in dict.fromkeys(trial.format.name for trial in trials):
        several = [trial for trial in trials if trial.format.name == name]
        for field_name in ("same_noise", "duration_frames"):
            power = {trial: getattr(estimates[trial], field_name) ** 2 for trial in several}
            total, least = sum(power.values()), 0.0
            for trial in sorted(several, key=lambda trial: power[trial]):
                least += power[trial]
                if least > _NEGLIGIBLE * total:
                    kept.add(trial)
    return [trial for trial in trials if trial in kept]


def _prediction(rows: Sequence[Row]) -> Prediction:
    """Compare estimates and measurements; of durations where any move, of sound likewise."""
    pairs = [(row.estimate, row.measured) for row in rows if row.measured is not None]
    sound = [(a.same_noise, b.same_noise) for a, b in pairs if b.same_noise > 0.0]
    moved = [(a.duration_frames, b.duration_frames) for a, b in pairs if b.duration_frames > 0.0]
    return Prediction(sound=_rank_correlation(sound), durations=_rank_correlation(moved))


def _rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return Spearman's rank correlation of two values; None from fewer than three pairs."""
    if len(pairs) < 3:
        return None
    from scipy.stats import spearmanr

    first, second = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    correlation = float(spearmanr(first, second).statistic)
    return correlation if isfinite(correlation) else None


def _stated(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    return [rule.model_dump(mode="json") for rule in rules]
