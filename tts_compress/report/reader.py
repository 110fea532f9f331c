"""Reports from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import EvaluationError

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.report.evaluation import Evaluation

__all__ = ["REPORT_NAME", "read_report"]

REPORT_NAME = "report.json"


def read_report(path: Path) -> Evaluation:
    """Return the evaluation that a report holds.

    Args:
        path: A `report.json`, or the directory it lies in.

    Raises:
        EvaluationError: There is no such file, or it is not an evaluation report.
    """
    from tts_compress.report.evaluation import Evaluation

    file = path / REPORT_NAME if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise EvaluationError(
            f"there is no report at '{file}'; give a {REPORT_NAME} or the directory it lies in, "
            "as written by `tts-compress evaluate`"
        ) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise EvaluationError(f"cannot read the report '{file}': {error}") from error
    try:
        return Evaluation.from_json(text)
    except EvaluationError as error:
        raise EvaluationError(f"'{file}' is {error}") from error
