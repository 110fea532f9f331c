"""The damage of each layer, and its savings, alone in each format."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from tts_compress.compression.calibration import read_texts
from tts_compress.compression.workbench import Workbench
from tts_compress.environment import describe_environment, installed_version
from tts_compress.errors import ModelError, QuantizationError
from tts_compress.evaluation.metric import Record
from tts_compress.evaluation.store import read_piece, short_hash, write_piece
from tts_compress.folders import make_directory
from tts_compress.models import open_model
from tts_compress.models.base import GraphChain, GraphModel, Model, TTSModel
from tts_compress.models.speakers import stated_language
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.progress import Progress
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.formats import Weights
from tts_compress.recipes.groups import Group, find_groups
from tts_compress.recipes.recipe import Calibration, Recipe, Rule
from tts_compress.search.cost import Times, profile_formats
from tts_compress.search.damage import Damage, Listener
from tts_compress.search.estimate import Estimator
from tts_compress.search.formats import FLOAT32, Format, find_formats
from tts_compress.search.options import SensitivityOptions
from tts_compress.search.outcome import Prediction, Row, Sensitivity, rank_correlation

_SHORTEST = 16
"""Characters; a word or two hardly show a voice."""


def short_texts(model: TTSModel, recipe: Recipe, given: str | None, count: int) -> tuple[str, ...]:
    """Return the shortest texts of a calibration set from a sentence's length on.

    They are never those of a suite, so that what is found on them is judged on others.

    Args:
        model: Its language decides between the shipped sets.
        recipe: Its calibration table names the set.
        given: A set in the place of the recipe's.
        count: Number of texts; fewer where the set is smaller.

    Raises:
        RecipeError: There is no such set.
    """
    settings = recipe.calibration or Calibration(set="en")
    whole = settings.model_copy(update={"utterances": 10_000})
    texts, _ = read_texts(whole, given, 0, stated_language(model))
    long_enough = [text for text in texts if len(text) >= _SHORTEST] or list(texts)
    return tuple(sorted(long_enough, key=lambda text: (len(text), text))[:count])


_NEGLIGIBLE = 1e-3
"""Share of the power of all estimates of a format that the least ones may make together without
being measured: 3 % of its whole damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One group in one format, before it is measured."""

    group: Group
    format: Format
    recipe: Recipe
    decisions: tuple[Decision, ...]
    """Those that change something."""

    @property
    def sounds(self) -> bool:
        """True if more than durations can change."""
        return not all(decision.decides_durations for decision in self.decisions)


class _Profile(Record):
    """Times on disk."""

    made_from: dict[str, Any]
    times: Times


class _Piece(Record):
    """A measurement on disk."""

    made_from: dict[str, Any]
    """Everything that decides it."""

    damage: Damage
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Analysis:
    """Everything that all trials of one model have in common."""

    bench: Workbench
    listener: Listener
    trials: tuple[Trial, ...]
    store: Path
    made_from: dict[str, Any]
    progress: Progress


def find_sensitivity(
    model: Model | str | Path,
    output: Path | str,
    options: SensitivityOptions | None = None,
) -> Sensitivity:
    """Measure each group of layers of a voice alone in each format.

    A run into the same folder that was interrupted goes on where it ended.

    Args:
        model: A voice of one ONNX graph, or its spec.
        output: Folder for measurements that another run can use.
        options: Settings.

    Raises:
        ModelError: The model is no such voice.
        RecipeError: There is no such format, group or calibration set.
        ArtifactError: The folder cannot be written.
    """
    options = options or SensitivityOptions()
    opened = open_model(model) if isinstance(model, str | Path) else model
    voice, folder = single_graph(opened), Path(output)
    make_directory(folder)
    # Small products would keep every core waiting for the next one.
    with threadpool_limits(1):
        options.progress.advance("prepare", 0, 3)
        recipe = find_recipe(voice.family, "int8", options.recipe)
        bench = Workbench(voice, recipe, calibration=options.calibration, seed=options.seed)
        texts = short_texts(voice, recipe, options.calibration, options.texts)
        base = bench.base(recipe.format)
        options.progress.advance("prepare", 1, 3)
        listener = Listener(voice, base, texts, seed=options.seed)
        trials = tuple(find_trials(bench, options))
        options.progress.advance("prepare", 2, 3)
        digest = hashlib.sha256(voice.graph().SerializeToString(deterministic=True)).hexdigest()
        analysis = _Analysis(
            bench=bench,
            listener=listener,
            trials=trials,
            store=folder / "measurements",
            made_from={"sha256": digest, "texts": list(texts)} | decisive_settings(recipe, options),
            progress=options.progress,
        )
        times = _times(analysis)
        options.progress.advance("prepare", 3, 3)
        rows = _measure(analysis, times, everything=options.everything)
    return Sensitivity(
        model=voice.spec,
        sha256=digest,
        formats=tuple(dict.fromkeys(trial.format.name for trial in trials)),
        texts=texts,
        seed=options.seed,
        environment=describe_environment(),
        reference_bytes=len(base.SerializeToString()),
        reference_ms=times.reference_ms,
        prediction=_prediction(rows),
        rows=tuple(sorted(rows, key=_damage, reverse=True)),
    )


def single_graph(model: Model) -> GraphModel:
    """Return a voice of one ONNX graph as such.

    Raises:
        ModelError: The model is another one, or is compressed already.
    """
    if model.manifest is not None:
        raise ModelError(
            f"'{model.spec}' is already compressed ({model.manifest.scheme}); give the original"
        )
    chained = isinstance(model, GraphChain) and model.followers()
    if not isinstance(model, GraphModel) or chained:
        raise ModelError(
            f"'{model.spec}' is not a voice of a single ONNX graph (family {model.family!r}); "
            "only such voices are measured layer by layer: compress it by a scheme, and see "
            "`evaluate --blame`"
        )
    return model


def find_trials(bench: Workbench, options: SensitivityOptions) -> Iterator[Trial]:
    """Yield every group in every format that changes it.

    A format that does the same to a group as one before, such as `int8 static` to a table, is left
    out.
    """
    recipe = bench.recipe
    layers = bench.decisions(recipe)
    convertible = [d.module for d in layers if d.weight is not None]
    groups = find_groups(convertible, options.groups, each_layer=options.each_layer)
    for group in groups:
        seen: list[tuple[Decision, ...]] = []
        for form in find_formats(bench.model.family, options.formats):
            rules = [rule for pattern in group.patterns for rule in form.rules(pattern)]
            made = recipe.model_copy(update={"component": tuple(rules)})
            try:
                decisions = bench.decisions(made)
            except QuantizationError:  # nothing of the group has this format
                continue
            changed = tuple(
                d for d in decisions if d.module in group.modules and d.weights != FLOAT32
            )
            if changed and changed not in seen:
                seen.append(changed)
                yield Trial(group=group, format=form, recipe=made, decisions=changed)


def decisive_settings(recipe: Recipe, options: SensitivityOptions) -> dict[str, Any]:
    """Return what decides measurements beside graph, texts and rules."""
    calibration = recipe.calibration
    return {
        "calibration": None if calibration is None else calibration.model_dump(mode="json"),
        "given": options.calibration,
        "form": recipe.format,
        "seed": options.seed,
        "onnxruntime": installed_version("onnxruntime"),
        "tts-compress": installed_version("tts-compress"),
    }


def _times(analysis: _Analysis) -> Times:
    """Return the profiles of whole graphs, which another run on this machine uses again."""
    rules: dict[str, list[Rule]] = {}
    for trial in analysis.trials:
        rules.setdefault(trial.format.name, []).extend(trial.recipe.component)
    groups = list(dict.fromkeys(trial.group.name for trial in analysis.trials))
    stated = {name: [r.model_dump(mode="json") for r in own] for name, own in rules.items()}
    machine = describe_environment()["processor"]
    made_from = analysis.made_from | {"times": stated, "groups": groups, "machine": machine}
    path = _path(analysis.store, made_from)
    known = read_piece(path, _Profile, made_from=made_from)
    if known is None:
        times = profile_formats(analysis.bench, analysis.listener, groups, rules)
        known = _Profile(made_from=made_from, times=times)
        write_piece(path, known)
    return known.times


def _measure(analysis: _Analysis, times: Times, *, everything: bool) -> list[Row]:
    """Return the rows of all trials; what is on disk is not measured again."""
    estimates = _estimates(analysis)
    wanted = analysis.trials if everything else _worth_measuring(analysis.trials, estimates)
    keys = {id(trial): _made_from(analysis, trial) for trial in wanted}
    known = {id(t): _read(analysis.store, keys[id(t)]) for t in wanted}
    left = [trial for trial in wanted if known[id(trial)] is None]
    if left:
        analysis.bench.observe([trial.recipe for trial in left])
    base_bytes = len(analysis.bench.base(analysis.bench.recipe.format).SerializeToString())
    for done, trial in enumerate(left):
        analysis.progress.advance("measure", len(wanted) - len(left) + done, len(wanted))
        graph = analysis.bench.convert(trial.recipe)
        piece = _Piece(
            made_from=keys[id(trial)],
            damage=analysis.listener.measure(graph, sound=trial.sounds),
            size_bytes=len(graph.SerializeToString()),
        )
        write_piece(_path(analysis.store, piece.made_from), piece)
        known[id(trial)] = piece
    analysis.progress.advance("measure", len(wanted), len(wanted))
    rows = []
    for trial in analysis.trials:
        found = known.get(id(trial))
        size = None if found is None else found.size_bytes
        rows.append(
            Row(
                group=trial.group.name,
                component=trial.group.component,
                patterns=trial.group.patterns,
                format=trial.format.name,
                parameters=sum(decision.parameters for decision in trial.decisions),
                estimate=estimates[id(trial)],
                measured=None if found is None else found.damage,
                saved_bytes=_saved_bytes(trial) if size is None else base_bytes - size,
                saved_ms=times.saved_ms(trial.group.name, trial.format.name),
            )
        )
    return rows


def _estimates(analysis: _Analysis) -> dict[int, Damage]:
    """Return what second moments predict of each trial; read from disk, or estimated at once."""
    keys = {id(t): _made_from(analysis, t) | {"estimate": True} for t in analysis.trials}
    known = {id(t): _read(analysis.store, keys[id(t)]) for t in analysis.trials}
    if any(piece is None for piece in known.values()):
        analysis.progress.advance("estimate", 0, 1)
        bench = analysis.bench
        layers = bench.decisions(bench.recipe)
        estimator = Estimator(bench.base(bench.recipe.format), layers, analysis.listener)
        for trial in analysis.trials:
            heard, moved = estimator.estimate(trial.decisions)
            damage = Damage(log_mel_db=heard, distortion=None, duration_frames=moved)
            piece = _Piece(made_from=keys[id(trial)], damage=damage)
            write_piece(_path(analysis.store, piece.made_from), piece)
            known[id(trial)] = piece
        analysis.progress.advance("estimate", 1, 1)
    return {key: piece.damage for key, piece in known.items() if piece is not None}


def _worth_measuring(trials: Sequence[Trial], estimates: dict[int, Damage]) -> list[Trial]:
    """Return the trials without those that together do next to nothing, by their estimates."""
    kept: set[int] = set()
    for name in dict.fromkeys(trial.format.name for trial in trials):
        own = [id(trial) for trial in trials if trial.format.name == name]
        for field_name in ("log_mel_db", "duration_frames"):
            power = {one: getattr(estimates[one], field_name) ** 2 for one in own}
            total, least = sum(power.values()), 0.0
            for one in sorted(own, key=lambda one: power[one]):
                least += power[one]
                if least > _NEGLIGIBLE * total:
                    kept.add(one)
    return [trial for trial in trials if id(trial) in kept]


def _saved_bytes(trial: Trial) -> int:
    """Return what a trial's weights take less of, where its graph was not made."""
    stored = {Weights.FLOAT16: 2.0, Weights.BFLOAT16: 2.0, Weights.INT8: 1.0, Weights.INT4: 0.5}
    return int(sum(d.parameters * (4.0 - stored.get(d.weights, 4.0)) for d in trial.decisions))


