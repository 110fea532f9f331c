"""Conversations with worker processes, and how they end."""

import mmap
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy.stats import theilslopes

from tests.conftest import measure_no_cost
from tests.evaluation.conftest import FAKE_COMMAND, load_fake
from tts_compress.audio import audio_sha256, read_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation import EvaluationOptions, Suite, SuiteText, evaluate
from tts_compress.evaluation import worker as program
from tts_compress.evaluation.process import Worker, _environment
from tts_compress.models import load
from tts_compress.models.base import ModelFiles


@pytest.fixture
def options(fake_command: tuple[str, ...]) -> EvaluationOptions:
    return EvaluationOptions(worker=fake_command, timeout_s=60.0)


def test_speech_comes_back_exactly(
    options: EvaluationOptions, fake_spec: Callable[..., str], fake: ModuleType, tmp_path: Path
) -> None:
    """Despite what libraries print on standard output."""
    spec = fake_spec("model")
    with Worker("model", spec, options) as worker:
        answer = worker.ask("synthesize", text="grüße \u2028 you", seed=4, path=str(tmp_path / "a"))
    expected = fake.load(spec).synthesize("grüße \u2028 you", seed=4)
    assert audio_sha256(expected) == answer["audio"] == audio_sha256(read_wav(tmp_path / "a"))
    assert expected.durations.tolist() == answer["durations"]


def test_a_seed_that_python_refuses_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """F5-TTS's own `infer` writes one of 63 bits into the environment of its process."""
    monkeypatch.setenv("PYTHONHASHSEED", str(1 << 62))
    assert "PYTHONHASHSEED" not in _environment("model", 1)


def test_a_worker_survives_what_one_request_raises(
    options: EvaluationOptions, fake_spec: Callable[..., str]
) -> None:
    """The error is one line that names the model; the next text is spoken."""
    spec = fake_spec("m", fault="raise", on="bad")
    with Worker("model", spec, options) as worker:
        worker.ask("open_runtime", threads=1, warm=True)
        with pytest.raises(EvaluationError) as raised:
            worker.ask("speak", text="bad")
        assert str(raised.value) == f"model '{spec}': ZeroDivisionError: by a fault"
        assert worker.ask("speak", text="good")["audio_s"] > 0.0


def test_a_dead_worker_stays_dead(
    options: EvaluationOptions, fake_spec: Callable[..., str]
) -> None:
    """Another request is an error too, not a hang; each says what the process did last."""
    spec = fake_spec("m", fault="exit")
    with Worker("model", spec, options) as worker:
        worker.ask("open_runtime", threads=1, warm=True)
        for _ in range(3):
            with pytest.raises(EvaluationError) as raised:
                worker.ask("speak", text="hi")
            assert str(raised.value) == (
                f"the process of model '{spec}' ended with exit code 3 during 'speak'; it said: "
                "out of cheese"
            )


def test_a_worker_that_does_not_answer_is_stopped(
    options: EvaluationOptions, fake_spec: Callable[..., str]
) -> None:
    """A model that hangs does not hang the evaluation."""
    with Worker("model", fake_spec("m", sleep=600), options) as worker:
        worker.ask("open_runtime", threads=1, warm=True)
        # Loading had its time; on a busy machine half a second would not do for that.
        worker._timeout_s = 0.5
        with pytest.raises(EvaluationError, match="did not answer 'speak' within"):
            worker.ask("speak", text="hi")


def test_a_model_that_cannot_be_loaded_is_one_error(options: EvaluationOptions) -> None:
    """The reason is the library's own message."""
    with pytest.raises(EvaluationError, match=r"model 'none\.json': no model"):
        Worker("model", "none.json", options)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("/nonexistent/python",), "cannot start a worker for model 'x'"),
        ((sys.executable, "-c", "import sys; sys.exit('no room')"), "exit code 1.*no room"),
    ],
)
def test_a_worker_that_does_not_start(command: tuple[str, ...], message: str) -> None:
    """A wrong program is an error, not a hang."""
    with pytest.raises(EvaluationError, match=message):
        Worker("model", "x", EvaluationOptions(worker=command))


