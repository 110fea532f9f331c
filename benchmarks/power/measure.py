"""`python -m benchmarks.power.measure`: word errors of two models on a suite, with other seeds."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import Add, command
from benchmarks.power.errors import SHIPPED, ModelErrors, WordErrors
from tts_compress.artifact import write_text_atomically
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.stages import synthesize
from tts_compress.evaluation.store import Store, SynthesisJob, analyze, find_recognizer
from tts_compress.evaluation.subject import open_subject
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.terminal import progress_bars, show


def measure(
    models: tuple[str, str],
    seeds: tuple[Sequence[int], Sequence[int]],
    suite: str,
    work: Path,
    options: EvaluationOptions,
) -> WordErrors:
    """Have two models speak a suite with other seeds, and count the recognizer's word errors.

    Finished pieces stay in the folder `work`: an interrupted run goes on from there.
    """
    chosen = read_suite(suite)
    if options.recognizer is not None:
        chosen = chosen.with_recognizer(options.recognizer)
    store = Store(work)
    counts = [
        _count(spec, chosen.with_seeds(tuple(numbers)), store, options)
        for spec, numbers in zip(models, seeds, strict=True)
    ]
    (reference, words, recognizer), (candidate, _, _) = counts
    return WordErrors(
        suite=chosen.name,
        recognizer=recognizer,
        normalizer=chosen.normalizer,
        words=words,
        reference=reference,
        candidate=candidate,
    )


def _count(
    spec: str, suite: Suite, store: Store, options: EvaluationOptions
) -> tuple[ModelErrors, tuple[int, ...], str]:
    """Return a model's errors, the words of each text, and the recognizer's description."""
    with TemporaryDirectory() as spare:
        subject = open_subject(spec, Path(spare), suite.prompt)
        jobs = [
            SynthesisJob(model=subject.fingerprint, text=item.text, seed=seed)
            for item in suite.utterances
            for seed in suite.seeds
        ]
        spoken = list(synthesize(store, subject, jobs, options, stage=f"synthesize {spec}"))
    audios = [(piece.audio, store.wav_path(piece)) for piece in spoken]
    recognizer = find_recognizer(suite.recognizer, suite.language, options)
    heard = analyze(
        store, recognizer, audios, options, total=len(audios), stage=f"recognize {spec}"
    )
    transcripts = [suite.transcript(item) for item in suite.utterances for _ in suite.seeds]
    edits = [
        count_edits(transcript, suite.normalize(heard[piece.audio]), "word")
        for transcript, piece in zip(transcripts, spoken, strict=True)
    ]
    step = len(suite.seeds)
    errors = [edit.errors for edit in edits]
    rows = tuple(tuple(errors[start : start + step]) for start in range(0, len(errors), step))
    made = ModelErrors(spec=spec, sha256=subject.identity().sha256, seeds=suite.seeds, errors=rows)
    return made, tuple(edit.tokens for edit in edits[::step]), recognizer.description


def _options(add: Add) -> None:
    add("models", nargs=2, metavar="MODEL", help="reference and candidate")
    add("--errors", type=Path, default=SHIPPED, metavar="JSON", help="what is written")
    add("--suite", default="en-full", help="to measure on (%(default)s)")
    add("--reference-seeds", type=int, nargs="+", default=[0, 1, 2, 1000], metavar="SEED")
    add("--candidate-seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    add("--work", type=Path, default=Path("out/power"), metavar="DIR", help="of finished pieces")
    add("--recognizer", metavar="NAME[:MODEL]", help="of the words (the suite's)")
    add("--jobs", type=int, default=2, help="recognizers at a time (%(default)s)")


@command("benchmarks.power.measure", _options, label="measure")
def main(options: Namespace) -> None:
    """Count the word errors of two models, in an hour or so, for benchmarks.power and --plan."""
    with progress_bars() as progress:
        settings = EvaluationOptions(
            recognizer=options.recognizer, jobs=options.jobs, progress=progress
        )
        seeds = (options.reference_seeds, options.candidate_seeds)
        errors = measure(tuple(options.models), seeds, options.suite, options.work, settings)
    write_text_atomically(options.errors, errors.model_dump_json() + "\n")
    show(f"written: {options.errors}")


if __name__ == "__main__":
    sys.exit(main())