def _prediction(rows: Sequence[Row]) -> Prediction:
    """Compare estimates and measurements; of durations where any move, of sound likewise."""
    pairs = [(row.estimate, row.measured) for row in rows if row.measured is not None]
    heard = [(a.log_mel_db, b.log_mel_db) for a, b in pairs if b.log_mel_db > 0.0]
    moved = [(a.duration_frames, b.duration_frames) for a, b in pairs if b.duration_frames > 0.0]
    return Prediction(
        log_mel=rank_correlation([a for a, _ in heard], [b for _, b in heard]),
        durations=rank_correlation([a for a, _ in moved], [b for _, b in moved]),
    )


def _damage(row: Row) -> tuple[float, float]:
    return row.damage.log_mel_db, row.damage.duration_frames


def _made_from(analysis: _Analysis, trial: Trial) -> dict[str, Any]:
    rules = [rule.model_dump(mode="json") for rule in trial.recipe.component]
    return analysis.made_from | {"rules": rules}


def _path(store: Path, made_from: dict[str, Any]) -> Path:
    return store / f"{short_hash(json.dumps(made_from, sort_keys=True))}.json"


def _read(store: Path, made_from: dict[str, Any]) -> _Piece | None:
    return read_piece(_path(store, made_from), _Piece, made_from=made_from)
