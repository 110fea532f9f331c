"""A whole evaluation of made-up models, in their own processes."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import soundfile
from threadpoolctl import threadpool_info, threadpool_limits

from tests.measures import TIMED
from tts_compress.artifact import sha256_of
from tts_compress.audio import read_wav
from tts_compress.errors import ArtifactError, EvaluationError, TTSCompressWarning
from tts_compress.evaluation import (
    EvaluationOptions,
    Gate,
    Gates,
    Suite,
    SuiteText,
    read_gates,
    read_report,
)
from tts_compress.evaluation import gate as judge
from tts_compress.evaluation.metrics.signal import Health
from tts_compress.evaluation.result import Evaluation
from tts_compress.evaluation.run import _other_origin, evaluate
from tts_compress.evaluation.store import open_store
from tts_compress.report.summary import cautions, verdict


def _without_timings(evaluation: Evaluation) -> dict[str, Any]:
    return evaluation.model_dump(mode="json", exclude=TIMED)


@pytest.fixture
def run(
    evaluated: Callable[..., Evaluation],
    untimed: None,  # noqa: ARG001
) -> Callable[..., Evaluation]:
    """Evaluate a made-up candidate whose behaviour the keywords set; its cost is not measured."""
    return evaluated


@pytest.mark.slow
def test_an_equal_model_differs_in_nothing(evaluated: Callable[..., Evaluation]) -> None:
    """Exactly zero; here alone its cost is measured, too."""
    found = evaluated()
    # The made-up models do not speak digits: one word of eleven is lost.
    assert (found.wer.reference, found.wer.delta) == (1 / 11, 0.0)
    assert found.wer.interval is found.cer.interval is None  # of three texts
    assert 0.0 == found.signal.log_mel_distance_db == found.signal.log_mel_distance.p95
    assert (found.signal.equal_length, found.signal.same_timing, found.signal.snr_db) == (
        1.0,
        1.0,
        None,
    )
    assert (found.duration.ratio, found.duration.kept, found.size.ratio) == (1.0, 1.0, 1.0)


@pytest.mark.slow
def test_the_document_says_what_was_measured(
    run: Callable[..., Evaluation],
    fast_options: EvaluationOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A softer, otherwise equal candidate: words intact, spectrum 6 dB away.

    What is wrong on this processor is warned of and reported. Meanwhile mathematics here leaves
    the cores to the workers, and afterwards nothing is left.
    """
    monkeypatch.setattr("tts_compress.evaluation.run._hazards", lambda *_: ("it crawls",))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    watch = _BlasThreads()
    with threadpool_limits(2):
        with pytest.warns(TTSCompressWarning, match="it crawls"):
            found = run(gain=10**-0.3, options={"progress": watch})
        assert watch.now() == {2}
    assert watch.seen == {fast_options.threads} == {1}
    left = {path.name for path in (tmp_path / "temporary").iterdir()}
    assert left <= {".ses"}, "onnxruntime leaves that file when it is imported"
    assert not list((tmp_path / "cache" / "tts-compress" / "evaluations").iterdir())
    assert found.warnings[0] == "it crawls"
    assert "It crawls." in cautions(found)
    assert found.environment["processor"]["integer_kernels"]
    assert (found.candidate.family, found.candidate.scheme) == ("fake", "fp32")
    assert (found.suite.name, found.suite.texts, found.suite.seeds) == ("small", 3, (0, 1))
    assert found.suite.recognizer == "tone reader 1"
    assert 0.0 == found.wer.delta == found.cer.delta
    assert 1.0 < found.signal.log_mel_distance_db < 6.5
    assert 3.0 < (found.signal.snr_db or 0.0) < 9.0
    rows = [(row.index, row.seed) for row in found.utterances]
    assert rows == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert found.utterances[-1].transcript == "we saw two birds"
    assert found.utterances[-1].reference.hypothesis == "we saw birds"
    assert found.utterances[0].reference.audio is None
    assert len(found.opus) == 6
    assert found == Evaluation.from_json(found.to_json())