def test_memory_is_that_of_the_worker_and_threads_are_in_its_environment(
    options: EvaluationOptions, fake_spec: Callable[..., str]
) -> None:
    """Bytes, not kibibytes: a Python with NumPy has tens of megabytes, and the peak is no less.

    The made-up model checks that its environment agrees with the request.
    """
    with Worker("model", fake_spec("m"), replace(options, threads=3)) as worker:
        worker.ask("import_modules", modules=["json", "no.such.module"])
        opened = worker.ask("open_runtime", threads=3, warm=True)
        found = worker.ask("inspect")
    assert opened["open_s"] >= 0.0
    assert 10_000_000 < opened["idle_bytes"] <= found["peak_bytes"] < 2_000_000_000
    assert "numpy" in found["modules"]


def test_a_file_is_cold_only_when_none_of_its_pages_are_cached(tmp_path: Path) -> None:
    """A file that another process has mapped stays: a load time with it is not called cold."""
    path = tmp_path / "weights.bin"
    path.write_bytes(bytes(range(256)) * 4096)
    if sys.platform != "linux":
        pytest.skip("no other system has these calls")
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if program._is_cached(file.fileno(), 0):
            pytest.skip("this file system keeps files in its cache")
        assert file.read()
    assert program._leave_cache([path])
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[::4096]) >= 0
        assert program._is_cached(file.fileno(), 1 << 19)
        assert not program._leave_cache([path])
    assert program._leave_cache([path])


@pytest.mark.parametrize("name", ["voice.onnx", "graphs/voice.onnx"])
def test_stages_beside_a_voice_are_of_what_it_is_opened_from(tmp_path: Path, name: str) -> None:
    """Its contract lies beside the stages where its graphs have a folder of their own."""
    voice, stage = tmp_path / name, tmp_path / "stream" / "stage1.onnx"
    for path in (voice, stage, tmp_path / "other.onnx"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    stated = ModelFiles(weights=(voice,), settings=(tmp_path / "contract.toml",))
    files = SimpleNamespace(files=lambda: stated)
    assert program._files(cast("Any", files)) == [voice, stage]


_UTTERANCES = 500
_KILOBYTES = 8.0
"""Growth per utterance that is the allocator's: a leaked audio of a word is 30 kB."""


def _growth(work: Callable[[int], None], rounds: int) -> tuple[float, float]:
    """Return the growth per round, over the later half: of memory in kB, and of open files.

    The median of the slopes between any two rounds (Theil and Sen): a heap that once takes another
    piece does not grow.
    """
    process = pytest.importorskip("psutil").Process()
    samples = []
    for number in range(rounds):
        work(number)
        samples.append((process.memory_info().rss / 1e3, process.num_fds()))
    later = np.array(samples[rounds // 2 :])
    memory, files = (theilslopes(column)[0] for column in later.T)
    return float(memory), float(files)


_EACH = _UTTERANCES // 10
"""Texts of each of ten evaluations."""


def _growth_of_evaluating(specs: Sequence[str], like: Suite) -> tuple[float, float]:
    """Return the growth in ten evaluations, each of whose texts are new."""
    models = [*map(load_fake().load, specs)]
    options = EvaluationOptions(jobs=1, timeout_s=60.0, worker=FAKE_COMMAND)

    def work(number: int) -> None:
        letters = (f"{chr(97 + number)} {chr(97 + place % 26)} {place}" for place in range(_EACH))
        texts = tuple(SuiteText(text=f"we saw {text}") for text in letters)
        suite = like.model_copy(update={"utterances": texts, "seeds": (0,)})
        assert len(evaluate(*models, suite=suite, options=options).utterances) == _EACH

    with pytest.MonkeyPatch.context() as patch:
        measure_no_cost(patch)
        return _growth(work, 10)


@pytest.mark.slow
def test_hundreds_of_utterances_are_evaluated_without_growth(
    fake_spec: Callable[..., str], small_suite: Suite
) -> None:
    """In a process of its own: what other tests left in a worker's heap moves its size, too."""
    specs = fake_spec("reference"), fake_spec("candidate", skip=2)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        memory, files = pool.submit(_growth_of_evaluating, specs, small_suite).result()
    assert memory / _EACH < _KILOBYTES
    assert abs(files) < 0.5


def _growth_of_speaking(path: str) -> tuple[float, float]:
    voice = load(path)

    def work(number: int) -> None:
        for place in range(20):
            voice.synthesize(f"Number {number * 20 + place}.", seed=place)

    return _growth(work, _UTTERANCES // 20)


@pytest.mark.slow
def test_hundreds_of_texts_are_spoken_without_growth(tiny_path: Path) -> None:
    """In a process of its own, too."""
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
