"""How fast two models are: times, ratio, interval and words of one statistic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.report import wording

if TYPE_CHECKING:
    from tts_compress.report.evaluation import LatencyComparison

__all__ = ["Speed", "speed_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Both models' latency, as a report shows it."""

    average: str
    """What the times are: `mean`, or `median` in old reports."""

    reference_ms: float
    candidate_ms: float
    ratio: float
    """Reference over candidate: above 1 the candidate is faster."""

    interval: tuple[float, float] | None
    """95 % interval of the ratio; None where there is none."""

    @property
    def words(self) -> str:
        """The ratio in words, such as `1.6x faster`."""
        return wording.times(self.ratio, "faster", "slower")

    @property
    def interval_words(self) -> str:
        """`95 % interval`, and that of the number in `words`; empty where there is none."""
        shown = wording.times_interval(self.ratio, self.interval)
        return "" if shown == wording.MISSING else f"95 % interval {shown}"

    @property
    def change(self) -> str:
        """The words with their interval in brackets, where there is one."""
        return f"{self.words} ({self.interval_words})" if self.interval_words else self.words


def speed_of(latency: LatencyComparison) -> Speed:
    """Return what a report shows of a comparison of latencies."""
    reference, candidate = latency.reference, latency.candidate
    if latency.ratio is None or reference.mean_ms is None or candidate.mean_ms is None:
        # Reports of before the mean was measured.
        return Speed(
            average="median",
            reference_ms=reference.p50_ms,
            candidate_ms=candidate.p50_ms,
            ratio=latency.p50_ratio,
            interval=None,
        )
    return Speed(
        average="mean",
        reference_ms=reference.mean_ms,
        candidate_ms=candidate.mean_ms,
        ratio=latency.ratio,
        interval=latency.interval,
    )
