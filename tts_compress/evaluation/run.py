"""One evaluation from two models to the finished document."""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.environment import describe_environment, describe_processor
from tts_compress.errors import EvaluationError, TTSCompressWarning
from tts_compress.evaluation.agreement import are_language_models, compare_language_models
from tts_compress.evaluation.cost import measure_cost
from tts_compress.evaluation.floors import OTHER_SEEDS, disturbed_copy
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.recognize import recognize
from tts_compress.evaluation.runtimes import check_runtimes, measure_runtimes
from tts_compress.evaluation.score import audio_name, score
from tts_compress.evaluation.store import Store, make_directory
from tts_compress.evaluation.subject import Subject, check_comparable, open_subject
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.evaluation.synthesize import Line, Speaker, synthesize
from tts_compress.models.base import OnnxGraph
from tts_compress.models.integers import count_integer_layers, find_hazards
from tts_compress.report.evaluation import Evaluation, Size, SuiteIdentity, Utterance

if TYPE_CHECKING:
    from tts_compress.models.base import ModelFiles, TTSModel

__all__ = ["evaluate"]


def evaluate(
    reference: TTSModel | str | Path,
    candidate: TTSModel | str | Path,
    *,
    suite: Suite | str | Path = "en-quick",
    output: Path | str | None = None,
    options: EvaluationOptions | None = None,
) -> Evaluation:
    """Compare a compressed model with the one it was made from.

    Both speak the same texts with the same noise, a recognizer listens, and each model is timed in
    its system's own runtime in a process of its own.

    Args:
        reference: The uncompressed model, or its spec.
        candidate: The compressed one; one that is in memory only is saved to a temporary place.
        suite: What to speak: a shipped name, or a TOML file.
        output: Where the work and the audio stay. A run that was interrupted goes on from there.
        options: How to run it.

    Raises:
        EvaluationError: The models do not compare, or a model's process failed.
        TextError: A model cannot speak a text of the suite.
        ModelError: A model cannot be found or read.
        RecipeError: The suite is malformed.
        ArtifactError: `output` cannot be written.
        MissingExtraError: An optional package is needed.
    """
    options = options or EvaluationOptions()
    chosen = suite if isinstance(suite, Suite) else read_suite(suite)
    if options.seeds is not None:
        chosen = chosen.with_seeds(options.seeds)
    with ExitStack() as stack:
        before, after = (
            open_subject(model, Path(stack.enter_context(TemporaryDirectory())), chosen.prompt)
            for model in (reference, candidate)
        )
        check_comparable(before.model, after.model)
        check_runtimes((before.model, after.model), options.runtimes)
        hazards = _hazards(after.model)
        for hazard in hazards:
            warnings.warn(hazard, TTSCompressWarning, stacklevel=2)
        place = Path(output or stack.enter_context(TemporaryDirectory()))
        make_directory(place / "work")
        found = _run(before, after, chosen, Store(place / "work"), options)
        found = found.model_copy(update={"warnings": hazards})
        if output is not None and options.keep_audio:
            found = _with_audio(found, Store(place / "work"), (before, after), place)
        return found


def _hazards(model: TTSModel) -> tuple[str, ...]:
    """Return what is wrong with a compressed model on this processor.

    What runs in torch is loaded for that, beside the processes that are timed, so only where its
    weights can overflow.
    """
    processor = describe_processor()
    if not (isinstance(model, OnnxGraph) or processor.adds_in_16_bits):
        return ()
    return find_hazards(count_integer_layers(model), processor)


def _run(
    before: Subject, after: Subject, suite: Suite, store: Store, options: EvaluationOptions
) -> Evaluation:
    """Go through the stages; what is in the store already is not done again."""
    speakers = (before.speaker, after.speaker)
    lines = [Line(text=item.text, seed=seed) for item in suite.utterances for seed in suite.seeds]
    others = [Line(text=line.text, seed=line.seed + OTHER_SEEDS) for line in lines]
    synthesize(store, speakers[0], lines + others, options, stage="synthesize reference")
    synthesize(store, speakers[1], lines, options, stage="synthesize candidate")
    recognizer = recognize(
        store, suite.recognizer, _audios(store, speakers, lines, others), options
    )
    models = (speakers[0].fingerprint, speakers[1].fingerprint)
    found = score(store, suite, models, recognizer)
    forced = None
    if options.teacher_forced_texts and are_language_models((before.model, after.model)):
        forced = compare_language_models(store, speakers, suite, options)
    texts = [item.text for item in suite.utterances]
    cost = measure_cost(*speakers, texts, options)
    return Evaluation(
        reference=before.identity(),
        candidate=after.identity(),
        suite=_suite_identity(suite, recognizer),
        wer=found.wer,
        cer=found.cer,
        size=_size(before.files, after.files),
        latency=cost.latency,
        rtf=cost.rtf,
        memory=cost.memory,
        load=cost.load,
        signal=found.signal,
        duration=found.duration,
        health=found.health,
        floors=found.floors,
        teacher_forced=forced,
        runtimes=measure_runtimes(speakers, texts, options),
        # Plain JSON from the start, so that a report that is read again is equal to this one.
        environment=describe_environment(),
        utterances=found.utterances,
    )


def _audios(
    store: Store, speakers: tuple[Speaker, Speaker], lines: list[Line], others: list[Line]
) -> dict[str, Path]:
    """Return every WAV file to listen to, by the hash of its samples."""
    reference, candidate = speakers
    jobs = [(reference, line) for line in lines + others] + [(candidate, line) for line in lines]
    audios = {}
    for speaker, line in jobs:
        spoken = store.find_spoken(speaker.fingerprint, line.text, line.seed)
        assert spoken is not None, "synthesize() returned, so every line is spoken"
        audios[spoken.audio] = store.wav_path(speaker.fingerprint, line.text, line.seed)
    for line in lines:
        key, path = disturbed_copy(
            store, store.wav_path(reference.fingerprint, line.text, line.seed)
        )
        audios[key] = path
    return audios


def _suite_identity(suite: Suite, recognizer: str) -> SuiteIdentity:
    return SuiteIdentity(
        name=suite.name,
        sha256=suite.sha256,
        texts=len(suite.utterances),
        seeds=suite.seeds,
        recognizer=recognizer,
        normalizer=suite.normalizer,
    )


def _size(reference: ModelFiles, candidate: ModelFiles) -> Size:
    before, after = (
        sum(path.stat().st_size for path in files.weights) for files in (reference, candidate)
    )
    if not after:
        raise EvaluationError(f"'{candidate.weights[0]}' is an empty file")
    return Size(reference_bytes=before, candidate_bytes=after, ratio=before / after)


def _with_audio(
    found: Evaluation, store: Store, subjects: tuple[Subject, Subject], place: Path
) -> Evaluation:
    """Write what both models said beside the report; return the document that names the files."""
    make_directory(place / "wav")

    def keep(row: Utterance, role: str, subject: Subject) -> object:
        name = f"wav/{audio_name(row.index, row.seed, role)}"
        exact = read_wav(store.wav_path(subject.speaker.fingerprint, row.text, row.seed))
        samples = np.nan_to_num(exact.samples, nan=0.0, posinf=1.0, neginf=-1.0)
        write_wav(place / name, Audio(samples=samples, sample_rate=exact.sample_rate))
        return getattr(row, role).model_copy(update={"audio": name})

    rows = [
        row.model_copy(
            update={
                role: keep(row, role, subject)
                for role, subject in zip(("reference", "candidate"), subjects, strict=True)
            }
        )
        for row in found.utterances
    ]
    return found.model_copy(update={"utterances": tuple(rows)})
