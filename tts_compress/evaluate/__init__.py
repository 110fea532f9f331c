"""Compare a compressed model with its reference, and judge the difference."""

from __future__ import annotations

from tts_compress.evaluate.gates import Gate, GateResult, Gates, Verdict, check, read_gates
from tts_compress.evaluate.options import EvaluationOptions, Progress
from tts_compress.evaluate.run import evaluate
from tts_compress.evaluate.suite import Suite, SuiteText, read_suite

__all__ = [
    "EvaluationOptions",
    "Gate",
    "GateResult",
    "Gates",
    "Progress",
    "Suite",
    "SuiteText",
    "Verdict",
    "check",
    "evaluate",
    "read_gates",
    "read_suite",
]
