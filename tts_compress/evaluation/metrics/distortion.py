"""Distance from another rendering of the reference: the candidate against the reference's own.

No two renderings of a text with different noise are the same, and none is wrong. So the candidate
is compared with what the reference says with another seed, and so is the reference with the
candidate's own seed: what the two distances differ by is the candidate's doing. It has the form of
the energy distance (Szekely and Rizzo, "Energy statistics", 2013), and is zero on average for a
candidate that speaks like the reference with any seed, whatever its samples are.

Decibels of that kind depend on how far a voice's renderings lie apart. So the unit is a known
damage to the same audio: companding to 8 bits by the mu-law of telephony (ITU-T G.711).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.bootstrap import text_interval
from tts_compress.evaluation.metric import Audios, Figure, Headline, Metric, Record, Row, Trend
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.spectra import MELS, compare_warped, log_mel

_LEVEL_DB = -12.0
"""Root mean square, below full scale, at which a voice is analysed.

The analysis hears nothing below its floor of -60 dB, then 48 dB below the voice: with a voice of 65
dB SPL that is 17 dB SPL in each band, a quiet room. How loud a voice is makes no difference.
"""

_LOWEST_MEL = 150.0
"""Centre of the lowest band, 100 Hz: what is below is hardly heard at that level, and differs
between renderings that are heard as the same."""

_OVERLAP = 16
"""Frames of 4 ms at 16 kHz: a copy that is late by part of a frame is no distance away."""

_LONG_S = 30.0
"""Seconds from which on frames are as coarse as those of other distances: memory grows with the
square of their number."""

_TELEPHONE_LEVEL = 10.0 ** (-26.0 / 20.0)
"""Root mean square of speech on a telephone line (ITU-T P.56)."""

_MU = 255.0


class Distortion(Record):
    """Distance from another rendering that compression adds, over all utterances."""

    value: float
    """1 is as much as 8-bit mu-law adds to the reference's audio, 0 is nothing; below 0 the
    candidate is closer."""

    interval: tuple[float, float] | None
    """Its 95 % interval over resampled texts; None of too few."""

    added_db: float
    """The same in decibels, mean over utterances."""

    other_seeds_db: float
    """Distance of the reference from itself with another seed."""

    @property
    def trend(self) -> Trend:
        """Worse is what adds more than mu-law, for certain; less may well be inaudible."""
        low, high = self.interval or (math.nan, math.nan)
        if low > 1.0:
            return "worse"
        return "same" if high <= 1.0 else "unknown"

    @property
    def judgement(self) -> str:
        """The interval in words."""
        if self.interval is None:
            return "too few texts to say if that is chance"
        low, high = self.interval
        if low <= 0.0 <= high <= 1.0:
            return "none that this suite can show"
        known = {"worse": "more than that coding", "same": "less than that coding"}
        return known.get(self.trend, "more or less than that coding, this suite cannot show which")

    @property
    def words(self) -> str:
        """The share with its interval."""
        return f"{self.share} ({self.interval_in_words})"

    @property
    def interval_in_words(self) -> str:
        """The interval, if there are texts enough for one."""
        known = formatting.interval(self.interval, digits=0)
        return "no interval" if self.interval is None else f"95 % interval {known} %"

    @property
    def share(self) -> str:
        """The value as a percentage."""
        return f"{formatting.signed(100.0 * self.value, 0).removeprefix('+')} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Distances from one other rendering, decibels."""

    reference: float
    candidate: float
    coded: float
    """That of the reference's audio after mu-law."""


def observe(reference: Audio, candidate: Audio, other: Audio) -> Distances:
    """Return how far two renderings are from a third.

    Args:
        reference: A rendering by the reference.
        candidate: The candidate's, with the same seed or of the same features.
        other: What both are compared with: the reference's with another seed, or a recording.

    Raises:
        ValueError: The sample rates differ.
    """
    rates = {audio.sample_rate for audio in (reference, candidate, other)}
    if len(rates) > 1:
        raise ValueError(f"cannot compare audio at {sorted(rates)} Hz")
    found = {"reference": reference, "candidate": candidate, "coded": mu_law(reference)}
    longest = max(audio.duration_s for audio in (*found.values(), other))
    overlap = _OVERLAP if longest < _LONG_S else 4
    target = spectrum(other, overlap)
    return Distances(
        **{
            role: compare_warped(spectrum(audio, overlap), target).distance_db
            for role, audio in found.items()
        }
    )


