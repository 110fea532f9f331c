"""Pauses: how many, how long, how quiet. `damage` counts what the reference lacks."""

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import Audios, Figure, Metric
from tts_compress.evaluation.metrics.damage import find_pauses
from tts_compress.evaluation.paired import Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.pauses import compare_floors
from tts_compress.numerics.spectra import same_timing

_SHORTEST_S = 0.15
"""A silence that is shorter may be the closure of a consonant."""


def measure_pauses(audio: Audio) -> tuple[int, float]:
    """Return the number of pauses inside the speech, and their seconds in all.

    A pause is 35 dB below loud speech for 0.15 s or more.
    """
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
    lengths = [s for s, _ in find_pauses(samples, audio.sample_rate) if s >= _SHORTEST_S - 1e-9]
    return len(lengths), float(sum(lengths))


def _observe(audios: Audios) -> tuple[tuple[int, float], tuple[int, float]]:
    return measure_pauses(audios.reference), measure_pauses(audios.candidate)


def _compute(place: int, run: Run) -> Paired | None:
    before, after = zip(*run.observations("pause_count"), strict=True)
    return compare_pairs(run, [one[place] for one in before], [one[place] for one in after])


def measure_floors(audios: Audios) -> tuple[float, float]:
    """Return the floors of pauses relative to the speech, dB, of the octave that rises most.

    Not a number where the reference does not pause, or the rates differ.
    """
    before, after = audios.reference, audios.candidate
    if before.sample_rate != after.sample_rate:
        return np.nan, np.nan
    aligned = same_timing(before, after)
    floors = compare_floors(before.samples, after.samples, before.sample_rate, aligned=aligned)
    return (np.nan, np.nan) if floors is None else (floors.reference_db, floors.candidate_db)


def _compute_floors(run: Run) -> Paired | None:
    return compare_pairs(run, *zip(*run.observations("pause_floor"), strict=True))


METRICS = (
    Metric(
        name="pause_floor",
        group="sound",
        result=Paired,
        observe=measure_floors,
        compute=_compute_floors,
        optional=True,
        rows=Show("Floor of pauses", "dB", digits=1, better="lower").rows,
        figures={"delta": Figure("rise of the floor of pauses", formatting.decibels)},
        terms={
            "Floor of pauses": "noise where the voice is quiet, relative to the speech, in the "
            "octave above 500 Hz in which the candidate's rises most; levels below -64 dB, which "
            "nobody hears, count as that.",
        },
    ),
    Metric(
        name="pause_count",
        group="timing",
        result=Paired,
        observe=_observe,
        compute=lambda run: _compute(0, run),
        optional=True,
        rows=Show("Pauses an utterance", better=None).rows,
        terms={
            "Pauses": "silences of 0.15 s or more inside the speech, 35 dB below its loud parts.",
        },
    ),
    Metric(
        name="pause_seconds",
        group="timing",
        result=Paired,
        compute=lambda run: _compute(1, run),
        optional=True,
        rows=Show("Length of pauses, an utterance", "s", better=None).rows,
    ),
)
