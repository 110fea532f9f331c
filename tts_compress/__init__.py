"""Make text-to-speech models small and fast, and prove what that cost.

>>> from tts_compress import compress, evaluate, load
>>> voice = load("demo")
>>> small = compress(voice, scheme="int8")
>>> small.save("out/demo-int8")
>>> evaluate(voice, small, suite="en-quick").write("out/report")
"""

import os
from typing import TYPE_CHECKING

from tts_compress.lazy import resolve_lazily

# onnxruntime would report its use, and keep files for that in the user's cache.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from tts_compress.compression import compress as compress
    from tts_compress.compression import compress_trained as compress_trained
    from tts_compress.errors import TTSCompressError as TTSCompressError
    from tts_compress.evaluation import Evaluation as Evaluation
    from tts_compress.evaluation import EvaluationOptions as EvaluationOptions
    from tts_compress.evaluation import ModuleEvaluation as ModuleEvaluation
    from tts_compress.evaluation import evaluate as evaluate
    from tts_compress.evaluation import evaluate_audio as evaluate_audio
    from tts_compress.evaluation import gate as gate
    from tts_compress.evaluation import read_gates as read_gates
    from tts_compress.evaluation import read_report as read_report
    from tts_compress.models import load as load
    from tts_compress.models.base import Prompt as Prompt
    from tts_compress.models.base import Speaking as Speaking
    from tts_compress.models.execution import Execution as Execution
    from tts_compress.qat.options import TrainingOptions as TrainingOptions
    from tts_compress.qat.options import TrainingRun as TrainingRun
    from tts_compress.qat.prepare import convert_qat as convert_qat
    from tts_compress.qat.prepare import prepare_qat as prepare_qat
    from tts_compress.recipes.formats import SCHEMES as SCHEMES
    from tts_compress.recipes.recipe import Recipe as Recipe
    from tts_compress.recipes.recipe import find_recipe as find_recipe
    from tts_compress.report import write_report as write_report
    from tts_compress.torch.layers.checkpoint import load_module as load_module
    from tts_compress.torch.layers.checkpoint import manifest_of as manifest_of
    from tts_compress.torch.layers.checkpoint import save_module as save_module

# Resolved on first use, so that the import costs neither torch nor onnxruntime.
_NAMES = {
    "compression": ("compress", "compress_trained"),
    "errors": ("TTSCompressError",),
    "evaluation": (
        *("Evaluation", "EvaluationOptions", "ModuleEvaluation"),
        *("evaluate", "evaluate_audio", "gate", "read_gates", "read_report"),
    ),
    "models": ("load",),
    "models.base": ("Prompt", "Speaking"),
    "models.execution": ("Execution",),
    "qat.options": ("TrainingOptions", "TrainingRun"),
    "qat.prepare": ("convert_qat", "prepare_qat"),
    "recipes.recipe": ("Recipe", "find_recipe"),
    "recipes.formats": ("SCHEMES",),
    "report": ("write_report",),
    "torch.layers.checkpoint": ("load_module", "manifest_of", "save_module"),
}

__all__ = [name for names in _NAMES.values() for name in names]
__getattr__, __dir__ = resolve_lazily(__name__, _NAMES)
