"""One line of the summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_compress.report.judgement import Trend

__all__ = ["Row"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement of both models, ready to print."""

    label: str
    reference: str
    """Empty where the measurement is a distance from the reference."""

    candidate: str
    change: str
    """What happened, in words that say which way is up."""

    trend: Trend
    """Whether the change is one for the better; `same` also for what chance may have done."""
