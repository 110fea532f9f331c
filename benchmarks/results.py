"""Measurements; `bench.json` holds exactly these fields."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from tts_compress.evaluation.bootstrap import compare_times

_FORMAT_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MakingCost:
    """Cost of making a file in a fresh process."""

    seconds: float
    peak_bytes: int
    cores: int
    """The process was confined to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of a fresh process that opens the file and synthesizes the longest sentence once."""

    idle_bytes: int
    """Before the file was opened."""

    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Distance to FP32 under the same noise, over all sentences."""

    snr_db: float | None
    """At FP32's durations and other held tensors; None where it is not finite."""

    log_mel_db: float
    """At the same."""

    kept_durations: float | None
    """Share of ids whose own duration is FP32's."""

    duration_change: float | None
    """Change of the total, relative to FP32's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One sentence at one number of threads; runs of all contestants were taken in turns."""

    sentence: str
    threads: int
    audio_s: float
    min_ms: float
    median_ms: float
    rtf: float
    """Median time over the length of the audio; lower is better."""

    ratio_min: float
    """FP32's minimum over this one's; higher is better."""

    ratio_median: float
    interval: tuple[float, float] | None
    """95 % interval of the mean ratio (geometric) of runs that took turns; None for one run."""

    length_change: float
    """Change of the audio's length, relative to FP32's; ratios of unequal lengths mislead."""

    runs_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantResult:
    """One contestant on one voice."""

    kind: str
    name: str
    error: str | None = None
    size_bytes: int = 0
    size_ratio: float = 0.0
    making: MakingCost | None = None
    memory: Memory | None = None
    fidelity: Fidelity | None = None
    timings: tuple[Timing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceResult:
    """All contestants on one voice; the first is FP32."""

    name: str
    weights: Literal["random", "trained"]
    sample_rate: int
    sha256: str
    sentences: dict[str, int]
    """Ids that the graph is given, by sentence."""

    noise_floor: Fidelity
    """FP32 with one noise against FP32 with another."""

    contestants: tuple[ContestantResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One run."""

    environment: dict[str, object]
    rounds: int
    warm_ups: int
    voices: tuple[VoiceResult, ...]
    format_version: int = _FORMAT_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def summarize(
    sentence: str, threads: int, runs: tuple[list[float], float], fp32: tuple[list[float], float]
) -> Timing:
    """Return a contestant's timing.

    Args:
        sentence: Its name.
        threads: Number of threads of each run.
        runs: The contestant's times in milliseconds, and the seconds of audio it spoke.
        fp32: The same for FP32.
    """
    (own, audio_s), (reference, reference_s) = runs, fp32
    return Timing(
        sentence=sentence,
        threads=threads,
        audio_s=audio_s,
        min_ms=min(own),
        median_ms=float(np.median(own)),
        rtf=float(np.median(own)) / 1e3 / audio_s,
        ratio_min=min(reference) / min(own),
        ratio_median=float(np.median(reference) / np.median(own)),
        interval=compare_times(np.array(reference), np.array(own))[1],
        length_change=audio_s / reference_s - 1.0,
        runs_ms=tuple(own),
    )
