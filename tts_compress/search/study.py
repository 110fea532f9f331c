"""The search for choices by Optuna, in a storage that several processes may share."""

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tts_compress.errors import ArtifactError, MissingExtraError, TTSCompressError, first_line
from tts_compress.folders import exclusive_folder
from tts_compress.plain import masked
from tts_compress.progress import Progress
from tts_compress.reading import MOST_TEXT_BYTES, check_file
from tts_compress.search.choices import Choice, Space
from tts_compress.search.measure import MeasuredDamage
from tts_compress.search.outcome import Point

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

_POPULATION = 16
"""Choices of a generation."""

_Measure: TypeAlias = Callable[[Choice], tuple[float, MeasuredDamage] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Settings of a study."""

    trials: int
    """Choices that are measured in all, by all processes that share the storage."""

    seed: int
    bound: float
    """Distortion that is admitted."""

    storage: str | None
    """URL of a database that other processes share; None for a file in the folder."""

    name: str
    """Names everything that decides what is measured: another study has another name."""

    progress: Progress


def require_optuna() -> None:
    """Import Optuna.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError(error.name or "optuna", "search") from error
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)  # what it tells, errors tell, too


def explore(
    space: Space,
    measure: _Measure,
    first: Sequence[Choice],
    folder: Path,
    options: StudyOptions,
) -> list[Point]:
    """Measure choices until enough were; return all that were, each once.

    Genetic search (NSGA-II, Deb et al. 2002) for little cost and little damage; choices that do
    more damage than is admitted are worse than those that do not.

    Args:
        space: What can be chosen.
        measure: Returns a choice's cost and damage; None where it cannot be made.
        first: Choices to begin with.
        folder: For the study, where no storage is given.
        options: Settings.

    Raises:
        MissingExtraError: Optuna is not installed.
        ArtifactError: The storage cannot be used, or another process searches into the folder.
    """
    require_optuna()
    from optuna.trial import TrialState

    storage = masked(options.storage or str(folder))
    alone = options.storage is None
    with exclusive_folder(folder, "searching") if alone else nullcontext():
        with _storage_errors(storage):
            study = _open_study(folder, options)
            if not study.trials:
                for choice in first:
                    study.enqueue_trial(dict(choice))
        while True:
            with _storage_errors(storage):
                points = _points(study, space)
                done = len(points) + len(study.get_trials(states=(TrialState.PRUNED,)))
                options.progress.advance("search", min(done, options.trials), options.trials)
                if done >= options.trials:
                    unique = {str(sorted(point.choice.items())): point for point in points}
                    return list(unique.values())
                trial, choice = _next_choice(study, space)
            point = measure(choice)
            with _storage_errors(storage):
                _note(study, trial, point, options.bound)


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


def _open_study(folder: Path, options: StudyOptions) -> Any:
    import optuna

    # Before Optuna 5 a sampler was given a function; from 7 on it takes none.
    older: dict[str, Any] = {} if _states_constraints() else {"constraints_func": _constraints}
    sampler = optuna.samplers.NSGAIISampler(population_size=_POPULATION, seed=options.seed, **older)
    study = optuna.create_study(
        storage=_storage(options.storage, folder),
        sampler=sampler,
        study_name=options.name,
        directions=["minimize", "minimize"],
        load_if_exists=True,
    )
    directions = [direction.name.lower() for direction in study.directions]
    if directions != ["minimize", "minimize"]:
        raise ValueError(
            f"its study {options.name!r} has the directions {directions}, and is no search's"
        )
    return study


def _next_choice(study: Any, space: Space) -> tuple[Any, Choice]:
    trial = study.ask()
    names = {group.name: space.names(group.name) for group in space.groups}
    return trial, {name: trial.suggest_categorical(name, of) for name, of in names.items()}


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
    """Return what was measured, some choices twice.

    Raises:
        ValueError: A trial is of another program.
    """
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


def _storage(url: str | None, folder: Path) -> "str | BaseStorage":
    if url is not None:
        return url
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = folder / "study.log"
    if os.path.lexists(path):
        check_file(path, MOST_TEXT_BYTES)
    # A lock of Optuna's stays where a process was killed, and is waited for. The folder is ours.
    path.with_name("study.log.lock").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the storage is marked as experimental in some versions
        return JournalStorage(JournalFileBackend(str(path)))