class _BlasThreads:
    """Notes the threads of numpy's BLAS; SciPy, which only resamples, has one of its own."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    def advance(self, stage: str, *_: object) -> None:
        """Take note."""
        self.seen |= self.now() if stage == "recognize" else set()

    def now(self) -> set[int]:
        """Return those that there are."""
        pools = threadpool_info()
        return {pool["num_threads"] for pool in pools if "numpy" in pool["filepath"]}


@pytest.mark.slow
def test_a_bad_candidate_is_found_bad_and_its_audio_is_kept(
    run: Callable[..., Evaluation], tmp_path: Path
) -> None:
    """Half of the sounds are missing; the floors are of the reference alone."""
    found = run(tmp_path / "out", skip=2, options={"keep_wav": True})
    assert found.wer.delta > 0.5
    assert 0.0 == found.floors.other_seeds.delta == found.floors.recognizer.delta
    assert found.floors.other_seeds_log_mel_distance_db > 0.0
    assert pytest.approx(found.duration.ratio, abs=0.05) == 0.5
    assert (found.duration.kept, found.signal.same_timing) == (0.0, 0.0)
    assert found.signal.same_timing_log_mel_distance_db is None
    names = [s.audio for row in found.utterances for s in (row.reference, row.candidate)]
    assert len({*names}) == 12
    for name in names:
        assert name is not None
        kept = read_wav(tmp_path / "out" / name)
        assert len(kept.samples) > 0
    inside, _ = soundfile.read(io.BytesIO(found.opus[2, 1].candidate))
    assert len(inside) == len(kept.samples)


@pytest.mark.slow
def test_a_broken_candidate_fails_its_gates_whatever_its_words(
    run: Callable[..., Evaluation],
) -> None:
    """The document can still be written and read."""
    found = run(gain=50.0, nan=5)
    assert Health(silent=0, clipped=6, not_finite=6, empty=0) == found.health.candidate
    assert Health(silent=0, clipped=0, not_finite=0, empty=0) == found.health.reference
    for problem, passes in (("silent", True), ("clipped", False), ("not_finite", False)):
        metric = f"health.candidate.{problem}"
        gate = Gate(metric=metric, limit=0, direction="at-most", kind="absolute")
        gates = Gates(version=1, name="health", summary="s", gate=(gate,))
        assert passes is judge(found, gates).passed
        assert passes is judge(json.loads(found.to_json()), gates).passed
    assert found == Evaluation.from_json(found.to_json())


@pytest.mark.slow
def test_another_evaluation_finds_the_transcripts_of_the_reference(
    run: Callable[..., Evaluation], tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the candidate says is new; results are those of an own store."""
    monkeypatch.setenv("FAKE_RECOGNIZER_LOG", str(log))
    first = run(tmp_path / "first", gain=0.9)
    assert len(log.read_text().splitlines()) == first.stages["recognize"].steps == 18
    assert first.stages["synthesize candidate"].steps == 6
    stages = ["open", "recognize", "synthesize reference", "synthesize candidate"]
    assert [*first.stages][:4] == stages
    second = run(tmp_path / "second", gain=0.8)
    assert len(log.read_text().splitlines()) == 18 + 6
    assert second.stages["recognize"].steps == 6
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert _without_timings(run(tmp_path / "second", gain=0.8)) == _without_timings(second)
    assert len(log.read_text().splitlines()) == 18 + 6 + 18


@pytest.mark.slow
def test_texts_of_the_same_words_count_once_and_few_have_no_interval(
    run: Callable[..., Evaluation], small_suite: Suite
) -> None:
    signs = (".", "!", "?", ",")
    texts = [f"{one.text.rstrip('.')}{sign}" for one in small_suite.utterances for sign in signs]
    spelled = [SuiteText(text=text, spoken=text.replace("2", "two")) for text in texts]
    suite = small_suite.model_copy(update={"utterances": tuple(spelled), "seeds": (0, 1)})
    found = run(suite=suite, skip=2)
    assert found.wer.delta > 0.5
    assert found.wer.interval is found.cer.interval is found.pause_count.interval is None
    assert found.wer.bound is found.cer.bound is found.floors.other_seeds.interval is None
    assert found.distortion is not None
    assert found.distortion.lost_variety is not None
    assert found.distortion.interval is found.distortion.lost_variety.interval is None
    assert found.warnings[0].startswith("3 different texts are too few for a 95 % interval")
    assert "points: too few texts to say if that is chance." in verdict(found)
    words = next(row for row in judge(found, read_gates("default")).rows if row.reason)
    assert (words.gate.metric, words.passed) == ("wer.bound", False)
    assert words.reason == (
        "nothing was judged: too little was measured for an interval; evaluate with 12 texts or "
        "more"
    )


@pytest.mark.slow
def test_a_voice_that_nobody_understands_is_not_called_unchanged(
    run: Callable[..., Evaluation],
) -> None:
    """All words are lost in both models, so that they differ in nothing."""
    found = run(skip=2, reference={"skip": 2})
    assert (found.wer.reference, found.wer.delta) == (pytest.approx(1.0, abs=0.2), 0.0)
    assert "nothing was judged" in found.warnings[-1]
    assert "no difference" not in verdict(found)
    assert "for words nothing was judged: no word of the reference was recognized" in verdict(found)


