"""Audio that is broken whatever its words."""

from collections.abc import Sequence

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Audios, Headline, Metric, Pair, Record, Row
from tts_compress.evaluation.pairs import Run
from tts_compress.evaluation.result import Evaluation

_SILENT_DBFS = -50.0
_CLIPPED_AT = 0.999
_CLIPPED_SHARE = 0.001
_SHORTEST_S = 0.1


class Health(Record):
    """Number of utterances that are broken whatever their words."""

    silent: int
    clipped: int
    not_finite: int
    empty: int


def check_health(audio: Audio) -> Health:
    """Return the problems of one utterance, each 0 or 1.

    silent: root mean square below -50 dB of full scale. clipped: more than 0.1 % of the samples
    at 0.999 of full scale or above. not_finite: any NaN or infinity. empty: shorter than 0.1 s.
    """
    samples = audio.samples.astype(np.float64)
    known = samples[np.isfinite(samples)]
    power = float(np.mean(np.square(known))) if known.size else 0.0
    peaks = float(np.mean(np.abs(samples) >= _CLIPPED_AT)) if samples.size else 0.0
    return Health(
        silent=power < 10.0 ** (_SILENT_DBFS / 10.0),
        clipped=peaks > _CLIPPED_SHARE,
        not_finite=known.size < samples.size,
        empty=audio.duration_s < _SHORTEST_S,
    )


def broken(health: Health) -> int:
    """Return the number of defects: an utterance that is silent and clipped counts twice."""
    return health.silent + health.clipped + health.not_finite + health.empty


def broken_in_words(health: Health) -> str:
    """Return the defects by kind, such as `2 silent, 1 clipped`, or `none`."""
    counts = [
        f"{count} {name.replace('_', ' ')}" for name, count in health.model_dump().items() if count
    ]
    return ", ".join(counts) or "none"


def _observe(audios: Audios) -> tuple[Health, Health]:
    return check_health(audios.reference), check_health(audios.candidate)


def _compute(run: Run) -> Pair[Health]:
    reference, candidate = (
        _total(checked) for checked in zip(*run.observations("health"), strict=True)
    )
    return Pair(reference=reference, candidate=candidate)


def _total(checked: Sequence[Health]) -> Health:
    fields = Health.model_fields
    return Health(**{name: sum(getattr(one, name) for one in checked) for name in fields})


def _rows(health: Pair[Health], evaluation: Evaluation) -> list[Row]:
    before, after = broken(health.reference), broken(health.candidate)
    kinds = broken_in_words(health.candidate)
    return [
        Row(
            label="Broken utterances",
            reference=broken_in_words(health.reference),
            candidate=kinds,
            change="fails, whatever its word error rate" if after else "all are sound",
            trend="worse" if after else "better" if before else "same",
            headline=Headline(
                str(after),
                f"of {len(evaluation.utterances)} spoken; reference: {before}",
                kinds if after else "none silent, clipped, empty or not finite",
            ),
        )
    ]


METRICS = (
    Metric(
        name="health",
        group="health",
        result=Pair[Health],
        observe=_observe,
        compute=_compute,
        rows=_rows,
    ),
)
