"""Voices of several speakers: texts go round them, both models alike, and the worst is named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from tests.evaluation.subjects import make_subject
from tts_compress.audio import audio_sha256
from tts_compress.errors import EvaluationError, ModelError
from tts_compress.evaluation import EvaluationOptions, Suite, SuiteText
from tts_compress.evaluation.pairs import noise_seed
from tts_compress.evaluation.result import Evaluation
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.stages import synthesize, time_models
from tts_compress.evaluation.store import Store, SynthesisJob
from tts_compress.evaluation.subject import give_speakers, open_subject
from tts_compress.models import load
from tts_compress.models.base import Speaking
from tts_compress.report import render_html
from tts_compress.report.markdown import render_markdown
from tts_compress.report.summary import cautions, provenance, speaker_results, summary_rows

_NAMES = ("anna", "ben", "cleo")


pytestmark = pytest.mark.usefixtures("untimed")


@pytest.fixture
def suite(small_suite: Suite) -> Suite:
    """Seven texts, one seed."""
    texts = ["one", "two", "three", "four", "five", "six", "seven"]
    return small_suite.model_copy(
        update={
            "utterances": tuple(SuiteText(text=f"{text} white cats sat down") for text in texts),
            "seeds": (0,),
        }
    )


@pytest.fixture
def run(evaluated: Callable[..., Evaluation], suite: Suite) -> Callable[..., Evaluation]:
    """Evaluate made-up models of three speakers, whose candidate the keywords set."""
    return partial(evaluated, suite=suite, reference={"speakers": _NAMES}, speakers=_NAMES)


@pytest.fixture
def choose(fakes: Callable[..., Any], tmp_path: Path) -> Callable[..., list[tuple[str, ...]]]:
    """Return the speakers of two made-up models, of which one or both were told theirs."""

    def speakers(*chosen: str | None) -> list[tuple[str, ...]]:
        models = [fakes("m", speakers=_NAMES).speaking_as(Speaking(speaker=s)) for s in chosen]
        before, after = (open_subject(model, tmp_path) for model in models)
        return [subject.speakers for subject in give_speakers((before, after), None)]

    return speakers


def _spoken(log: Path) -> list[str]:
    return [line.split(":")[0] for line in log.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_texts_go_round_the_speakers(run: Callable[..., Evaluation], log: Path) -> None:
    """None of the sound ones has more errors."""
    found = run(log=str(log))
    assert [row.speaker for row in found.utterances] == [*_NAMES, *_NAMES, "anna"]
    assert _spoken(log) == [*_NAMES, *_NAMES, "anna"]  # the candidate
    assert Evaluation.from_json(found.to_json()) == found
    assert dict(provenance(found))["Reference"]["speaker"] == "3 in turn, text by text"
    words, sound = (row for row in summary_rows(found) if row.label.startswith("Worst speaker"))
    assert (words.candidate, words.trend) == ("none", "same")
    assert (sound.candidate, sound.trend) == ("0.0 dB", "same")
    assert not [caution for caution in cautions(found) if "peaker" in caution]


@pytest.mark.slow
def test_one_speaker_can_be_named(run: Callable[..., Evaluation], log: Path) -> None:
    """Here by its number."""
    found = run(options={"speaker": "2"}, log=str(log))
    assert {row.speaker for row in found.utterances} == {*_spoken(log)} == {"cleo"}
    assert found.candidate.settings == found.reference.settings == {"speaker": "cleo"}
    assert not [row for row in summary_rows(found) if "speaker" in row.label]


def test_a_model_that_was_told_its_speaker_keeps_it(
    choose: Callable[..., list[tuple[str, ...]]],
) -> None:
    assert choose("ben", None) == choose(None, "ben") == [("ben",), ("ben",)]
    with pytest.raises(EvaluationError, match="different speakers, anna and ben"):
        choose("anna", "ben")


def test_models_of_different_speakers_are_refused(run: Callable[..., Evaluation]) -> None:
    with pytest.raises(EvaluationError, match=r"speakers anna, ben, cleo and .* one speaker"):
        run(speakers=())


def test_an_unknown_speaker_is_refused_before_anything_is_spoken(
    run: Callable[..., Evaluation], log: Path
) -> None:
    with pytest.raises(ModelError, match=r"no speaker 'dora'; known: anna, ben, cleo"):
        run(options={"speaker": "dora"}, log=str(log))
    assert not _spoken(log)


@pytest.mark.slow
def test_the_default_speaker_is_timed_unless_one_is_named(
    fake_spec: Callable[..., str], log: Path, fast_options: EvaluationOptions
) -> None:
    spec = fake_spec("m", speakers=_NAMES, log=str(log), tag="default")
    for speakers, wanted in ((_NAMES, "default"), (("ben",), "ben")):
        log.write_text("", "utf-8")
        subject = replace(make_subject(spec), speakers=speakers)
        time_models((subject, subject), ["one", "two"], replace(fast_options, timing_runs=1))
        assert {*_spoken(log)} == {wanted}


def test_what_one_speaker_spoke_is_not_taken_for_another(
    fake_spec: Callable[..., str], log: Path, fast_options: EvaluationOptions, store: Store
) -> None:
    """The same text and seed; and of a voice of one the name in the store is as it always was."""
    subject = make_subject(fake_spec("m", speakers=_NAMES, log=str(log), tag="default"))
    jobs = [
        SynthesisJob(model="f" * 64, text="one", seed=0, speaker=name) for name in (*_NAMES, None)
    ]
    for _ in range(2):
        list(synthesize(store, subject, jobs, fast_options, stage="s"))
    assert _spoken(log) == [*_NAMES, "default"]
    assert store.wav_path(jobs[-1]).name == "7692c3ad3540bb80-0.wav"


@pytest.mark.slow
def test_a_broken_speaker_is_the_worst_by_words(run: Callable[..., Evaluation]) -> None:
    found = run(broken=("ben",))
    results = {result.name: result for result in speaker_results(found)}
    assert [results[name].texts for name in _NAMES] == [3, 2, 2]
    assert results["anna"].rise == results["cleo"].rise == 0
    assert results["ben"].rise > 0.9
    words, sound = (row for row in summary_rows(found) if row.label.startswith("Worst speaker"))
    assert words.change.startswith("ben: +")
    assert words.change.endswith("over 2 texts, of 3 heard")
    assert sound.change.startswith("ben over 2 texts; the others: 0.")
    assert sound.trend == "worse"
    assert "speaker <bdi>ben</bdi>" in render_html(found)
    page = render_markdown(found)
    assert "| Worst speaker, words |" in page
    assert "| Text | Speaker | Seed |" in page
    assert "**Worst speaker**: of a voice with several" in page
    (line,) = [line for line in page.splitlines() if line.startswith("> Speaker ben is as far")]
    assert "over 2 texts" in line


@pytest.mark.slow
def test_a_report_of_a_voice_of_one_does_not_speak_of_speakers(
    evaluated: Callable[..., Evaluation], suite: Suite
) -> None:
    """Neither in the document, so that older reports are read, nor in the page."""
    found = evaluated(suite=suite)
    assert "speaker" not in found.to_json()
    assert "peaker" not in render_markdown(found)
    assert Evaluation.from_json(found.to_json()) == found
    with pytest.raises(ModelError, match="has one speaker"):
        evaluated(suite=suite, options={"speaker": "anna"})


def _with_damaged_speaker(path: Path, folder: Path, number: int) -> Path:
    """Write a voice with another row of its speaker embedding."""
    model = onnx.load(str(path))
    (table,) = [item for item in model.graph.initializer if item.name.endswith("emb_g.weight")]
    values = numpy_helper.to_array(table).copy()
    values[number] = -4 * values[number]
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, str(folder / path.name))
    shutil.copy(path.with_name(f"{path.name}.json"), folder)
    return folder / path.name


@pytest.mark.slow
def test_a_damaged_row_of_the_embedding_is_the_worst_speaker_of_a_piper_voice(
    choir_path: Path, tmp_path: Path, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In processes of its own; the recognizer is left out."""
    monkeypatch.setattr(
        "tts_compress.evaluation.run.analyze",
        lambda _, __, audios, *___, **____: {key: "cats" for key, _ in audios},
    )
    broken = _with_damaged_speaker(choir_path, tmp_path, 2)
    short = suite.model_copy(update={"utterances": suite.utterances[:4]})
    options = EvaluationOptions(work=tmp_path / "work", timing_texts=1, timing_runs=1)
    found = evaluate(choir_path, broken, suite=short, options=options)
    assert [row.speaker for row in found.utterances] == [*_NAMES, "anna"]
    for row in found.utterances:
        assert (row.log_mel_distance_db > 0) is (row.speaker == "cleo")
    sound = next(row for row in summary_rows(found) if row.label == "Worst speaker, log-mel")
    assert sound.change == "cleo over 1 text; the others: 0.0 dB"
    # Both models' processes spoke what the voice speaks as that speaker.
    voice: Any = load(choir_path)
    text = short.utterances[1].text
    seed = noise_seed(text, 0)
    spoken = voice.speaking_as(Speaking(speaker="ben")).synthesize(text, seed=seed)
    pieces = [
        json.loads(p.read_text("utf-8")) for p in (tmp_path / "work").rglob("synth*/*/*.json")
    ]
    found_audio = [p["audio"] for p in pieces if (p["speaker"], p["seed"]) == ("ben", seed)]
    assert found_audio == 2 * [audio_sha256(spoken)]
