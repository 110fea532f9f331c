"""Compare a compressed model with its reference, and judge the difference."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tts_compress.evaluate.gates import Gate, GateResult, Gates, Verdict, check, read_gates
from tts_compress.evaluate.options import EvaluationOptions
from tts_compress.evaluate.run import evaluate
from tts_compress.evaluate.suite import Suite, SuiteText, read_suite

if TYPE_CHECKING:
    from tts_compress.report.evaluation import Evaluation

__all__ = [
    "EvaluationOptions",
    "Gate",
    "GateResult",
    "Gates",
    "Suite",
    "SuiteText",
    "Verdict",
    "check",
    "evaluate",
    "read_gates",
    "read_suite",
]


class _Verb(ModuleType):
    """A package that is called like the verb it is named for.

    `tts_compress.evaluate` is the public function until somebody imports this package; from then
    on Python binds that name to the package, whatever `tts_compress` says.
    """

    def __call__(self, *models: Any, **keywords: Any) -> Evaluation:
        return evaluate(*models, **keywords)


sys.modules[__name__].__class__ = _Verb
