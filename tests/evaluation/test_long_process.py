"""A process that evaluates and speaks for long, and one that speaks in many threads."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.evaluation import SuiteText, evaluate
from tts_compress.models import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import ModuleType

    from tts_compress.evaluation import EvaluationOptions, Suite

_UTTERANCES = 500
_KILOBYTES = 8.0
"""Growth per utterance that is the allocator's: a leaked audio of a word is 30 kB."""


def _growth(work: Callable[[int], None], rounds: int) -> tuple[float, float]:
    """Return the growth per round, over the later half: of memory in kB, and of open files."""
    process = pytest.importorskip("psutil").Process()
    samples = []
    for number in range(rounds):
        work(number)
        samples.append((process.memory_info().rss / 1e3, process.num_fds()))
    later = np.array(samples[rounds // 2 :])
    memory, files = (np.polyfit(np.arange(len(later)), column, 1)[0] for column in later.T)
    return float(memory), float(files)


@pytest.mark.slow
def test_hundreds_of_utterances_are_evaluated_without_growth(
    fake: ModuleType,
    fake_spec: Callable[..., str],
    small_suite: Suite,
    fast_options: EvaluationOptions,
    untimed: None,  # noqa: ARG001
) -> None:
    """In ten evaluations, each of whose texts are new."""
    models = fake.load(fake_spec("reference")), fake.load(fake_spec("candidate", skip=2))
    rounds, each = 10, _UTTERANCES // 10

    def work(number: int) -> None:
        letters = (f"{chr(97 + number)} {chr(97 + place % 26)} {place}" for place in range(each))
        texts = tuple(SuiteText(text=f"we saw {text}") for text in letters)
        suite = small_suite.model_copy(update={"utterances": texts, "seeds": (0,)})
        assert len(evaluate(*models, suite=suite, options=fast_options).utterances) == each

    memory, files = _growth(work, rounds)
    assert memory / each < _KILOBYTES
    assert abs(files) < 0.5


def _growth_of_speaking(path: str) -> tuple[float, float]:
    voice = load(path)

    def work(number: int) -> None:
        for place in range(20):
            voice.synthesize(f"Number {number * 20 + place}.", seed=place)

    return _growth(work, _UTTERANCES // 20)


@pytest.mark.slow
def test_hundreds_of_texts_are_spoken_without_growth(tiny_path: Path) -> None:
    """In a process of its own: what other tests left in a worker's heap moves its size, too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        memory, files = pool.submit(_growth_of_speaking, str(tiny_path)).result()
    assert memory / 20 < _KILOBYTES
    assert abs(files) < 0.1


@pytest.mark.slow
def test_many_threads_get_the_audio_that_one_gets(tiny_path: Path) -> None:
    texts = [f"Number {number}, please." for number in range(24)]
    alone, shared = load(tiny_path), load(tiny_path)  # the second is opened by all of them
    expected = [alone.synthesize(text, seed=seed) for seed, text in enumerate(texts)]
    with ThreadPoolExecutor(24) as threads:
        jobs = [threads.submit(shared.synthesize, text, seed=n) for n, text in enumerate(texts)]
        for job, audio in zip(jobs, expected, strict=True):
            np.testing.assert_array_equal(job.result().samples, audio.samples)
