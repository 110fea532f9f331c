"""Pace of the speech: its length against the reference's, and its pauses.

Pauses are counted here: how many, how long, how quiet. `damage` counts what the reference lacks.
"""

from functools import partial

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.metric import (
    Audios,
    Figure,
    Headline,
    Metric,
    Paired,
    Record,
    Row,
    Show,
    compare_pairs,
)
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.faults import find_pauses
from tts_compress.numerics.pauses import compare_floors
from tts_compress.numerics.spectra import same_timing

_SHORTEST_S = 0.15
"""A silence that is shorter may be the closure of a consonant."""


class Duration(Record):
    """Change of the timing over all utterances."""

    ratio: float
    """Total candidate seconds over total reference seconds."""

    kept: float | None
    """Share of input symbols with the same number of frames; None where unknown."""


def _observe_durations(audios: Audios) -> tuple[int, int]:
    """Return the symbols with equal frames and all symbols; none where they are not known."""
    before, after = audios.reference.durations, audios.candidate.durations
    if before is None or after is None:
        return 0, 0
    return int((before == after).sum()) if len(before) == len(after) else 0, len(before)


def _compute_durations(run: Run) -> Duration:
    kept, symbols = (sum(counts) for counts in zip(*run.observations("duration"), strict=True))
    before, after = (
        sum(pair.seconds[role] for pair in run.pairs) for role in ("reference", "candidate")
    )
    return Duration(
        ratio=after / before,
        kept=kept / symbols if symbols else None,
    )


def _duration_rows(duration: Duration, _: object) -> list[Row]:
    ratio, kept = duration.ratio, formatting.percent(duration.kept)
    total = change = formatting.MISSING
    if formatting.is_finite(ratio):
        total = f"{ratio:.4f}\N{MULTIPLICATION SIGN}"
        change = f"{formatting.signed(100 * (ratio - 1), 2)} %"
    moved, judgement = formatting.MISSING, "durations of single symbols are not known"
    if formatting.is_finite(duration.kept):
        moved = f"{formatting.percent(1 - duration.kept)} of symbols moved"
        judgement = f"{kept} of the symbols keep their duration"
    return [
        Row(
            label="Length of the speech",
            candidate=total,
            change=change,
            headline=Headline(change, "total, compressed against reference", judgement),
        ),
        Row(label="Durations kept", candidate=kept, change=moved),
    ]


def measure_pauses(audio: Audio) -> tuple[int, float]:
    """Return the number of pauses inside the speech, and their seconds in all.

    A pause is 35 dB below loud speech for 0.15 s or more.
    """
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
    lengths = [s for s, _ in find_pauses(samples, audio.sample_rate) if s >= _SHORTEST_S - 1e-9]
    return len(lengths), float(sum(lengths))


def _compute_pauses(index: int, run: Run) -> Paired | None:
    before, after = zip(*run.observations("pause_count"), strict=True)
    return compare_pairs(
        run, [pauses[index] for pauses in before], [pauses[index] for pauses in after]
    )


def measure_floors(audios: Audios) -> tuple[float, float]:
    """Return the floors of pauses relative to the speech, dB, of the octave that rises most.

    Not a number where the reference does not pause.
    """
    before, after = audios.reference, audios.candidate
    aligned = same_timing(before, after)
    floors = compare_floors(before.samples, after.samples, before.sample_rate, aligned=aligned)
    return (np.nan, np.nan) if floors is None else (floors.reference_db, floors.candidate_db)


METRICS = (
    Metric(
        name="duration",
        group="timing",
        result=Duration,
        observe=_observe_durations,
        compute=_compute_durations,
        rows=_duration_rows,
        figures={"ratio": Figure("length of the speech, of the reference's", formatting.percent)},
    ),
    Show("Floor of pauses", "dB", digits=1, better="lower").metric(
        "pause_floor",
        lambda run: compare_pairs(run, *zip(*run.observations("pause_floor"), strict=True)),
        observe=measure_floors,
        figures={"delta": Figure("rise of the floor of pauses", formatting.decibels)},
        terms={
            "Floor of pauses": "noise where the voice is quiet, relative to the speech, in the "
            "octave above 500 Hz in which the candidate's rises most; levels below -64 dB, which "
            "nobody hears, count as that.",
        },
    ),
    Show("Pauses an utterance", better=None).metric(
        "pause_count",
        partial(_compute_pauses, 0),
        group="timing",
        observe=lambda both: (measure_pauses(both.reference), measure_pauses(both.candidate)),
        terms={
            "Pauses": "silences of 0.15 s or more inside the speech, 35 dB below its loud parts.",
        },
    ),
    Show("Length of pauses, an utterance", "s", better=None).metric(
        "pause_seconds", partial(_compute_pauses, 1), group="timing"
    ),
)
