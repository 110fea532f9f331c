"""Made-up models and a small suite."""

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest

from tests.told import Told
from tts_compress.audio import Audio, read_wav
from tts_compress.config import Card
from tts_compress.evaluation import Evaluation, EvaluationOptions, Suite, SuiteText
from tts_compress.evaluation.store import Store

_FAKE = Path(__file__).with_name("fake_worker.py")
FAKE_COMMAND = (sys.executable, str(_FAKE))


@pytest.fixture
def recorder() -> Told:
    """Return progress that is kept as a list."""
    return Told()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no test find transcripts of another one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return an empty store."""
    return Store(tmp_path / "work")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file in which made-up models and the recognizer note what they do."""
    path = tmp_path / "log"
    path.touch()
    return path


@pytest.fixture(scope="session")
def fake_command() -> tuple[str, ...]:
    """The program whose models are JSON files."""
    return FAKE_COMMAND


def load_fake() -> ModuleType:
    """Return the module of the made-up model."""
    spec = importlib.util.spec_from_file_location("fake_worker", _FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake() -> ModuleType:
    """The module of the made-up model, for this process."""
    return load_fake()


@pytest.fixture
def fake_spec(tmp_path: Path) -> Callable[..., str]:
    """Write a made-up model whose behaviour the keywords set; return its spec."""

    def write(name: str, **ways: Any) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"name": name, **ways}), encoding="utf-8")
        return str(path)

    return write


@pytest.fixture
def fakes(fake: ModuleType, fake_spec: Callable[..., str]) -> Callable[..., Any]:
    """Write a made-up model whose behaviour the keywords set; return it, loaded."""
    return lambda name, **ways: fake.load(fake_spec(name, **ways))


@pytest.fixture
def fast_options() -> EvaluationOptions:
    """Options that run the made-up models, with the least timing."""
    return EvaluationOptions(
        jobs=1, timing_texts=2, timing_runs=2, timeout_s=60.0, worker=FAKE_COMMAND
    )


@pytest.fixture
def small_suite() -> Suite:
    """Three short texts, two seeds."""
    texts = ("Open the door.", "A cat sat down", "We saw 2 birds")
    spoken = (None, None, "we saw two birds")
    return Suite(
        version=1,
        name="small",
        language="en-us",
        recognizer="pocketsphinx",
        normalizer="en-v1",
        seeds=(0, 1),
        utterances=tuple(
            SuiteText(text=text, spoken=said) for text, said in zip(texts, spoken, strict=True)
        ),
        card=Card(summary="s", source="s", licence="s", composition="s"),
    )


@pytest.fixture
def shortest_suite(small_suite: Suite) -> Suite:
    """One text, one seed."""
    few = {"utterances": small_suite.utterances[:1], "seeds": (0,)}
    return small_suite.model_copy(update=few)


@pytest.fixture(scope="session")
def recordings(assets: Path) -> list[Audio]:
    """A few short recordings of a human reader."""
    folder = assets / "speech-ljspeech32" / "wavs"
    names = ("LJ001-0002", "LJ001-0008")
    return [read_wav(folder / f"{name}.wav") for name in names]


@pytest.fixture
def chirp() -> Audio:
    """One second of a rising tone."""
    time_s = np.arange(16_000) / 16_000
    samples = 0.5 * np.sin(2 * np.pi * (200 * time_s + 1500 * time_s**2))
    return Audio(samples=samples.astype(np.float32), sample_rate=16_000)


@pytest.fixture
def evaluated(
    fakes: Callable[..., Any], small_suite: Suite, fast_options: EvaluationOptions
) -> Callable[..., Evaluation]:
    """Evaluate a made-up candidate, whose behaviour the keywords set, against a reference."""
    from tts_compress.evaluation.run import evaluate

    def evaluate_candidate(
        output: Path | None = None,
        *,
        suite: Suite = small_suite,
        reference: Mapping[str, Any] = MappingProxyType({}),
        options: Mapping[str, Any] = MappingProxyType({}),
        **ways: Any,
    ) -> Evaluation:
        models = fakes("reference", **reference), fakes("candidate", **ways)
        settings = replace(fast_options, **options)
        return evaluate(*models, suite=suite, output=output, options=settings)

    return evaluate_candidate
