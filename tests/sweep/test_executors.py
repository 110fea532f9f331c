"""A tiny voice by every executor; workers that die."""

import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.measures import TIMED
from tts_compress.cli import main
from tts_compress.evaluation import read_report
from tts_compress.progress import Silent
from tts_compress.sweep.plan import Unit, read_plan
from tts_compress.sweep.results import open_results
from tts_compress.sweep.run import Outcome, RayPool, plan_sweep, run_units

_QUICK = "[settings]\ntiming_texts = 1\ntiming_runs = 1"


def _report(output: Path) -> dict[str, Any]:
    (path,) = output.glob("reports/*/*/report.json")
    return read_report(path).model_dump(mode="json", exclude=TIMED)


def test_an_executor_that_is_not_known_is_refused(
    write_plan: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", str(write_plan()), "--executor", "slurm"]) == 2
    assert "no executor 'slurm'; available: local, ray" in capsys.readouterr().err


@pytest.mark.slow
def test_every_executor_gives_the_same_report(
    tmp_path: Path,
    tiny_path: Path,
    write_plan: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ray")
    values: dict[str, Any] = {"schemes": ["fp16"], "seeds": [0], "more": _QUICK, "gates": []}
    values["voices"] = [str(tiny_path)]
    local = write_plan("local", **values)
    assert main(["sweep", str(local), "--workers", "2"]) == 0
    capsys.readouterr()
    assert main(["sweep", str(local), "--dry-run", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["units"]
    assert counts["candidate"] == {"units": 2, "done": 2}
    on_ray = write_plan("ray", **values)
    assert main(["sweep", str(on_ray), "--executor", "ray", "--workers", "2"]) == 0
    first = _report(tmp_path / "local-out")
    assert first["utterances"]
    assert _report(tmp_path / "ray-out") == first
    for name in ("local", "ray"):
        results = open_results(str(tmp_path / f"{name}-out"))
        log = results.log(results.keys())
        assert len(log) == len(results.keys()) == 1 + 2 + 2 + 1 + 1
        assert {len(executions) for executions in log.values()} == {1}, "each was done once"


@pytest.mark.slow
@pytest.mark.usefixtures("made_up")
def test_a_task_that_dies_has_its_units_done_by_others(
    tmp_path: Path, write_plan: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    died, log, closed = (tmp_path / name for name in ("died", "log", "closed"))
    log.mkdir()
    closed.mkdir()

    class Process:  # in here, so that it goes to the tasks by value
        def run(self, unit: Any) -> Outcome:
            if [*log.glob(f"{unit.key}-*")]:  # as a program does that finds the result
                return Outcome(unit.key, "done")
            if unit.kind == "candidate":
                with suppress(FileExistsError):  # of two that do candidates at once, one dies
                    with died.open("x") as file:
                        file.write(str(os.getpid()))
                    os._exit(1)
            (log / f"{unit.key}-{os.getpid()}").touch()
            return Outcome(unit.key, "done")

        def close(self) -> None:
            (closed / str(os.getpid())).touch()

    plan = read_plan(write_plan())
    tasks = _tasks(write_plan("same"), monkeypatch)
    lost = run_units(tasks, (), partial(RayPool, plan, 2, Process), Silent())
    ray.shutdown()
    assert lost == {}
    assert died.exists()
    done = [path.name.partition("-")[0] for path in log.iterdir()]
    workers = {path.name.partition("-")[2] for path in log.iterdir()}
    assert {path.name for path in closed.iterdir()} >= workers - {died.read_text()}
    assert sorted(done) == sorted(task.key for task in tasks), "each once"


def _tasks(plan: Path, monkeypatch: pytest.MonkeyPatch) -> list[Unit]:
    """Return the units of a plan whose voice nobody opens."""

    class Process:
        def __init__(self, *_: object) -> None: ...

        def close(self) -> None: ...

        def describe(self, _: object, specs: list[str]) -> dict[str, Any]:
            identity = {"code": "", "packages": {}, "recognizer": "", "measures": {}}
            voices = {spec: {"family": "piper", "fingerprint": spec} for spec in specs}
            return {"identity": identity, "voices": voices}

    monkeypatch.setattr("tts_compress.sweep.run.UnitProcess", Process)
    return list(plan_sweep(plan, Silent()).units)