def test_models_of_different_rates_are_refused(run: Callable[..., Evaluation]) -> None:
    """Before anything is spoken."""
    with pytest.raises(EvaluationError, match=r"at 16000 Hz and .* at 22050 Hz"):
        run(rate=22_050)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_a_model_in_memory_is_saved_for_its_worker_and_seeds_can_be_replaced(
    fake: ModuleType,
    fake_spec: Callable[..., str],
    shortest_suite: Suite,
    fast_options: EvaluationOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The report still calls it what the user did."""
    monkeypatch.setattr("tts_compress.evaluation.subject.load", fake.load)
    spec = fake_spec("m", skip=2)
    small = fake.FakeModel(spec, saved=False)
    options = replace(fast_options, seeds=(9,))
    found = evaluate(fake_spec("r"), small, suite=shortest_suite, options=options)
    assert spec == found.candidate.spec
    assert found.suite.seeds == (9,)
    assert shortest_suite.sha256 != found.suite.sha256
    assert found.wer.delta > 0.5


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(
    run: Callable[..., Evaluation],
    fake: ModuleType,
    fake_spec: Callable[..., str],
    small_suite: Suite,
    fast_options: EvaluationOptions,
    tmp_path: Path,
) -> None:
    """Killed without warning after a few texts; nothing that was finished is done again."""
    expected = _without_timings(run(skip=2))
    log = tmp_path / "log"
    # The log's path and the delay are part of the model file, so both runs have them.
    spec = fake_spec("candidate", skip=2, log=str(log), sleep=0.2)
    (tmp_path / "suite.json").write_text(small_suite.model_dump_json(), encoding="utf-8")
    code = f"""
        import sys, importlib.util
        spec = importlib.util.spec_from_file_location("fake", {fake.__file__!r})
        fake = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(fake)
        from tts_compress.evaluation import EvaluationOptions, Suite
        from tts_compress.evaluation.run import evaluate
        suite = Suite.model_validate_json(open({str(tmp_path / "suite.json")!r}).read())
        models = fake.load({fake_spec("reference")!r}), fake.load({spec!r})
        options = EvaluationOptions(jobs=1, worker=(sys.executable, {fake.__file__!r}))
        evaluate(*models, suite=suite, output={str(tmp_path / "out")!r}, options=options)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    _wait_for(lambda: log.exists() and len(log.read_text().splitlines()) >= 3, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    models = fake.load(fake_spec("reference")), fake.load(spec)
    found = evaluate(*models, suite=small_suite, output=tmp_path / "out", options=fast_options)
    # Six lines; the one that was being spoken may be spoken twice.
    assert 6 <= len(log.read_text().splitlines()) <= 7
    resumed = _without_timings(found)
    for document in (expected, resumed):
        for row in document["utterances"]:
            row["reference"]["audio"] = row["candidate"]["audio"] = None
        # The two candidates' files differ in their names for the log.
        document.pop("candidate"), document.pop("size")
    assert expected == resumed


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_of_two_evaluations_into_one_folder_one_wins_and_writes_its_report(
    run: Callable[..., Evaluation], fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    """The second would remove the first one's work, or write its report over it."""
    with (
        open_store(tmp_path / "out", fast_options),
        pytest.raises(ArtifactError, match=r"another process is evaluating into '.*out'"),
    ):
        run(output=tmp_path / "out")
    found = run(output=tmp_path / "out")
    assert found.wer.delta == 0
    # An empty folder looked like an evaluation that failed.
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["report.html", "report.json", "report.md"]
    assert found.listening is None
    assert read_report(tmp_path / "out") == found


def test_folders_of_recordings_are_called_that(
    small_suite: Suite, fast_options: EvaluationOptions, tmp_path: Path
) -> None:
    """They were taken for artifacts that lack a manifest, in ten lines of accepted forms."""
    (tmp_path / "wavs_a").mkdir()
    (tmp_path / "wavs_a" / "0001.wav").touch()
    with pytest.raises(EvaluationError, match="a folder of recordings, which cannot be compared"):
        evaluate(tmp_path / "wavs_a", "demo", suite=small_suite, options=fast_options)


@pytest.mark.slow
@pytest.mark.usefixtures("untimed")
def test_an_original_that_changed_since_it_was_compressed_is_told(
    fakes: Callable[..., Any], shortest_suite: Suite, fast_options: EvaluationOptions
) -> None:
    reference, small = fakes("voice"), fakes("small", gain=0.9)
    source = SimpleNamespace(spec="voice.onnx", sha256="0" * 64)
    small.manifest = SimpleNamespace(scheme="int8", source=source, layers=())
    found = evaluate(reference, small, suite=shortest_suite, options=fast_options)
    assert any("made from another file" in line for line in found.warnings)
    assert any("made from another file" in line for line in cautions(found))
    source.sha256 = sha256_of(Path(reference.spec))
    assert _other_origin(found, small) == ()
