"""Audio that is broken whatever its words."""

import numpy as np

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Figure, Headline, Metric, Pair, Record, Row
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
    known = samples[np.isfinite(samples)]
    power = float(np.mean(np.square(known))) if known.size else 0.0
    peaks = float(np.mean(np.abs(samples) >= _CLIPPED_AT)) if samples.size else 0.0
    return Health(
        silent=power < 10.0 ** (_SILENT_DBFS / 10.0),
        clipped=peaks > _CLIPPED_SHARE,
        not_finite=known.size < samples.size,
        empty=audio.duration_s < _SHORTEST_S,
    )


def _compute(run: Run) -> Pair[Health]:
    fields = Health.model_fields
    reference, candidate = (
        Health(**{name: sum(getattr(one, name) for one in checked) for name in fields})
        for checked in zip(*run.observations("health"), strict=True)
    )
    return Pair(reference=reference, candidate=candidate)


def _rows(health: Pair[Health], evaluation: Evaluation) -> list[Row]:
    before, after = health.reference.defects, health.candidate.defects
    return [
        Row(
            label="Broken utterances",
            reference=str(health.reference),
            candidate=str(health.candidate),
            change="fails, whatever its word error rate" if after else "all are sound",
            trend="worse" if after else "better" if before else "same",
            headline=Headline(
                str(after),
                f"of {len(evaluation.utterances)} spoken; reference: {before}",
                str(health.candidate) if after else "none silent, clipped, empty or not finite",
            ),
        )
    ]


METRICS = (
    Metric(
        name="health",
        group="health",
        result=Pair[Health],
        observe=lambda audios: (check_health(audios.reference), check_health(audios.candidate)),
        compute=_compute,
        rows=_rows,
        figures={
            f"candidate.{name}": Figure(f"utterances that are {name.replace('_', ' ')}")
            for name in Health.model_fields
        },
    ),
)
