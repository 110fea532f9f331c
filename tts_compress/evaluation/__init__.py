"""Compare a compressed model with its reference, and judge the difference."""

from tts_compress.evaluation.gates import Gate, GateResult, Gates, Verdict, check, read_gates
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.result import Evaluation, read_report
from tts_compress.evaluation.run import evaluate
from tts_compress.evaluation.suite import Suite, SuiteText, read_suite

__all__ = [
    "Evaluation",
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
    "read_report",
    "read_suite",
]
