"""Reports on a system that runs from the user's clone, and the settings that its workers get."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tts_compress.evaluation import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.evaluation.subject import open_subject
from tts_compress.models.checkout import known_upstreams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tts_compress.families import Upstream

_COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(params=known_upstreams(), ids=lambda upstream: upstream.family)
def upstream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    found: Upstream = request.param
    monkeypatch.delenv(found.variable, raising=False)
    return found


@pytest.fixture
def clone(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone that the environment names, without a repository."""
    for marker in upstream.markers:
        (tmp_path / "clone" / marker).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / marker).touch()
    monkeypatch.setenv(upstream.variable, str(tmp_path / "clone"))
    return tmp_path / "clone"


@pytest.fixture
def settings(
    fake: ModuleType,
    fake_spec: Callable[..., str],
    upstream: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], dict[str, str]]:
    """Return a function that returns the report's settings for a model of the system."""
    monkeypatch.setattr(fake.FakeTorchModel, "family", upstream.family)

    def find() -> dict[str, str]:
        model: Any = fake.load(fake_spec("m", kind="torch", settings={"dropout": "off"}))
        return open_subject(model, tmp_path).identity().settings

    return find


def test_the_report_names_the_clones_commit(
    clone: Path, settings: Callable[[], dict[str, str]]
) -> None:
    assert settings() == {"dropout": "off", "upstream commit": "unknown"}
    (clone / ".git").mkdir()
    (clone / ".git" / "HEAD").write_text(_COMMIT)
    assert settings() == {"dropout": "off", "upstream commit": _COMMIT}


def test_without_a_clone_there_is_none_to_name(settings: Callable[[], dict[str, str]]) -> None:
    assert settings() == {"dropout": "off"}


def test_a_worker_finds_the_clone(
    clone: Path,
    upstream: Upstream,
    fake_spec: Callable[..., str],
    fake_command: tuple[str, ...],
    tmp_path: Path,
) -> None:
    log = tmp_path / "environment"
    spec = fake_spec("model", environment=[upstream.variable, str(log)])
    with Worker("model", spec, EvaluationOptions(worker=fake_command)) as worker:
        worker.ask("synthesize", text="hello", seed=0, path=str(tmp_path / "a.wav"))
    assert log.read_text() == os.environ[upstream.variable] == str(clone)


@pytest.mark.usefixtures("clone")
def test_a_model_of_another_system_has_nothing_to_do_with_it(
    settings: Callable[[], dict[str, str]], fake: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake.FakeTorchModel, "family", "f5-tts")
    assert settings() == {"dropout": "off"}
