"""Studies: what is in their storages that no search of ours put there, or another one did."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tts_compress.cli import main
from tts_compress.cli import search as command
from tts_compress.errors import ArtifactError, QuantizationError
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import find_groups, find_recipe
from tts_compress.search import search as searching
from tts_compress.search.choices import Choice, Space, find_formats
from tts_compress.search.measure import MeasuredDamage
from tts_compress.search.options import SearchOptions, SensitivityOptions
from tts_compress.search.outcome import Point
from tts_compress.search.search import explore

optuna = pytest.importorskip("optuna")

_SET = """version = 1
name = "mine"
language = "en-us"
texts = ["{}"]
card = {{ summary = "", source = "", licence = "", composition = "" }}
"""
_MODULES = ["dec.ups.0", "dec.ups.1", "flow.flows.6.pre"]
_HARMLESS = MeasuredDamage(same_noise=0.1, duration_frames=0.0, distortion=0.1, floor_db=0.0)


def _space(*groups: str, formats: Sequence[str] = ("float16", "int8")) -> Space:
    found = find_groups(_MODULES, groups)
    forms = find_formats("piper", formats)
    return Space(
        base=find_recipe("piper", "int8"),
        groups=found,
        formats={group.name: forms for group in found},
    )


def _measure(choice: Choice) -> tuple[float, MeasuredDamage] | None:
    return float(len(choice)), _HARMLESS


def _explore(folder: Path, *, measure: Any = _measure, **options: Any) -> list[Point]:
    space = _space()
    given: dict[str, Any] = {"trials": 4, "damage": 1.0, "progress": Silent()}
    settings = SearchOptions(**given | options)
    return explore(space, measure, [space.baseline()], folder, "size-1", settings)


def test_a_study_goes_on_and_is_complete(tmp_path: Path) -> None:
    first = _explore(tmp_path, trials=2)
    assert first[0].choice == _space().baseline()
    again = _explore(tmp_path, trials=6)
    assert again[: len(first)] == first
    assert _explore(tmp_path, trials=6, measure=None) == again, "nothing is measured twice"


def test_a_choice_that_comes_again_is_not_measured_again(tmp_path: Path) -> None:
    """It counts as a trial: of few choices there may be no other one."""
    measured = list[Choice]()

    def measure(choice: Choice) -> Any:
        measured.append(choice)
        return _measure(choice)

    space, options = _space("*", formats=["int8"]), SearchOptions(trials=5, progress=Silent())
    points = explore(space, measure, [space.baseline()], tmp_path, "size-1", options)
    assert [point.choice for point in points] == measured
    assert len(measured) <= 2


def test_searches_of_other_groups_or_formats_share_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(space: Space, **settings: Any) -> str:
        names: list[str] = []
        monkeypatch.setattr(searching, "explore", lambda *given: names.append(given[-2]))
        started = SimpleNamespace(
            _options=SearchOptions(sensitivity=SensitivityOptions(**settings)),
            _sensitivity=SimpleNamespace(sha256="0", texts=("a",)),
            _space=space,
            _folder=tmp_path,
            _measure=None,
            _first_choices=list,
        )
        searching.Search.explore(cast("Any", started))
        return names[0]

    first = name(_space())
    assert name(_space()) == first
    others = [
        name(_space("dec.*")),
        name(_space("flow.*", "dec.*")),
        name(_space(formats=["int8"])),
    ]
    own = tmp_path / "mine.toml"
    for text in ("Good evening.", "It is late."):  # one name, other texts
        own.write_text(_SET.format(text), "utf-8")
        others.append(name(_space(), calibration=str(own)))
    assert len({first, *others}) == 6


@pytest.mark.parametrize("target", ["study.log", "elsewhere", None])
def test_a_lock_that_a_killed_process_left_is_not_waited_for(
    tmp_path: Path, target: str | None
) -> None:
    """It was half a minute; for ever where the output was a relative path."""
    lock = tmp_path / "study.log.lock"
    lock.touch() if target is None else lock.symlink_to(tmp_path / target)
    assert _explore(tmp_path)


def test_a_study_needs_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows few may make one."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "A required privilege is not held by the client")

    monkeypatch.setattr(os, "symlink", refuse)
    assert _explore(tmp_path)


def test_a_choice_that_was_interrupted_is_measured(tmp_path: Path) -> None:
    """It was lost, the recipe of `int8` above all, which is the first."""

    def interrupted(_: Choice) -> Any:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            _explore(tmp_path, measure=interrupted)
    (point,) = _explore(tmp_path, trials=1)
    assert point.choice == _space().baseline()


def test_a_study_without_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "study.log").symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match="cannot be used: it is no regular file"):
        _explore(tmp_path)


def test_a_study_of_another_kind_is_refused(tmp_path: Path) -> None:
    """Each trial failed, and the next one was begun."""
    database = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(storage=database, study_name="size-1")
    with pytest.raises(ArtifactError, match=r"'size-1' has the directions \['minimize'\]"):
        _explore(tmp_path, storage=database)


@pytest.mark.parametrize(
    ("form", "count", "is_judged"), [("int8", 1, True), ("int3", 3, True), ("int8", 3, False)]
)
def test_a_trial_of_another_program_is_refused(
    tmp_path: Path, form: str, count: int, is_judged: bool
) -> None:
    """It was `KeyError: 'damage'`, or Optuna's traceback of a `dynamic value space`."""
    both = ["minimize", "minimize"]
    storage = searching._storage(None, tmp_path)
    study = optuna.create_study(storage=storage, study_name="size-1", directions=both)
    given = {group.name: form for group in _space().groups[:count]}
    trial = optuna.trial.create_trial(
        params=given,
        distributions={n: optuna.distributions.CategoricalDistribution([form]) for n in given},
        values=[1.0, 1.0],
        user_attrs={"damage": _HARMLESS.model_dump()} if is_judged else {},
    )
    study.add_trial(trial)
    with pytest.raises(ArtifactError, match="its trial 0 was not written by this search"):
        _explore(tmp_path)


