"""Compare a compressed model with its reference, and judge the difference."""

from typing import TYPE_CHECKING

from tts_compress.lazy import resolve_lazily

if TYPE_CHECKING:
    from tts_compress.evaluation.gates import Gate as Gate
    from tts_compress.evaluation.gates import GateResult as GateResult
    from tts_compress.evaluation.gates import Gates as Gates
    from tts_compress.evaluation.gates import Verdict as Verdict
    from tts_compress.evaluation.gates import gate as gate
    from tts_compress.evaluation.gates import read_gates as read_gates
    from tts_compress.evaluation.modules import ModuleEvaluation as ModuleEvaluation
    from tts_compress.evaluation.options import EvaluationOptions as EvaluationOptions
    from tts_compress.evaluation.recordings import evaluate_audio as evaluate_audio
    from tts_compress.evaluation.result import Evaluation as Evaluation
    from tts_compress.evaluation.result import read_report as read_report
    from tts_compress.evaluation.run import evaluate as evaluate
    from tts_compress.evaluation.suite import Suite as Suite
    from tts_compress.evaluation.suite import SuiteText as SuiteText
    from tts_compress.evaluation.suite import read_suite as read_suite

# Resolved on first use: an evaluation starts many workers, which need none of them.
_NAMES = {
    "gates": ("Gate", "GateResult", "Gates", "Verdict", "gate", "read_gates"),
    "modules": ("ModuleEvaluation",),
    "options": ("EvaluationOptions",),
    "recordings": ("evaluate_audio",),
    "result": ("Evaluation", "read_report"),
    "run": ("evaluate",),
    "suite": ("Suite", "SuiteText", "read_suite"),
}

__all__ = [name for names in _NAMES.values() for name in names]
__getattr__, __dir__ = resolve_lazily(__name__, _NAMES)
