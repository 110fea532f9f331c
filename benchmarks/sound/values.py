"""Measured values, utterance by utterance, as the report's tables are made from."""

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from tts_compress.config import Config, describe_problems
from tts_compress.errors import EvaluationError

Rows: TypeAlias = tuple[tuple[float, ...], ...]
"""Shape `[texts, seeds]`."""

DISTORTION = "distortion"
WORDS = "word errors"


class Values(Config):
    """Values of every measure, and distances between renderings."""

    suite: str
    seeds: tuple[int, ...] = Field(min_length=1)
    machine: str
    """Processor, threads and versions."""

    units: dict[str, tuple[float, ...]]
    """Per text, what differences are divided by, for `distortion` (decibels that mu-law adds to
    the reference's distance from another rendering) and for `word errors` (words)."""

    takes: tuple[Rows, ...]
    """Distances between the reference's renderings of each text, seeds by seeds."""

    reference: dict[str, Rows]
    """By measure; of `distortion` there is none."""

    other_seeds: dict[str, Rows]
    """The reference with other seeds, likewise."""

    candidates: dict[str, dict[str, Rows]] = Field(default_factory=dict)
    """By name and measure; `distortion` in decibels added."""

    def of(self, candidate: str, measure: str) -> npt.NDArray[np.float64] | None:
        """Return candidate minus reference `[texts, seeds]`; None where it was not measured."""
        rows = self.candidates[candidate].get(measure)
        if rows is None:
            return None
        found: npt.NDArray[np.float64] = np.array(rows, np.float64)
        return found if measure == DISTORTION else found - np.array(self.reference[measure])


def read_values(path: Path) -> Values:
    """Return what `--measure` wrote.

    Raises:
        EvaluationError: It cannot be read, or is no such file.
    """
    try:
        return Values.model_validate_json(path.read_bytes())
    except OSError as error:
        raise EvaluationError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValidationError as error:
        raise EvaluationError(f"'{path}' holds no values: {describe_problems(error)}") from error
