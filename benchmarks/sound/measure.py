"""`python -m benchmarks.sound.measure`: what measures give the demo voice and damaged copies."""

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from benchmarks.command import Add, command
from benchmarks.sound.analysis import DISTORTION, SHIPPED, Rows, Values, read_values
from benchmarks.sound.plant import NAMES, plant
from tts_compress.artifact import write_text_atomically
from tts_compress.audio import Audio
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metric import find_measures
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.pairs import OTHER_SEEDS
from tts_compress.evaluation.recognizers import open_recognizer
from tts_compress.evaluation.suite import Suite, SuiteText, read_suite
from tts_compress.models import load
from tts_compress.models.base import TTSModel
from tts_compress.numerics.spectra import compare_warped, mu_law, observe, spectrum
from tts_compress.progress import Progress
from tts_compress.terminal import progress_bars, show

WORDS = "word errors"

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
        measured = read_values(path)
    else:
        coded = _added(takes, [[mu_law(audio) for audio in row] for row in takes[0]])
        words = [len(chosen.transcript(item).split()) for item in chosen.utterances]
        measured = Values(
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
    for index, name in enumerate(candidates):
        progress.advance("measure", index, len(candidates))
        if name not in measured.candidates:
            spoken = _speak(plant(name), texts, chosen.seeds)
            values = {DISTORTION: _added(takes, spoken)} | _measure_single(chosen, spoken, singles)
            measured = measured.model_copy(
                update={"candidates": measured.candidates | {name: values}}
            )
            write_text_atomically(path, measured.model_dump_json() + "\n")
    return measured


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
        observed = observe(reference, candidate, other)
        return round(observed.candidate - observed.reference, 5)

    return tuple(
        tuple(one(*audios) for audios in zip(*rows, strict=True))
        for rows in zip(takes[0], takes[1], spoken, strict=True)
    )


def _between(rows: Sequence[Sequence[Audio]]) -> Rows:
    """Return the distances between all renderings of one text."""
    spectra = [spectrum(audio) for row in rows for audio in row]
    matrix = np.zeros((len(spectra), len(spectra)))
    for index, left in enumerate(spectra):
        for other in range(index):
            distance = round(compare_warped(left, spectra[other]).distance_db, 5)
            matrix[index, other] = matrix[other, index] = distance
    return tuple(map(tuple, matrix.tolist()))


def _measure_single(suite: Suite, spoken: Spoken, singles: Sequence[Single]) -> dict[str, Rows]:
    by_audio = [
        [{k: v for single in singles for k, v in single(item, audio).items()} for audio in row]
        for item, row in zip(suite.utterances, spoken, strict=True)
    ]
    return {
        name: tuple(tuple(round(values[name], 4) for values in row) for row in by_audio)
        for name in by_audio[0][0]
    }


_Floats: TypeAlias = npt.NDArray[np.float64]

_LOUD_DB = 20.0
"""Frames within so much of the loudest twentieth are voice."""

_BANDS_HZ = (200, 500, 1000, 2000, 3000, 4000, 5500, 7500)


def measure_voice(audio: Audio) -> dict[str, float]:
    """Return the measures of a voice by name, in decibels.

    Cepstral peak prominence: Hillenbrand et al., JSHR 1994. Harmonics to noise: Boersma, IFA
    Proceedings 1993. Spectral contrast, peaks over valleys in a band: Jiang et al., ICME 2002.

    Args:
        audio: At 16 kHz, not silent.
    """
    rate = audio.sample_rate
    width, hop = rate // 25, rate // 100
    samples = np.asarray(audio.samples, np.float64)
    padded = np.pad(samples, (0, max(0, width - len(samples))))
    taper = np.hanning(width + 1)[:-1]
    frames = np.lib.stride_tricks.sliding_window_view(padded, width)[::hop] * taper
    levels = 10.0 * np.log10(np.square(frames).mean(axis=1) + 1e-12)
    loud = levels > np.quantile(levels, 0.95) - _LOUD_DB
    power = np.square(np.abs(np.fft.rfft(frames, 1024, axis=1)))
    spectrum = 10.0 * np.log10(power + 1e-9)
    quiet = levels[levels <= np.quantile(levels, 0.1)].mean()
    return {
        "cepstral peak prominence": float(_prominence(spectrum, rate)[loud].mean()),
        "harmonics to noise": float(_harmonics(frames, taper, rate)[loud].mean()),
        "spectral contrast": _contrast(spectrum[loud], rate),
        "level of the quietest tenth": float(
            quiet - 10.0 * np.log10((10.0 ** (levels / 10.0)).mean())
        ),
    }


def _prominence(spectrum: _Floats, rate: int) -> _Floats:
    """Return the cepstrum's peak over its regression line in each frame."""
    cepstrum = np.abs(np.fft.irfft(spectrum, axis=1))[:, : spectrum.shape[1] - 1]
    decibels = 20.0 * np.log10(cepstrum + 1e-9)
    first, low, high = rate // 1000, rate // 400, rate // 60
    places = np.arange(first, decibels.shape[1])
    centred = places - places.mean()
    slopes = decibels[:, first:] @ centred / (centred @ centred)
    peaks = low + decibels[:, low:high].argmax(axis=1)
    lines = decibels[:, first:].mean(axis=1) + slopes * (peaks - places.mean())
    return np.asarray(decibels[np.arange(len(decibels)), peaks] - lines)


def _harmonics(frames: _Floats, taper: _Floats, rate: int) -> _Floats:
    """Return harmonics to noise by the autocorrelation's peak over the window's own."""
    low, high = rate // 400, rate // 60

    def correlate(signal: _Floats) -> _Floats:
        power = np.square(np.abs(np.fft.rfft(signal, 2048, axis=-1)))
        return np.asarray(np.fft.irfft(power, axis=-1)[..., :high])

    correlated, window = correlate(frames), correlate(taper)
    normalised = correlated / (correlated[:, :1] + 1e-12) / (window / window[0])
    peaks = np.clip(normalised[:, low:].max(axis=1), 1e-3, 1.0 - 1e-4)
    return np.asarray(10.0 * np.log10(peaks / (1.0 - peaks)))


def _contrast(spectrum: _Floats, rate: int) -> float:
    """Return the mean of the highest fifth of the bins of each band over its lowest fifth."""
    bins = np.fft.rfftfreq(1024, 1.0 / rate)
    contrasts = []
    for low, high in pairwise(_BANDS_HZ):
        band = np.sort(spectrum[:, (bins >= low) & (bins < high)], axis=1)
        count = max(1, band.shape[1] // 5)
        contrasts.append(band[:, -count:].mean() - band[:, :count].mean())
    return float(np.mean(contrasts))


def _machine() -> str:
    facts = describe_environment()
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return f"{facts['processor']['model']}, one thread, Python {facts['python']}, {packages}"


def _options(add: Add) -> None:
    add("--values", type=Path, default=SHIPPED, metavar="JSON", help="gets candidates it lacks")
    add("--suite", default="en-quick", help="%(default)s")


@command("benchmarks.sound.measure", _options, label="measure")
def main(options: Namespace) -> None:
    """Measure damage to the demo voice, in an hour or so; needs the extra `listen`."""
    with progress_bars() as progress:
        measure(NAMES, options.suite, _machine(), options.values, progress)
    show(f"written: {options.values}")


if __name__ == "__main__":
    sys.exit(main())
