"""The search for the smallest or fastest form of a voice within a budget of words.

Choices are tried by Optuna, in a storage that several processes may share.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from threadpoolctl import threadpool_limits

from tts_compress.artifact import write_text_atomically
from tts_compress.compression import compress
from tts_compress.environment import describe_environment
from tts_compress.errors import (
    ArtifactError,
    EvaluationError,
    QuantizationError,
    TTSCompressError,
    first_line,
    needing,
)
from tts_compress.evaluation import EvaluationOptions, evaluate, read_suite
from tts_compress.evaluation.metrics.error_rates import MISHEARD_AT_MOST, misheard
from tts_compress.evaluation.result import Evaluation
from tts_compress.folders import exclusive_folder, make_directory
from tts_compress.models.base import GraphModel, Model
from tts_compress.plain import masked
from tts_compress.processes import peak_bytes
from tts_compress.reading import MOST_TEXT_BYTES, check_file
from tts_compress.recipes.recipe import Recipe
from tts_compress.search.choices import (
    BASELINE,
    Choice,
    Format,
    Space,
    find_options,
    recipe_toml,
    selections,
)
from tts_compress.search.measure import UNITS, MeasuredDamage, open_cost
from tts_compress.search.options import SearchOptions
from tts_compress.search.outcome import (
    Judged,
    Point,
    SearchResult,
    find_front,
    find_statement,
    judge_words,
)
from tts_compress.search.sensitivity import Experiment, decisive_settings, single_graph

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_POPULATION = 16
"""Choices of a generation."""

_Measure: TypeAlias = Callable[[Choice], tuple[float, MeasuredDamage] | None]


def require_optuna() -> None:
    """Import Optuna."""
    with needing("search"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what it tells, errors tell, too


def explore(
    space: Space,
    measure: _Measure,
    first: Sequence[Choice],
    folder: Path,
    name: str,
    options: SearchOptions,
) -> list[Point]:
    """Try choices until enough were; return all that were measured, each once.

    Genetic search (NSGA-II, Deb et al. 2002) for little cost and little damage; choices that do
    more damage than is admitted are worse than those that do not.

    Args:
        space: All that can be chosen.
        measure: Returns cost and damage of a choice, or None where nothing comes of it.
        first: Choices to begin with.
        folder: Keeps the study, where the options name no database that other processes share; no
            other process uses it.
        name: Names everything that decides what is measured: another study has another name.
        options: The trials are counted over all processes.
    """
    require_optuna()
    from optuna.trial import TrialState

    storage = masked(options.storage or str(folder))
    with _storage_errors(storage):
        study = _open_study(folder, name, options)
        if not study.trials:
            for choice in first:
                study.enqueue_trial(dict(choice))
        if options.storage is None:  # whoever had begun them was interrupted
            for trial in study.get_trials(states=(TrialState.RUNNING,)):
                study.enqueue_trial(trial.system_attrs.get("fixed_params", trial.params))
                study.tell(trial.number, state=TrialState.FAIL)
    while True:
        with _storage_errors(storage):
            points = _points(study, space)
            done = len(points) + len(study.get_trials(states=(TrialState.PRUNED,)))
            options.progress.advance("search", min(done, options.trials), options.trials)
            if done >= options.trials:
                unique = {str(sorted(point.choice.items())): point for point in points}
                return list(unique.values())
            trial = study.ask()
            choice = {
                group.name: trial.suggest_categorical(group.name, space.names(group.name))
                for group in space.groups
            }
        before = next((point for point in points if point.choice == choice), None)
        point = measure(choice) if before is None else (before.cost, before.damage)
        with _storage_errors(storage):
            _note(study, trial, point, options.damage)


@contextmanager
def _storage_errors(storage: str) -> Iterator[None]:
    """Turn errors about a storage into those of this package; databases share no base class."""
    try:
        yield
    except (TTSCompressError, MemoryError):
        raise
    except Exception as error:
        raise ArtifactError(
            f"the storage '{storage}' cannot be used: {masked(first_line(error))}; give another "
            "one, or another output"
        ) from error


def _open_study(folder: Path, name: str, options: SearchOptions) -> Any:
    import optuna

    # Before Optuna 5 a sampler was given a function; from 7 on it takes none.
    older: dict[str, Any] = {} if _states_constraints() else {"constraints_func": _constraints}
    sampler = optuna.samplers.NSGAIISampler(
        population_size=_POPULATION, seed=options.sensitivity.seed, **older
    )
    study = optuna.create_study(
        storage=_storage(options.storage, folder),
        sampler=sampler,
        study_name=name,
        directions=["minimize", "minimize"],
        load_if_exists=True,
    )
    directions = [direction.name.lower() for direction in study.directions]
    if directions != ["minimize", "minimize"]:
        raise ValueError(f"its study {name!r} has the directions {directions}, and is no search's")
    return study


def _note(
    study: Any, trial: Any, measured: tuple[float, MeasuredDamage] | None, bound: float
) -> None:
    """End a trial with the cost and damage of its choice; without them it counts as done."""
    from optuna.trial import TrialState

    share = math.nan if measured is None else measured[1].share(bound)
    if measured is None or not all(map(math.isfinite, (measured[0], share))):
        study.tell(trial, state=TrialState.PRUNED)
        return
    cost, damage = measured
    trial.set_user_attr("damage", damage.model_dump(mode="json"))
    trial.set_user_attr("over", share - 1.0)
    if _states_constraints():
        trial.set_constraint("damage", share - 1.0)
    study.tell(trial, (cost, damage.distortion))


def _states_constraints() -> bool:
    import optuna

    return hasattr(optuna.trial.Trial, "set_constraint")


def _points(study: Any, space: Space) -> list[Point]:
    """Return what was measured, some choices twice."""
    from optuna.trial import TrialState

    names = {group.name: space.names(group.name) for group in space.groups}
    points = []
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        choice = dict(trial.params)
        is_ours = choice.keys() == names.keys() and all(choice[n] in names[n] for n in names)
        if not is_ours or "damage" not in trial.user_attrs:
            raise ValueError(f"its trial {trial.number} was not written by this search")
        damage = MeasuredDamage.model_validate(trial.user_attrs["damage"])
        points.append(Point(choice=choice, cost=trial.values[0], damage=damage))
    return points


def _constraints(trial: Any) -> Sequence[float]:
    return [trial.user_attrs.get("over", 1.0)]


def _storage(url: str | None, folder: Path) -> str | BaseStorage:
    if url is not None:
        return url
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    path = folder / "study.log"
    if os.path.lexists(path):
        check_file(path, MOST_TEXT_BYTES)
    # A lock of Optuna's stays where a process was killed, and is waited for. The folder is ours.
    path.with_name("study.log.lock").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the storage is marked as experimental in some versions
        # Its default is a link, which few may make on Windows.
        return JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))


RECIPE_NAME, VOICE = "recipe.toml", "voice"


def search(
    model: Model | str | Path, output: Path | str, options: SearchOptions | None = None
) -> SearchResult:
    """Find the recipe that makes a voice smallest or fastest within a rise of word errors.

    Writes the chosen voice and its recipe into the folder. A search that was interrupted goes on
    where it ended, if it is given the same folder and settings.
    """
    options = options or SearchOptions()
    require_optuna()
    suite = read_suite(options.suite).with_recognizer(options.recognizer)
    if suite.recognizer == "none":
        raise EvaluationError(
            f"a search judges words, and suite {suite.name!r} has recognizer 'none'; name one by "
            "--recognizer"
        )
    if options.objective == "memory" and not peak_bytes():
        raise EvaluationError(
            "memory cannot be measured on this system; choose another objective, such as size"
        )
    folder = Path(output)
    voice = single_graph(model)
    make_directory(folder)
    with exclusive_folder(folder, "searching"):
        with threadpool_limits(1):
            started = Search(voice, folder, options)
        baseline = started.judge_baseline()  # before the trials: words may show nothing
        with threadpool_limits(1):
            points = started.explore()
        return started.judge(points, *baseline)


class Search:
    """A search of one voice."""

    def __init__(self, voice: GraphModel, folder: Path, options: SearchOptions) -> None:
        self._voice, self._folder, self._options = voice, folder, options
        experiment = Experiment(voice, folder / "sensitivity", options.sensitivity)
        self._sensitivity = experiment.find()
        self._bench, self._comparison = experiment.bench, experiment.comparison
        self._recipe = self._bench.recipe
        in_chunks, feeds = self._recipe.format == "qoperator", self._comparison.feeds
        self._cost = open_cost(options.objective, voice, feeds, in_chunks=in_chunks)
        formats: dict[str, tuple[Format, ...]] = {}
        for trial in experiment.trials:
            formats[trial.group.name] = (*formats.get(trial.group.name, ()), trial.format)
        groups = dict.fromkeys(trial.group for trial in experiment.trials)
        self._space = Space(base=self._recipe, groups=tuple(groups), formats=formats)
        self._accepted: dict[str, GraphModel] = {}
        """The voices that were within the bound, by their names: the baseline and one choice."""

    def explore(self) -> list[Point]:
        """Measure choices on the short texts."""
        options, space = self._options, self._space
        identity = {
            "sha256": self._sensitivity.sha256,
            "texts": self._sensitivity.texts,
            "recipe": space.base.model_dump(mode="json"),
            "groups": [(asdict(group), space.names(group.name)) for group in space.groups],
            "measured": (options.objective, options.damage),
        } | decisive_settings(space.base, options.sensitivity)
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        name = f"{options.objective}-{digest[:12]}"
        return explore(space, self._measure, self._first_choices(), self._folder, name, options)

    def judge_baseline(self) -> tuple[Judged, Evaluation]:
        """Evaluate scheme `int8`; refuse words that show nothing, as its report says."""
        baseline, evaluation = self._evaluate(BASELINE, self._recipe, None)
        heard = evaluation.wer.reference
        if not heard <= MISHEARD_AT_MOST:
            raise EvaluationError(
                f"{misheard(heard)}; choose another recognizer with --recognizer, or another suite"
            )
        return baseline, evaluation

    def judge(
        self, points: Sequence[Point], baseline: Judged, evaluation: Evaluation
    ) -> SearchResult:
        """Evaluate the cheapest points within the bound on damage.

        The first whose words are within their bound is chosen. Where scheme `int8` itself is within
        it, only what costs less than the scheme is evaluated.
        """
        options = self._options
        judged: list[Judged] = []
        for number, point in enumerate(self._admitted(points, baseline), 1):
            recipe = self._space.recipe(point.choice)
            judged.append(self._evaluate(f"{number}", recipe, point.choice)[0])
            if self._accepts(judged[-1]):
                break
        accepted = [voice for voice in [*judged, baseline] if self._accepts(voice)]
        chosen = min(accepted, key=lambda voice: voice.cost, default=None)
        if chosen is not None:
            self._write_chosen(chosen)
        result = SearchResult(
            model=self._voice.spec,
            objective=options.objective,
            unit=UNITS[options.objective],
            bound=self._bound(evaluation),
            strict=options.strict,
            suite=options.suite,
            recognizer=evaluation.suite.recognizer,
            admitted=options.damage,
            trials=options.trials,
            points=tuple(points),
            front=tuple(find_front(points)),
            baseline=baseline,
            judged=tuple(judged),
            chosen=None if chosen is None else chosen.name,
            statement="",
            environment=describe_environment(),
        )
        return result.model_copy(update={"statement": find_statement(result)})

    def _admitted(self, points: Sequence[Point], baseline: Judged) -> list[Point]:
        """Return the points to evaluate, the cheapest first."""
        kept, options = self._accepts(baseline), self._options
        admitted = [
            point
            for point in points
            if point.damage.share(options.damage) <= 1.0
            and not (kept and point.cost >= baseline.cost)
        ]
        return sorted(admitted, key=lambda point: point.cost)[: options.judged]

    def _measure(self, choice: Choice) -> tuple[float, MeasuredDamage] | None:
        """Return a choice's cost and damage; None where it cannot be made."""
        try:
            graph = self._bench.convert(self._space.recipe(choice))
        except (QuantizationError, ValueError):  # nothing to compress, or no such kernels
            return None
        return self._cost(graph), self._comparison.measure(graph)

    def _first_choices(self) -> list[Choice]:
        """Return the recipe of `int8`, and what is predicted to save most within the bound."""
        by_time = self._options.objective in {"latency", "first-audio"}
        options = find_options(self._sensitivity, by_time=by_time, bound=self._options.damage)
        return [self._space.baseline(), *selections(options)]

    def _evaluate(
        self, name: str, recipe: Recipe, choice: Choice | None
    ) -> tuple[Judged, Evaluation]:
        """Compress for good, measure as the trials were, and have the words judged."""
        options = self._options
        small = self._compressed(recipe)
        graph = small.graph()
        with threadpool_limits(1):
            cost, damage = self._cost(graph), self._comparison.measure(graph)
        settings = EvaluationOptions(
            recognizer=options.recognizer, work=self._folder / "work", progress=options.progress
        )
        report = self._folder / "judged" / name
        evaluation = evaluate(
            self._voice, small, suite=options.suite, output=report, options=settings
        )
        figures = evaluation.headline()
        rise, shares = evaluation.wer.delta * 100, evaluation.wer.interval
        interval = None if shares is None else (shares[0] * 100, shares[1] * 100)
        judged = Judged(
            name=name,
            choice=None if choice is None else dict(choice),
            cost=cost,
            size_bytes=figures.candidate_bytes,
            damage=damage,
            wer_rise=rise,
            wer_interval=interval,
            distortion=figures.distortion,
            speed=figures.speed,
            words=judge_words(rise, interval, self._bound(evaluation)),
            report=f"judged/{name}",
        )
        if self._accepts(judged):
            self._accepted[name] = small
        return judged, evaluation

    def _compressed(self, recipe: Recipe) -> GraphModel:
        """Return the voice as `quantize` makes it of a recipe."""
        settings = self._options.sensitivity
        small = compress(
            self._voice,
            recipe.scheme,
            recipe=recipe,
            calibration=None if recipe.calibration is None else settings.calibration,
            seed=settings.seed,
            progress=self._options.progress,
        )
        assert isinstance(small, GraphModel), "a voice stays one"
        return small

    def _bound(self, evaluation: Evaluation) -> float:
        """Return the bound on words in percentage points."""
        share = evaluation.wer.reference if self._options.relative else 1.0
        return self._options.max_wer_rise * share

    def _accepts(self, judged: Judged) -> bool:
        not_excluded = judged.words == "not excluded" and not self._options.strict
        return judged.words == "kept" or not_excluded

    def _write_chosen(self, chosen: Judged) -> None:
        """Write the voice that was judged: formats chosen by time may differ the next time."""
        recipe = self._recipe if chosen.choice is None else self._space.recipe(chosen.choice)
        write_text_atomically(self._folder / RECIPE_NAME, recipe_toml(recipe))
        self._accepted[chosen.name].save(self._folder / VOICE, force=True)
