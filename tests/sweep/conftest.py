"""Sweeps of made-up models, in this process."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.conftest import FAKE_COMMAND, load_fake
from tests.suites import suite_text
from tts_compress.artifact import Manifest, Source, sha256_of, with_files
from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.stages import Timings
from tts_compress.evaluation.store import Analyzer
from tts_compress.recipes.recipe import find_recipe
from tts_compress.sweep.plan import Environment, Identity, OpenPlan, Settings, Unit
from tts_compress.sweep.run import Outcome
from tts_compress.sweep.work import UnitRunner


class InProcessRunner:
    """Does units by the object of the program that does them, in this process."""

    def __init__(self, plan: OpenPlan, scratch: Path) -> None:
        self._host = UnitRunner(plan, scratch)

    def describe(self, _: Environment, specs: list[str]) -> dict[str, Any]:
        """Return the environment and the voices."""
        found: dict[str, Any] = json.loads(json.dumps(self._host.describe(specs)))
        return found

    def run(self, unit: Unit) -> Outcome:
        """Do a unit."""
        answer = self._host.run(unit.model_dump(mode="json"))
        key = unit.key
        if "failed" in answer:
            return Outcome(key, "failed", answer["failed"])
        return Outcome(key, "done")

    def close(self) -> None:
        """End the processes that were kept."""
        self._host._kept.close()


class InProcessPool:
    """A pool that does each chain when it is begun; an executor, too."""

    workers = 1

    def __init__(self, runner: InProcessRunner, stop_after: int | None = None) -> None:
        self._runner = runner
        self._left = stop_after
        self.begun: list[str] = []

    def __call__(self, *, whole_nodes: bool) -> "InProcessPool":
        """Return itself."""
        del whole_nodes
        return self

    def submit(self, chain: Sequence[Unit]) -> Future[list[Outcome]]:
        """Do the units; be interrupted after some."""
        ended = Future[list[Outcome]]()
        ended.set_result([self._run(unit) for unit in chain])
        return ended

    def _run(self, unit: Unit) -> Outcome:
        if self._left is not None:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
        self.begun.append(unit.title)
        return self._runner.run(unit)

    def close(self) -> None:
        """Do nothing."""


class _Compressed:
    def __init__(self, model: Any, scheme: str) -> None:
        self._model, self._scheme = model, scheme

    def save(self, path: Path) -> None:
        """Write the artifact of a made-up model."""
        path.mkdir()
        ways = {**self._model._ways, "skip": 2 if self._scheme == "int8" else 1}
        (path / "model.onnx").write_text(json.dumps(ways), encoding="utf-8")
        source = self._model.files().weights[0]
        manifest = Manifest(
            family="fake",
            scheme=self._scheme,
            source=Source(spec=self._model.spec, sha256=sha256_of(source), size_bytes=1),
            recipe={},
            layers=(),
            counts={},
            calibration=None,
            seed=0,
            environment={},
        )
        manifest = with_files(manifest, path, "model.onnx")
        (path / "manifest.json").write_text(manifest.to_json(), encoding="utf-8")


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have sweeps open and compress made-up models, and measure no time."""

    def compress(model: Any, scheme: str, **_: object) -> _Compressed:
        return _Compressed(model, scheme)

    def recognizer(given: str, language: str, _: object) -> Analyzer:
        about = {"spec": given, "setting": language, "description": "tone reader 1"}
        return Analyzer(kind="recognizer", **about)

    own = Settings.options

    def options(self: Settings, recognizer: str, **more: Any) -> EvaluationOptions:
        return replace(own(self, recognizer, **more), worker=FAKE_COMMAND)

    timings = Timings(spent=((0.1,) * 5,) * 3, audio=((1.0,) * 5,) * 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tts_compress.evaluation.subject.load", load_fake().load)
    monkeypatch.setattr("tts_compress.sweep.work.compress", compress)
    monkeypatch.setattr("tts_compress.sweep.work.find_recognizer", recognizer)
    monkeypatch.setattr("tts_compress.evaluation.run.find_recognizer", recognizer)
    monkeypatch.setattr("tts_compress.evaluation.stages.time_models", lambda *_: (timings, timings))
    monkeypatch.setattr(Settings, "options", options)
    recipe = find_recipe("piper", "fp16")
    monkeypatch.setattr("tts_compress.sweep.plan.find_recipe", lambda *_: recipe)


@pytest.fixture
def identity() -> Identity:
    """Return an environment."""
    return Identity(code="1", packages={"numpy": "2"}, recognizer="r", measures={})


@pytest.fixture
def write_plan(tmp_path: Path) -> Callable[..., Path]:
    """Write a plan with the keywords' values in its first lines; return its path."""
    suite = suite_text(["Open the door.", "A cat sat down", "We saw birds"], seeds="[0, 1]")
    (tmp_path / "small.toml").write_text(suite, encoding="utf-8")

    def write(name: str = "plan", more: str = "", **values: Any) -> Path:
        given = {"voices": ["demo"], "schemes": ["int8"], "suite": "small.toml"} | values
        given = {"version": 1, "shards": 2, "output": f"{name}-out"} | given
        lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
        path = tmp_path / f"{name}.toml"
        path.write_text("\n".join([*lines, more]), encoding="utf-8")
        return path

    return write