def mu_law(audio: Audio) -> Audio:
    """Return the audio as 8-bit mu-law keeps it, at the level of a telephone line."""
    scaled = np.clip(_at_level(audio, _TELEPHONE_LEVEL), -1.0, 1.0)
    codes = np.round(127.0 * np.sign(scaled) * np.log1p(_MU * np.abs(scaled)) / np.log1p(_MU))
    decoded = np.sign(codes) * np.expm1(np.abs(codes) / 127.0 * np.log1p(_MU)) / _MU
    return replace(audio, samples=decoded.astype(np.float32))


def summarize(found: Sequence[Distances], texts: Sequence[int]) -> Distortion | None:
    """Return the distortion over utterances; None where mu-law adds nothing to compare with.

    Args:
        found: Distances of each utterance.
        texts: The text of each: texts are resampled, each with all its seeds.
    """
    added = np.array([one.candidate - one.reference for one in found])
    unit = np.array([one.coded - one.reference for one in found])
    places = np.unique(texts, return_inverse=True)[1]
    sums = np.bincount(places, weights=added), np.bincount(places, weights=unit)
    if not sums[1].sum() > 0.0:
        return None
    return Distortion(
        value=float(sums[0].sum() / sums[1].sum()),
        interval=text_interval(*sums),
        added_db=float(added.mean()),
        other_seeds_db=float(np.mean([one.reference for one in found])),
    )


def spectrum(audio: Audio, overlap: int = _OVERLAP) -> npt.NDArray[np.float64]:
    """Return the log-mel spectrum that distances are taken of, shape `[frames, bands]`."""
    samples = _at_level(audio, 10.0 ** (_LEVEL_DB / 20.0)).astype(np.float32)
    highest = 2595.0 * np.log10(1.0 + audio.sample_rate / 1400.0)
    lowest = int(np.ceil(_LOWEST_MEL / highest * (MELS + 1))) - 1
    return log_mel(replace(audio, samples=samples), overlap)[:, lowest:]


def _at_level(audio: Audio, level: float) -> npt.NDArray[np.float64]:
    """Return the samples with another root mean square; silence stays silent."""
    samples = np.nan_to_num(audio.samples.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    present = np.sqrt(np.mean(np.square(samples))) if len(samples) else 0.0
    return samples * (level / present) if present else samples


def _observe(audios: Audios) -> Distances:
    return observe(audios.reference, audios.candidate, audios.other_seed)


def _compute(run: Run) -> Distortion | None:
    return summarize(run.observations("distortion"), run.blocks)


def _rows(distortion: Distortion, _: object) -> list[Row]:
    interval = distortion.interval_in_words
    return [
        Row(
            label="Distortion",
            candidate=distortion.share,
            change=f"of what telephone coding adds ({interval}): {distortion.judgement}",
            trend=distortion.trend,
            headline=Headline(
                distortion.share,
                f"of what telephone coding (mu-law) would add; {interval}",
                distortion.judgement,
            ),
        )
    ]


METRICS = (
    Metric(
        name="distortion",
        group="sound",
        result=Distortion,
        observe=_observe,
        compute=_compute,
        optional=True,
        rows=_rows,
        figures=dict.fromkeys(
            ("value", "interval"),
            Figure("distortion, of what telephone coding adds", formatting.percent),
        ),
        terms={
            "Distortion": "how much farther the candidate's audio is from a rendering of the "
            "reference with another seed than the reference's own audio is; 100 % is what 8-bit "
            "mu-law, the coding of telephony, adds to the same audio. A candidate that differs "
            "from the reference as two of its seeds do has 0 %.",
        },
    ),
)