def test_an_error_of_a_measurement_is_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """Optuna printed it with its traceback, before the command line did."""

    def fail(_: Choice) -> None:
        raise QuantizationError("no such kernel")

    optuna.logging.enable_propagation()
    request.addfinalizer(optuna.logging.disable_propagation)
    with pytest.raises(QuantizationError, match="no such kernel"):
        _explore(tmp_path, measure=fail)
    assert not caplog.records


def test_what_has_no_number_counts_as_measured(tmp_path: Path) -> None:
    """NaN failed the trial, and the same one was begun again without end."""
    silent = _HARMLESS.model_copy(update={"distortion": float("nan")})
    assert _explore(tmp_path, measure=lambda _: (1.0, silent)) == []


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@host/db", "nonsense://u:se@cret@h", "mysql://u@h/d?password=secret"]
)
def test_a_password_is_in_no_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    url: str,
) -> None:
    """Neither in the error of the storage, nor in what is kept of an internal error."""
    with pytest.raises(ArtifactError, match=r"cannot be used") as caught:
        _explore(tmp_path, storage=url)
    assert "***" in str(caught.value)
    assert "cret" not in str(caught.value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["search", "demo", "--output", str(tmp_path / "out"), "--storage", url]
    monkeypatch.setattr("sys.argv", ["tts-compress", *arguments])

    def broken(_: object) -> None:
        raise ZeroDivisionError(url)

    monkeypatch.setattr(command, "run", broken)
    for debug in ("", "1"):
        monkeypatch.setenv("TTS_COMPRESS_DEBUG", debug)
        assert main(arguments) == 70
        assert "cret" not in capsys.readouterr().err
    (kept,) = (tmp_path / "tts-compress" / "errors").iterdir()
    assert "***" in (text := kept.read_text("utf-8"))
    assert "cret" not in text
