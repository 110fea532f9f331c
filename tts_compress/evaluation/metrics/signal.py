"""The audio itself: its distance from the reference's, and utterances that are broken."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation import formatting
from tts_compress.evaluation.intervals import rate_bound
from tts_compress.evaluation.metric import (
    NO_FLOOR,
    Figure,
    Headline,
    Metric,
    Pair,
    Record,
    Row,
    Trend,
)
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation
from tts_compress.numerics.spectra import Comparison, compare_spectra, same_timing

_SILENT_DBFS = -50.0
_CLIPPED_AT = 0.999
_CLIPPED_SHARE = 0.001
_SHORTEST_S = 0.1


class MeanAndTail(Record):
    """A signal distance over utterances."""

    mean: float
    p95: float


class Signal(Record):
    """Distances over all utterances."""

    log_mel_distance_db: float
    """Mean over utterances, decibels; frames aligned by time warping where the timing differs."""

    log_mel_distance: MeanAndTail
    snr_db: float | None
    """Over the utterances of the same timing; None if there are none or they are identical."""

    equal_length: float
    """Share of utterances whose audio has the same length."""

    same_timing: float
    """Share of utterances with the same length and symbol durations; where those are not known,
    neither is late (`spectra.same_timing`)."""

    same_timing_log_mel_distance_db: float | None
    """Mean over those: there every frame had the same noise, so this is the sharpest measure of
    damage. None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One candidate against its reference."""

    spectra: Comparison
    equal_length: bool
    same_timing: bool
    signal: float
    """Energy of the reference, and `noise` of the difference; zero where the timing differs."""

    noise: float


def observe(reference: Audio, candidate: Audio) -> Difference:
    """Return the difference between the candidate's and the reference's audio.

    Raises:
        ValueError: The sample rates differ.
    """
    same = same_timing(reference, candidate)
    signal = noise = 0.0
    if same:
        exact = reference.samples.astype(np.float64)
        signal = float(np.sum(np.square(exact)))
        noise = float(np.sum(np.square(exact - candidate.samples)))
    return Difference(
        spectra=compare_spectra(reference, candidate),
        equal_length=len(reference.samples) == len(candidate.samples),
        same_timing=same,
        signal=signal,
        noise=noise,
    )


def snr_db(differences: Sequence[Difference]) -> float | None:
    """Return the reference's energy over the difference's, over all pairs of the same timing.

    None where there is no such pair, where they are identical, or where either is not finite.
    """
    signal = noise = 0.0
    for difference in differences:
        signal += difference.signal
        noise += difference.noise
    if not (0.0 < signal < np.inf and 0.0 < noise < np.inf):
        return None
    return float(10.0 * np.log10(signal / noise))


def _compute(run: Run) -> Signal:
    differences: list[Difference] = run.observations("signal")
    distances = [difference.spectra.distance_db for difference in differences]
    sharp = [difference.spectra.distance_db for difference in differences if difference.same_timing]
    mean = float(np.mean(distances))
    return Signal(
        log_mel_distance_db=mean,
        log_mel_distance=MeanAndTail(mean=mean, p95=float(np.quantile(distances, 0.95))),
        snr_db=snr_db(differences),
        equal_length=float(np.mean([difference.equal_length for difference in differences])),
        same_timing=float(np.mean([difference.same_timing for difference in differences])),
        same_timing_log_mel_distance_db=float(np.mean(sharp)) if sharp else None,
    )


def distance_judgement(evaluation: Evaluation) -> tuple[Trend, str]:
    """Compare the distance to the reference with that between two of its seeds."""
    distance = evaluation.signal.log_mel_distance_db
    floor = evaluation.floors.other_seeds_log_mel_distance_db
    if not (formatting.is_finite(distance) and formatting.is_finite(floor)):
        return "unknown", "not measured"
    if floor == 0.0:
        return "unknown", NO_FLOOR
    if distance < floor:
        return "same", "closer than the reference is to itself with another seed"
    return "worse", "as far as, or farther than, the reference is from itself with another seed"


def _rows(signal: Signal, evaluation: Evaluation) -> list[Row]:
    floor_db = evaluation.floors.other_seeds_log_mel_distance_db
    floor = f"floor, other seeds: {formatting.decibels(floor_db)}" if floor_db else NO_FLOOR
    distance = formatting.decibels(signal.log_mel_distance_db)
    trend, judgement = distance_judgement(evaluation)
    share = formatting.percent(signal.same_timing)
    sharp = signal.same_timing_log_mel_distance_db
    return [
        Row(
            label="Log-mel distance",
            candidate=distance,
            change=floor,
            trend=trend,
            # Where distortion is measured, that is the headline.
            headline=None
            if evaluation.distortion
            else Headline(distance, floor.removeprefix("floor, "), judgement),
        ),
        Row(
            label="Log-mel, same timing",
            candidate=formatting.decibels(sharp),
            change=f"over the {share} of same timing"
            if formatting.is_finite(sharp)
            else "no utterances of same timing",
        ),
        Row(
            label="Signal-to-noise ratio",
            candidate=formatting.decibels(signal.snr_db),
            change=f"over the {share} of same timing"
            if formatting.is_finite(signal.snr_db)
            else "no same timing, or no difference",
        ),
    ]


class Health(Record):
    """Number of utterances that are broken whatever their words."""

    silent: int
    clipped: int
    not_finite: int
    empty: int

    @property
    def defects(self) -> int:
        """Number of defects: an utterance that is silent and clipped counts twice."""
        return self.silent + self.clipped + self.not_finite + self.empty

    def __str__(self) -> str:
        """Return the defects by kind, such as `2 silent, 1 clipped`, or `none`."""
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in self if count]
        return ", ".join(counts) or "none"


def check_health(audio: Audio) -> Health:
    """Return the problems of one utterance, each 0 or 1.

    silent: root mean square below -50 dB of full scale. clipped: more than 0.1 % of the samples
    at 0.999 of full scale or above. not_finite: any NaN or infinity. empty: shorter than 0.1 s.
    """
    samples = audio.samples.astype(np.float64)
    finite = samples[np.isfinite(samples)]
    power = float(np.mean(np.square(finite))) if finite.size else 0.0
    peaks = float(np.mean(np.abs(samples) >= _CLIPPED_AT)) if samples.size else 0.0
    return Health(
        silent=power < 10.0 ** (_SILENT_DBFS / 10.0),
        clipped=peaks > _CLIPPED_SHARE,
        not_finite=finite.size < samples.size,
        empty=audio.duration_s < _SHORTEST_S,
    )


def _compute_health(run: Run) -> Pair[Health]:
    fields = Health.model_fields
    reference, candidate = (
        Health(**{name: sum(getattr(health, name) for health in checked) for name in fields})
        for checked in zip(*run.observations("health"), strict=True)
    )
    return Pair(reference=reference, candidate=candidate)


def _health_rows(health: Pair[Health], evaluation: Evaluation) -> list[Row]:
    before, after = health.reference.defects, health.candidate.defects
    spoken = evaluation.utterances
    share = "nothing was spoken"
    if spoken:
        bound = rate_bound([False] * len(spoken), [said.transcript for said in spoken])
        share = f"none of {len(spoken)}, so below {formatting.percent(bound)} with 95 % confidence"
    return [
        Row(
            label="Broken utterances",
            reference=str(health.reference),
            candidate=str(health.candidate),
            change="fails, whatever its word error rate" if after else share,
            trend="worse" if after else "better" if before else "same",
            headline=Headline(
                str(after),
                f"of {len(spoken)} spoken; reference: {before}",
                str(health.candidate) if after else "none silent, clipped, empty or not finite",
            ),
        )
    ]


METRICS = (
    Metric(
        name="signal",
        group="sound",
        result=Signal,
        observe=lambda audios: observe(audios.reference, audios.candidate),
        compute=_compute,
        rows=_rows,
        figures={
            "snr_db": Figure("signal-to-noise ratio", formatting.decibels),
            "log_mel_distance_db": Figure("log-mel distance", formatting.decibels),
            "same_timing_log_mel_distance_db": Figure(
                "log-mel distance, same timing", partial(formatting.decibels, digits=2)
            ),
        },
        terms={
            "Log-mel distance": "how far the audio is from the reference's with the same noise; "
            "0 dB is the same sound. Sharpest where the timing is the same: there every frame had "
            "the same noise.",
        },
    ),
    Metric(
        name="health",
        group="health",
        result=Pair[Health],
        observe=lambda audios: (check_health(audios.reference), check_health(audios.candidate)),
        compute=_compute_health,
        rows=_health_rows,
        figures={
            f"candidate.{name}": Figure(f"utterances that are {name.replace('_', ' ')}")
            for name in Health.model_fields
        },
    ),
)
