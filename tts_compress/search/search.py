"""The search for the smallest or fastest form of a voice within a budget of words."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from tts_compress.artifact import write_text_atomically
from tts_compress.compression import compress
from tts_compress.compression.workbench import Workbench
from tts_compress.environment import describe_environment
from tts_compress.errors import QuantizationError
from tts_compress.evaluation import EvaluationOptions, evaluate
from tts_compress.evaluation.result import Evaluation
from tts_compress.models import open_model
from tts_compress.models.base import GraphModel, Model
from tts_compress.recipes.family import find_recipe
from tts_compress.recipes.groups import find_groups
from tts_compress.recipes.recipe import Recipe
from tts_compress.search.cost import UNITS, Cost, open_cost
from tts_compress.search.damage import Damage, Listener
from tts_compress.search.formats import (
    BASELINE,
    FLOAT32,
    Choice,
    Space,
    find_formats,
    format_name,
    recipe_toml,
)
from tts_compress.search.greedy import exchanges, greedy_choices, neighbours
from tts_compress.search.options import Objective, SearchOptions, SensitivityOptions
from tts_compress.search.outcome import (
    Judged,
    Point,
    SearchResult,
    Sensitivity,
    admits,
    find_front,
    find_statement,
    judge_words,
)
from tts_compress.search.sensitivity import decisive_settings, find_sensitivity, single_graph
from tts_compress.search.study import POPULATION, StudyOptions, explore, require_optuna

RECIPE_NAME, VOICE = "recipe.toml", "voice"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hunt:
    """Everything that belongs to one search."""

    voice: GraphModel
    folder: Path
    options: SearchOptions
    bench: Workbench
    listener: Listener
    cost: Cost
    space: Space


def search(
    model: Model | str | Path, output: Path | str, options: SearchOptions | None = None
) -> SearchResult:
    """Find the recipe that makes a voice smallest or fastest within a rise of word errors.

    Writes the chosen voice and its recipe into the folder. A search that was interrupted goes on
    where it ended, if it is given the same folder and settings.

    Args:
        model: A voice of one ONNX graph, or its spec.
        output: Folder of everything.
        options: Settings.

    Raises:
        ModelError: The model is no such voice.
        RecipeError: There is no such format, group, suite or calibration set.
        EvaluationError: An evaluation failed.
        ArtifactError: The folder or the storage cannot be used.
        MissingExtraError: Optuna, or a package of the evaluation, is not installed.
    """
    options = options or SearchOptions()
    require_optuna()
    folder = Path(output)
    voice = single_graph(open_model(model) if isinstance(model, str | Path) else model)
    analysis = options.sensitivity
    found = find_sensitivity(voice, folder / "sensitivity", analysis)
    with threadpool_limits(1):
        recipe = find_recipe(voice.family, BASELINE, analysis.recipe)
        bench = Workbench(voice, recipe, calibration=analysis.calibration, seed=analysis.seed)
        base = bench.base(recipe.format)
        listener = Listener(voice, base, found.texts, seed=analysis.seed)
        cost = open_cost(options.objective, voice.graph(), listener.feeds)
        hunt = _Hunt(
            voice=voice,
            folder=folder,
            options=options,
            bench=bench,
            listener=listener,
            cost=cost,
            space=_space(bench, found, analysis),
        )
        limits = _limits(hunt, recipe)
        points = _explore(hunt, found, limits)
    return _judge(hunt, recipe, points, limits)


def _limits(hunt: _Hunt, recipe: Recipe) -> Damage:
    """Return the damage of scheme `int8`, by which candidates are admitted."""
    damage = hunt.listener.measure(hunt.bench.convert(recipe))
    share = hunt.options.damage
    return Damage(
        log_mel_db=damage.log_mel_db * share,
        distortion=None if damage.distortion is None else damage.distortion * share,
        duration_frames=damage.duration_frames * share,
    )


def _explore(hunt: _Hunt, found: Sensitivity, limits: Damage) -> list[Point]:
    options = hunt.options
    space = hunt.space
    pair = (limits.log_mel_db, limits.duration_frames)
    first = _first_choices(hunt, found, pair)

    def measure(choice: Choice) -> tuple[float, Damage] | None:
        try:
            graph = hunt.bench.convert(space.recipe(choice))
        except (QuantizationError, ValueError):  # nothing to compress, or no such kernels
            return None
        return hunt.cost(graph), hunt.listener.measure(graph)

    made_from = {
        "sha256": found.sha256,
        "texts": found.texts,
        "recipe": space.base.model_dump(mode="json"),
        "groups": [(asdict(group), space.names(group.name)) for group in space.groups],
        "measured": (options.objective, pair),
    } | decisive_settings(space.base, options.sensitivity)
    identity = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    study = StudyOptions(
        trials=options.trials,
        seed=found.seed,
        limits=pair,
        storage=options.storage,
        name=f"{options.objective}-{identity[:12]}",
        progress=options.progress,
    )
    return explore(space, measure, first, hunt.folder, study)


def _first_choices(hunt: _Hunt, found: Sensitivity, limits: tuple[float, float]) -> list[Choice]:
    """Return scheme `int8`, what is predicted to be better than it, and a path to it from FP32."""
    space = hunt.space
    by_time = hunt.options.objective == Objective.LATENCY
    own = _baseline_formats(hunt.bench, space)
    changes = exchanges(found, own, by_time=by_time, limits=limits)
    first = [space.baseline() | change for change in ({}, *changes[:POPULATION])]
    first += greedy_choices(found, by_time=by_time, limits=limits)
    names = {group.name: space.names(group.name) for group in space.groups}
    return [*first, *neighbours(first, names, max(0, POPULATION - len(first)), found.seed)]


def _baseline_formats(bench: Workbench, space: Space) -> dict[str, str]:
    """Return the name of the format that most weights of each group have in scheme `int8`."""
    decided = bench.decisions(space.base)
    found = {}
    for group in space.groups:
        weights: Counter[str] = Counter({FLOAT32: 0})
        for layer in decided:
            if layer.module in group.modules and layer.weight is not None:
                weights[format_name(layer.weights, layer.activations)] += layer.parameters
        found[group.name] = weights.most_common(1)[0][0]
    return found


def _space(bench: Workbench, found: Sensitivity, analysis: SensitivityOptions) -> Space:
    names: dict[str, list[str]] = {}
    for row in found.rows:
        names.setdefault(row.group, []).append(row.format)
    modules = [layer.module for layer in bench.decisions(bench.recipe) if layer.weight is not None]
    groups = find_groups(modules, analysis.groups, each_layer=analysis.each_layer)
    forms = find_formats(bench.model.family, analysis.formats)
    return Space(
        base=bench.recipe,
        groups=tuple(group for group in groups if group.name in names),
        formats={
            group: tuple(form for form in forms if form.name in own) for group, own in names.items()
        },
    )


def _judge(hunt: _Hunt, recipe: Recipe, points: Sequence[Point], limits: Damage) -> SearchResult:
    """Evaluate scheme `int8`, and the cheapest admitted points until one is within the bound.

    Where the scheme itself is within it, only what costs less than the scheme is evaluated.
    """
    options = hunt.options
    front = find_front(points)
    space = hunt.space
    baseline, evaluation = _evaluate(hunt, BASELINE, recipe, None)
    kept = _accepts(baseline, options)
    admitted = sorted(
        (
            one
            for one in points
            if admits(limits, one.damage)
            and one.choice != space.baseline()
            and not (kept and one.cost >= baseline.cost)
        ),
        key=lambda one: one.cost,
    )
    judged: list[Judged] = []
    chosen: Judged | None = None
    for number, point in enumerate(admitted[: options.judged], 1):
        made = space.recipe(point.choice)
        one, _ = _evaluate(hunt, f"{number}", made, point.choice)
        judged.append(one)
        if _accepts(one, options):
            chosen = one
            break
    if kept and (chosen is None or baseline.cost < chosen.cost):
        chosen = baseline
    if chosen is not None:
        taken = recipe if chosen.choice is None else space.recipe(chosen.choice)
        _write_chosen(hunt, taken)
    found = SearchResult(
        model=hunt.voice.spec,
        objective=options.objective,
        unit=UNITS[options.objective],
        bound=_bound(evaluation, options),
        strict=options.strict,
        suite=options.suite,
        recognizer=evaluation.suite.recognizer,
        limits=limits,
        trials=options.trials,
        points=tuple(points),
        front=tuple(front),
        baseline=baseline,
        judged=tuple(judged),
        chosen=None if chosen is None else chosen.name,
        statement="",
        environment=describe_environment(),
    )
    return found.model_copy(update={"statement": find_statement(found)})


def _evaluate(
    hunt: _Hunt, name: str, recipe: Recipe, choice: Choice | None
) -> tuple[Judged, Evaluation]:
    """Compress for good, measure as the trials were, and have the words judged."""
    options = hunt.options
    small = _compressed(hunt, recipe)
    graph = small.graph()
    with threadpool_limits(1):
        cost, damage = hunt.cost(graph), hunt.listener.measure(graph)
    place = hunt.folder / "judged" / name
    settings = EvaluationOptions(
        recognizer=options.recognizer, work=hunt.folder / "work", progress=options.progress
    )
    found = evaluate(hunt.voice, small, suite=options.suite, output=place, options=settings)
    figures = found.headline()
    rise, shares = figures.wer_delta * 100, figures.wer_interval
    interval = None if shares is None else (shares[0] * 100, shares[1] * 100)
    one = Judged(
        name=name,
        choice=None if choice is None else dict(choice),
        cost=cost,
        size_bytes=figures.candidate_bytes,
        damage=damage,
        wer_rise=rise,
        wer_interval=interval,
        distortion=figures.distortion,
        speed=figures.speed,
        words=judge_words(rise, interval, _bound(found, options)),
        report=f"judged/{name}",
    )
    return one, found


def _compressed(hunt: _Hunt, recipe: Recipe) -> GraphModel:
    """Return the voice as `quantize` makes it of a recipe."""
    analysis = hunt.options.sensitivity
    calibration = None if recipe.calibration is None else analysis.calibration
    made = compress(
        hunt.voice,
        recipe.scheme,
        recipe=recipe,
        calibration=calibration,
        seed=analysis.seed,
        progress=hunt.options.progress,
    )
    assert isinstance(made, GraphModel), "a voice stays one"
    return made


def _bound(evaluation: Evaluation, options: SearchOptions) -> float:
    """Return the bound in percentage points."""
    share = evaluation.wer.reference if options.relative else 1.0
    return options.max_wer_rise * share


def _accepts(one: Judged, options: SearchOptions) -> bool:
    return one.words == "kept" or (one.words == "not excluded" and not options.strict)


def _write_chosen(hunt: _Hunt, recipe: Recipe) -> None:
    write_text_atomically(hunt.folder / RECIPE_NAME, recipe_toml(recipe))
    _compressed(hunt, recipe).save(hunt.folder / VOICE, force=True)
