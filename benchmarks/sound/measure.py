"""Renderings of the demo voice and of its damaged copies, and what every measure gives them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.sound.plant import plant
from benchmarks.sound.values import DISTORTION, WORDS, Rows, Values, read_values
from benchmarks.sound.voice_quality import measure_voice
from tts_compress.artifact import write_text_atomically
from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metric import find_measures
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import OTHER_SEEDS
from tts_compress.evaluation.recognizers import open_recognizer
from tts_compress.evaluation.suite import Suite, SuiteText, read_suite
from tts_compress.models import load
from tts_compress.models.base import TTSModel
from tts_compress.numerics.distortion import mu_law, observe, spectrum
from tts_compress.numerics.spectra import compare_warped
from tts_compress.progress import Progress

TAKES = 3
"""Renderings of the reference with each seed `s`: `s`, `s + 1000`, `s + 2000`."""

Single: TypeAlias = Callable[[SuiteText, Audio], Mapping[str, float]]
"""Measures one audio of a text."""

Spoken: TypeAlias = list[list[Audio]]
"""By text and seed."""


def measure(
    candidates: Sequence[str], suite: str, machine: str, path: Path, progress: Progress
) -> Values:
    """Measure candidates that `path` does not hold yet, and write them into it one by one."""
    chosen = read_suite(suite)
    texts = [item.text for item in chosen.utterances]
    takes = [
        _speak(load("demo"), texts, [seed + shift * OTHER_SEEDS for seed in chosen.seeds])
        for shift in range(TAKES)
    ]
    singles = _singles(chosen)
    if path.exists():
        found = read_values(path)
    else:
        coded = _added(takes, [[mu_law(audio) for audio in row] for row in takes[0]])
        words = [len(chosen.transcript(item).split()) for item in chosen.utterances]
        found = Values(
            suite=suite,
            seeds=chosen.seeds,
            machine=machine,
            units={
                DISTORTION: tuple(float(np.mean(row)) for row in coded),
                WORDS: tuple(map(float, words)),
            },
            takes=tuple(_between(row) for row in zip(*takes, strict=True)),
            reference=_measure_single(chosen, takes[0], singles),
            other_seeds=_measure_single(chosen, takes[1], singles),
        )
    for place, name in enumerate(candidates):
        progress.advance("measure", place, len(candidates))
        if name not in found.candidates:
            spoken = _speak(plant(name), texts, chosen.seeds)
            values = {DISTORTION: _added(takes, spoken)} | _measure_single(chosen, spoken, singles)
            found = found.model_copy(update={"candidates": found.candidates | {name: values}})
            write_text_atomically(path, found.model_dump_json() + "\n")
    return found


def _singles(suite: Suite) -> tuple[Single, ...]:
    opinion = find_measures()["opinion"]
    settings = opinion.settings(EvaluationOptions())
    if settings is None:
        raise EvaluationError("opinion scores are missing; pip install 'tts-compress[listen]'")
    score, recognizer = opinion.open(settings), open_recognizer(suite.recognizer, suite.language)

    def count_words(item: SuiteText, audio: Audio) -> dict[str, float]:
        heard = suite.normalize(recognizer.transcribe(audio))
        return {WORDS: count_edits(suite.transcript(item), heard, "word").errors}

    return (
        count_words,
        lambda _, audio: score(audio),
        lambda _, audio: measure_voice(audio),
    )


def _speak(model: TTSModel, texts: Sequence[str], seeds: Sequence[int]) -> Spoken:
    return [[model.synthesize(text, seed=seed) for seed in seeds] for text in texts]


def _added(takes: Sequence[Spoken], spoken: Spoken) -> Rows:
    """Return what is added to the reference's distance from another rendering."""

    def one(reference: Audio, other: Audio, candidate: Audio) -> float:
        found = observe(reference, candidate, other)
        return round(found.candidate - found.reference, 5)

    return tuple(
        tuple(one(*audios) for audios in zip(*rows, strict=True))
        for rows in zip(takes[0], takes[1], spoken, strict=True)
    )


def _between(rows: Sequence[Sequence[Audio]]) -> Rows:
    """Return the distances between all renderings of one text."""
    spectra = [spectrum(audio) for row in rows for audio in row]
    found = np.zeros((len(spectra), len(spectra)))
    for place, left in enumerate(spectra):
        for other in range(place):
            distance = round(compare_warped(left, spectra[other]).distance_db, 5)
            found[place, other] = found[other, place] = distance
    return tuple(map(tuple, found.tolist()))


def _measure_single(suite: Suite, spoken: Spoken, singles: Sequence[Single]) -> dict[str, Rows]:
    by_audio = [
        [{k: v for single in singles for k, v in single(item, audio).items()} for audio in row]
        for item, row in zip(suite.utterances, spoken, strict=True)
    ]
    return {
        name: tuple(tuple(round(values[name], 4) for values in row) for row in by_audio)
        for name in by_audio[0][0]
    }
