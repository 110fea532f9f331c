"""Pauses inside the speech: how many, and how long. `damage` counts those the reference lacks."""

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Audios, Metric
from tts_compress.evaluation.metrics.damage import find_pauses
from tts_compress.evaluation.paired import Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run

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


METRICS = (
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
