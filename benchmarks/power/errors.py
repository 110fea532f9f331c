"""`python -m benchmarks.power.errors REPORT`: word errors of an evaluation, with any seeds.

The shipped ones are of `tts-compress evaluate demo out/demo-int8 --suite en-full --seeds 0 1 2 1000
1001 1002`.
"""

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError, model_validator

from benchmarks.command import Add, command
from tts_compress.artifact import write_text_atomically
from tts_compress.config import Config, describe_problems
from tts_compress.errors import EvaluationError, raising
from tts_compress.evaluation.plan import Spread, measure_spread
from tts_compress.evaluation.result import Evaluation, ModelIdentity, read_report
from tts_compress.terminal import show

SHIPPED = Path(__file__).parents[2] / "eval" / "reports" / "word-errors.json"


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
        candidate: npt.NDArray[np.int64] = np.array(self.candidate.errors, np.int64)
        return candidate - np.array(self.reference.errors, np.int64)[:, places]

    def spread(self) -> Spread:
        """Return the spread of the differences."""
        errors = np.array(self.reference.errors)
        return measure_spread(self.differences(), np.array(self.words), errors)


def read_word_errors(path: Path = SHIPPED) -> WordErrors:
    """Return the word errors in a file."""
    with raising(EvaluationError, f"cannot read '{path}'"):
        content = path.read_bytes()
    try:
        return WordErrors.model_validate_json(content)
    except ValidationError as error:
        raise EvaluationError(
            f"'{path}' holds no word errors as `make prove` reads: {describe_problems(error)}"
        ) from error


def errors_of(report: Evaluation) -> WordErrors:
    """Return the word errors of an evaluation."""
    seeds = report.suite.seeds
    rows = {(row.index, row.seed): row for row in report.utterances}
    texts = [[rows[index, seed] for seed in seeds] for index in range(report.suite.texts)]

    def model(identity: ModelIdentity, role: str) -> ModelErrors:
        errors = tuple(tuple(getattr(row, role).word_errors for row in text) for text in texts)
        return ModelErrors(spec=identity.spec, sha256=identity.sha256, seeds=seeds, errors=errors)

    return WordErrors(
        suite=report.suite.name,
        recognizer=report.suite.recognizer,
        normalizer=report.suite.normalizer,
        words=tuple(text[0].words for text in texts),
        reference=model(report.reference, "reference"),
        candidate=model(report.candidate, "candidate"),
    )


def _options(add: Add) -> None:
    add("report", type=Path, help="report.json, or its directory")
    add("--errors", type=Path, default=SHIPPED, metavar="JSON", help="what is written")


@command("benchmarks.power.errors", _options, label="errors")
def main(options: Namespace) -> None:
    """Write the word errors of an evaluation, for benchmarks.power."""
    errors = errors_of(read_report(options.report))
    write_text_atomically(options.errors, errors.model_dump_json() + "\n")
    show(f"written: {options.errors}")


if __name__ == "__main__":
    sys.exit(main())
