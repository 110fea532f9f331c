"""Word errors of a model and a compressed one, text by text and seed by seed, as shipped.

`eval/reports/word-errors.json` holds those of the demo voice: what `evaluate --plan` and
`make prove` know of an evaluation before it is run.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from tts_compress.config import Config, describe_problems, word_errors_file
from tts_compress.errors import EvaluationError, reason
from tts_compress.evaluation.power import Spread, measure_spread
from tts_compress.reading import read_bytes

_LARGEST_BYTES = 10_000_000


class ModelErrors(Config):
    """Errors of one model."""

    spec: str
    sha256: str
    seeds: tuple[int, ...] = Field(min_length=1)
    errors: tuple[tuple[int, ...], ...]
    """Word errors of each text, shape `[texts, seeds]`, in the order of `seeds`."""


class WordErrors(Config):
    """Errors of both models over the same texts."""

    suite: str
    recognizer: str
    """Its description, with versions."""

    normalizer: str
    words: tuple[int, ...] = Field(min_length=2)
    """Words of each text's transcript."""

    reference: ModelErrors
    candidate: ModelErrors

    @model_validator(mode="after")
    def _has_one_shape(self) -> "WordErrors":
        for model in (self.reference, self.candidate):
            lengths = {len(row) for row in model.errors}
            if len(model.errors) != len(self.words) or lengths != {len(model.seeds)}:
                raise ValueError(
                    f"the errors of '{model.spec}' are not {len(self.words)} texts by "
                    f"{len(model.seeds)} seeds"
                )
        if not {*self.candidate.seeds} <= {*self.reference.seeds}:
            raise ValueError("the candidate has seeds that the reference lacks")
        return self

    def differences(self) -> npt.NDArray[np.int64]:
        """Return candidate minus reference with the candidate's seeds, shape `[B, S]`."""
        places = [self.reference.seeds.index(seed) for seed in self.candidate.seeds]
        found: npt.NDArray[np.int64] = np.array(self.candidate.errors, np.int64)
        return found - np.array(self.reference.errors, np.int64)[:, places]

    def spread(self) -> Spread:
        """Return the spread of the differences."""
        errors = np.array(self.reference.errors)
        return measure_spread(self.differences(), np.array(self.words), errors)


def read_word_errors(path: Path | None = None) -> WordErrors:
    """Return the word errors in a file; by default those that are shipped.

    Raises:
        EvaluationError: It cannot be read, or is no such file.
    """
    path = path or word_errors_file()
    try:
        return WordErrors.model_validate_json(read_bytes(path, _LARGEST_BYTES))
    except ValidationError as error:
        raise EvaluationError(
            f"'{path}' holds no word errors as `make prove` reads: {describe_problems(error)}"
        ) from error
    except (OSError, ValueError) as error:
        raise EvaluationError(f"cannot read '{path}': {reason(error)}") from error
