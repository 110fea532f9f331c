"""How far two renderings of one text are from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tts_compress.evaluation.alignment import frame_distances, warped_distance
from tts_compress.evaluation.logmel import log_mel
from tts_compress.report.evaluation import Distances

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tts_compress.audio import Audio

__all__ = ["log_mel_distance", "same_timing", "snr_db", "summarize_distances"]


def log_mel_distance(reference: Audio, candidate: Audio) -> float:
    """Return the log-mel distance in decibels; 0 for identical audio.

    Per frame the root-mean-square difference over mels, then the mean over frames. Frames are
    compared one by one where the timing is the same, else along the best alignment in time.

    Raises:
        ValueError: The sample rates differ.
    """
    if reference.sample_rate != candidate.sample_rate:
        rates = f"{reference.sample_rate} and {candidate.sample_rate}"
        raise ValueError(f"cannot compare audio at {rates} Hz")
    left, right = log_mel(reference), log_mel(candidate)
    if same_timing(reference, candidate):
        return float(np.mean(frame_distances(left, right)))
    return warped_distance(left, right)


def same_timing(reference: Audio, candidate: Audio) -> bool:
    """Return whether each moment of one is the same moment of the other.

    Equal length is not enough where durations are known: of two symbols one may have gained the
    frame that the other lost, and everything between them is late.
    """
    if len(reference.samples) != len(candidate.samples):
        return False
    if reference.durations is None or candidate.durations is None:
        return True
    return np.array_equal(reference.durations, candidate.durations)


def snr_db(pairs: Iterable[tuple[Audio, Audio]]) -> float | None:
    """Return the reference's energy over the difference's, over all pairs of the same timing.

    None where there is no such pair, where they are identical, or where either is not finite.
    """
    signal = noise = 0.0
    for reference, candidate in pairs:
        if not same_timing(reference, candidate):
            continue
        exact = reference.samples.astype(np.float64)
        signal += float(np.sum(np.square(exact)))
        noise += float(np.sum(np.square(exact - candidate.samples)))
    if not (0.0 < signal < np.inf and 0.0 < noise < np.inf):
        return None
    return float(10.0 * np.log10(signal / noise))


def summarize_distances(distances: Sequence[float]) -> Distances:
    """Return mean and 95th percentile over utterances."""
    return Distances(mean=float(np.mean(distances)), p95=float(np.quantile(distances, 0.95)))
