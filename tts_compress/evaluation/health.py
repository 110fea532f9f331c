"""Audio that is broken whatever its words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tts_compress.report.evaluation import Health

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tts_compress.audio import Audio

__all__ = ["check_health"]

_SILENT_DBFS = -50.0
_CLIPPED_AT = 0.999
_CLIPPED_SHARE = 0.001
_SHORTEST_S = 0.1


def check_health(audios: Iterable[Audio]) -> Health:
    """Count broken utterances; one may count under several heads.

    silent: root mean square below -50 dB of full scale. clipped: more than 0.1 % of the samples
    at 0.999 of full scale or above. not_finite: any NaN or infinity. empty: shorter than 0.1 s.
    """
    found = [_problems(audio) for audio in audios]
    return Health(**{name: sum(row[name] for row in found) for name in Health.model_fields})


def _problems(audio: Audio) -> dict[str, bool]:
    samples = audio.samples.astype(np.float64)
    finite = bool(np.isfinite(samples).all())
    known = samples[np.isfinite(samples)]
    power = float(np.mean(np.square(known))) if known.size else 0.0
    return {
        "silent": power < 10.0 ** (_SILENT_DBFS / 10.0),
        "clipped": samples.size > 0
        and float(np.mean(np.abs(samples) >= _CLIPPED_AT)) > _CLIPPED_SHARE,
        "not_finite": not finite,
        "empty": audio.duration_s < _SHORTEST_S,
    }
