"""Settings of a search and of a sensitivity analysis."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tts_compress.errors import EvaluationError, QuantizationError
from tts_compress.options import option
from tts_compress.progress import Progress, default_progress

Objective: TypeAlias = Literal["size", "latency", "memory", "first-audio"]
"""A cost that a search makes small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityOptions:
    """Settings of a sensitivity analysis."""

    formats: tuple[str, ...] = option(
        (),
        "--formats FORMAT",
        "such as 'int8 static' float16 (those of the family's recipes that a CPU gains by)",
    )
    """Names of formats; those of the family's recipes by default."""

    groups: tuple[str, ...] = option(
        (),
        "--groups PATTERN",
        "layers that get one format, by their dotted names; the rest is grouped up to the first "
        "number of its names",
    )
    """Patterns that make groups; other layers are grouped by their names."""

    each_layer: bool = option(False, "--layers", "every layer that no pattern names for itself")
    """Measure every layer for itself."""

    everything: bool = option(False, "--all", "measure also what is negligible by its estimate")
    """Measure also where the estimate is negligible."""

    recipe: str | Path | None = None
    """A recipe of `int8` whose form and calibration hold; the family's by default."""

    texts: int = option(8, "--texts TEXTS", "short texts of the calibration set")
    """Texts that are spoken, short ones of the calibration set."""

    calibration: str | None = option(
        None, "--calibration SET", "a calibration set's name or TOML (the recipe's)"
    )
    """A calibration set in the place of the recipe's."""

    seed: int = option(0, "--seed SEED", "of the noise")
    progress: Progress = field(default_factory=default_progress)

    def __post_init__(self) -> None:
        if self.texts < 1:
            raise QuantizationError(f"texts is {self.texts}; give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Settings of a search."""

    objective: Objective = option("size", "--objective", "what to make small")
    max_wer_rise: float = option(
        0.5,
        "--max-wer-rise POINTS",
        "bound on the rise of the word error rate, in percentage points",
    )
    """Percentage points of the word error rate; per cent of the reference's where `relative`."""

    relative: bool = option(False, "--relative", "the bound is in per cent of the reference's rate")
    strict: bool = option(
        False,
        "--strict",
        "accept only what the whole 95 %% interval shows; by default the rise itself has to be "
        "within the bound",
    )
    """Accept only what the upper end of the interval shows to be within the bound."""

    damage: float = option(
        0.5,
        "--damage DISTORTION",
        "bound on distortion before words are judged, 1 is what telephone coding adds, as of "
        "`quantize --quality`: 0.5 is good, 0.25 high",
    )
    """Largest distortion on the short texts, and share of the gates' margins that a moment's damage
    takes; with pauses within 3 dB and durations within a frame in a hundred symbols."""

    trials: int = option(48, "--trials TRIALS", "choices to measure")
    judged: int = option(3, "--judge JUDGE", "candidates to evaluate at most")
    """Candidates that are evaluated at most, until one is within the bound."""

    suite: str = option("en-quick", "--suite SUITE", "of the words")
    recognizer: str | None = option(
        None, "--recognizer NAME[:MODEL]", "as of `evaluate` (the suite's)"
    )
    storage: str | None = option(
        None,
        "--storage URL",
        "a database that several searches share, such as sqlite:///study.db (a file in the output)",
    )
    sensitivity: SensitivityOptions = field(default_factory=SensitivityOptions)
    progress: Progress = field(default_factory=default_progress)

    def __post_init__(self) -> None:
        for name in ("damage", "trials", "judged"):
            if not 0 < getattr(self, name) < math.inf:
                raise EvaluationError(f"{name} is {getattr(self, name)}; give a number above 0")
        if not 0 <= self.max_wer_rise < math.inf:
            raise EvaluationError(f"max_wer_rise is {self.max_wer_rise}; give 0 or more")
