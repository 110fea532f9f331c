"""Distance from another rendering of the reference: the candidate against the reference's own.

No two renderings of a text with different noise are the same, and none is wrong. So the candidate
is compared with what the reference says with another seed, and so is the reference with the
candidate's own seed: what the two distances differ by is the candidate's doing. It has the form of
the energy distance (Szekely and Rizzo, "Energy statistics", 2013), and is zero on average for a
candidate that speaks like the reference with any seed, whatever its samples are.

A voice without noise speaks alike with every seed. Where it is in ONNX, its other rendering has
slightly other weights (`vary_weights`), which most such voices do not show: no distance between
renderings hides small damage. Half the noise has two fifths of the value there, a fifth on a voice
with noise; what noise at 40 dB (ITU-T P.810) adds is 0.65 there, and 0.46 on the demo voice. Kokoro
shows them, by 0.36 to 0.44 from itself, as much as weights in 16 bits do: compared with itself,
every compression of it would seem to break a bound of 0.5. Others are compared with themselves.

Of the energy distance the third term is missing, how far the candidate's own renderings lie apart.
A voice that loses its variety comes nearer to all renderings, and that hides damage: the demo voice
without noise has -0.35, and with an echo that has +0.37 by itself it has +0.09. So what is lost of
the distance between the suite's seeds, which are spoken anyway, is the measure `lost_variety`: 3.9
for the demo voice with one seed for all (12 texts), 0.1 [-0.1 0.4] for it with other seeds, and
-0.1 to 0.0 with that echo or decoder weights of 5 or 8 bits.

Recordings with one rendering of each text have no other to compare with. Where reference and
candidate were spoken with the same noise, the reference is compared with itself; otherwise nothing
tells damage from noise, and the distortion is None.

Decibels of that kind depend on how far a voice's renderings lie apart. So the unit is a known
damage to the same audio: companding to 8 bits by the mu-law of telephony (ITU-T G.711).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import text_interval
from tts_compress.evaluation.metric import Audios, Figure, Headline, Metric, Record, Row, Trend
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import RECORDINGS
from tts_compress.numerics.spectra import Distances, observe, seeds_apart


class Share(Record):
    """Decibels as a share of what mu-law adds to the same audio."""

    value: float
    interval: tuple[float, float] | None
    """Its 95 % interval over resampled texts; None of too few."""


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

    lost_variety: Share | None = None
    """How much closer together two seeds of the candidate are than the reference's: the energy
    distance has half of it beside `value`. None of a suite with one seed, and in older reports."""

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
        words = {"worse": "more than that coding", "same": "less than that coding"}
        return words.get(self.trend, "more or less than that coding, this suite cannot show which")

    @property
    def words(self) -> str:
        """The share with its interval."""
        return f"{self.share} ({self.interval_in_words})"

    @property
    def interval_in_words(self) -> str:
        """The interval, if there are texts enough for one."""
        shown = formatting.interval(self.interval, digits=0)
        return "no interval" if self.interval is None else f"95 % interval {shown} %"

    @property
    def share(self) -> str:
        """The value as a percentage."""
        return f"{formatting.signed(100.0 * self.value, 0).removeprefix('+')} %"


def summarize(distances: Sequence[Distances], texts: Sequence[int]) -> Distortion | None:
    """Return the distortion over utterances; None where mu-law adds nothing to compare with.

    Args:
        distances: Distances of each utterance.
        texts: The text of each: texts are resampled, each with all its seeds.
    """
    added = np.array([row.candidate - row.reference for row in distances])
    share = _share(added, distances, texts)
    if share is None:
        return None
    closer = np.array([row.closer for row in distances], float)  # NaN for None
    several = np.flatnonzero(np.isfinite(closer)).tolist()
    return Distortion(
        value=share.value,
        interval=share.interval,
        added_db=float(added.mean()),
        other_seeds_db=float(np.mean([row.reference for row in distances])),
        lost_variety=_share(
            closer[several], [distances[row] for row in several], [texts[row] for row in several]
        ),
    )


def _share(
    decibels: npt.NDArray[np.float64], distances: Sequence[Distances], texts: Sequence[int]
) -> Share | None:
    """Return the share of mu-law's decibels; None where that adds nothing."""
    unit = np.array([row.coded - row.reference for row in distances])
    places = np.unique(np.array(texts, int), return_inverse=True)[1]
    sums = np.bincount(places, weights=decibels), np.bincount(places, weights=unit)
    if not sums[1].sum() > 0.0:
        return None
    return Share(value=float(sums[0].sum() / sums[1].sum()), interval=text_interval(*sums))


def _observe(audios: Audios) -> Distances:
    distances = observe(audios.reference, audios.candidate, audios.other_seed)
    if (before := audios.before) is None:
        return distances
    reference = seeds_apart(before.reference, audios.reference)
    return distances._replace(closer=reference - seeds_apart(before.candidate, audios.candidate))


def _compute(run: Run) -> Distortion | None:
    if run.models is None and len(run.suite.seeds) == 1 and not shares_noise(run):
        return None
    return summarize(run.observations("distortion"), run.blocks)


def shares_noise(run: Run) -> bool:
    """Return True if reference and candidate have the same samples in most texts, but for less."""
    pairs = run.observations("signal")
    return bool(np.median([pair.noise < pair.signal for pair in pairs]) > 0.0)


def lacks_renderings(document: Mapping[str, Any]) -> str | None:
    """Return why a report of recordings has no distortion; None where it has one, or of models."""
    seeds = (document.get("suite") or {}).get("seeds") or ()
    family = (document.get("reference") or {}).get("family")
    if family != RECORDINGS or len(seeds) != 1 or document.get("distortion") is not None:
        return None
    return (
        "nothing was judged: each text has one recording a side, spoken with other noise, and "
        "nothing tells damage from noise; give several renderings of each text, a folder for "
        "each seed"
    )


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
        doubt=lacks_renderings,
        figures=dict.fromkeys(
            ("value", "interval"),
            Figure("distortion, of what telephone coding adds", formatting.percent),
        )
        | {"lost_variety.interval.1": Figure("variety lost, at most", formatting.percent)},
        terms={
            "Distortion": "how much farther the candidate's audio is from a rendering of the "
            "reference with another seed than the reference's own audio is; 100 % is what 8-bit "
            "mu-law, the coding of telephony, adds to the same audio. A candidate that differs "
            "from the reference as two of its seeds do has 0 %. The other rendering of an ONNX "
            "voice whose seeds speak alike has weights that differ by an 8192nd at most; small "
            "damage weighs more there. Another voice is then compared with itself.",
        },
    ),
)
