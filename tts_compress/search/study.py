"""The search for choices by Optuna, in a storage that several processes may share."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tts_compress.errors import ArtifactError, MissingExtraError, first_line
from tts_compress.progress import Progress
from tts_compress.search.choice import Choice, Space
from tts_compress.search.damage import Damage
from tts_compress.search.outcome import Point

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

POPULATION = 16
"""Choices of a generation."""

_Measure: TypeAlias = Callable[[Choice], tuple[float, Damage] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Settings of a study."""

    trials: int
    """Choices that are measured in all, by all processes that share the storage."""

    seed: int
    limits: tuple[float, float]
    """Log-mel distance and change of durations that are admitted."""

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
    optuna.logging.set_verbosity(optuna.logging.WARNING)


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
        ArtifactError: The storage cannot be used.
    """
    study = _open_study(folder, options)
    from optuna.trial import TrialState

    if not study.trials:
        for choice in first:
            study.enqueue_trial(dict(choice))
    finished = TrialState.COMPLETE, TrialState.PRUNED
    while (done := len(study.get_trials(states=finished))) < options.trials:
        options.progress.advance("search", done, options.trials)
        study.optimize(partial(_try_choice, space, measure, options.limits), n_trials=1)
    options.progress.advance("search", options.trials, options.trials)
    return _points(study.get_trials(states=(TrialState.COMPLETE,)))


def _open_study(folder: Path, options: StudyOptions) -> Any:
    require_optuna()
    import optuna

    # Before Optuna 5 a sampler was given a function; from 7 on it takes none.
    older: dict[str, Any] = {} if _states_constraints() else {"constraints_func": _constraints}
    sampler = optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=options.seed, **older)
    try:
        return optuna.create_study(
            storage=_storage(options.storage, folder),
            sampler=sampler,
            study_name=options.name,
            directions=["minimize", "minimize"],
            load_if_exists=True,
        )
    except Exception as error:  # databases share no base class of errors
        raise ArtifactError(
            f"the storage '{options.storage or folder}' cannot be used: {first_line(error)}"
        ) from error


def _try_choice(
    space: Space, measure: _Measure, limits: tuple[float, float], trial: Any
) -> tuple[float, float]:
    """Measure the choice that a trial suggests, and note its damage with it."""
    import optuna

    choice = {
        group.name: trial.suggest_categorical(group.name, space.names(group.name))
        for group in space.groups
    }
    found = measure(choice)
    if found is None:
        raise optuna.TrialPruned
    cost, damage = found
    parts = {"sound": damage.log_mel_db, "durations": damage.duration_frames}
    over = {name: part - limits[place] for place, (name, part) in enumerate(parts.items())}
    trial.set_user_attr("damage", damage.model_dump(mode="json"))
    trial.set_user_attr("over", list(over.values()))
    if _states_constraints():
        for name, value in over.items():
            trial.set_constraint(name, value)
    return cost, damage.log_mel_db


def _states_constraints() -> bool:
    import optuna

    return hasattr(optuna.trial.Trial, "set_constraint")


def _points(trials: Sequence[Any]) -> list[Point]:
    found: dict[str, Point] = {}
    for trial in trials:
        choice = {name: str(value) for name, value in trial.params.items()}
        damage = Damage.model_validate(trial.user_attrs["damage"])
        point = Point(choice=choice, cost=trial.values[0], damage=damage)
        found.setdefault(str(sorted(choice.items())), point)
    return list(found.values())


def _constraints(trial: Any) -> Sequence[float]:
    over: list[float] = trial.user_attrs.get("over", [1.0, 1.0])
    return over


def _storage(url: str | None, folder: Path) -> "str | BaseStorage":
    if url is not None:
        return url
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the storage is marked as experimental in some versions
        return JournalStorage(JournalFileBackend(str(folder / "study.log")))
