"""Make text-to-speech models small and fast, and prove what that cost.

>>> from tts_compress import compress, evaluate, load
>>> voice = load("demo")
>>> small = compress(voice, scheme="int8")
>>> small.save("out/demo-int8")
>>> evaluate(voice, small, suite="en-quick").write("out/report")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_compress.compression import compress
    from tts_compress.errors import TTSCompressError
    from tts_compress.evaluation import (
        Evaluation,
        EvaluationOptions,
        check,
        evaluate,
        read_gates,
        read_report,
    )
    from tts_compress.models import load
    from tts_compress.recipes.family import find_recipe
    from tts_compress.recipes.recipe import Recipe
    from tts_compress.recipes.schemes import SCHEMES
    from tts_compress.report import write_report
    from tts_compress.torch.layers.module_file import load_module, save_module

__all__ = [
    "SCHEMES",
    "Evaluation",
    "EvaluationOptions",
    "Recipe",
    "TTSCompressError",
    "check",
    "compress",
    "evaluate",
    "find_recipe",
    "load",
    "load_module",
    "read_gates",
    "read_report",
    "save_module",
    "write_report",
]

# Resolved on first use, so that the import costs neither torch nor onnxruntime.
_HOMES = {
    "SCHEMES": "tts_compress.recipes.schemes",
    "Evaluation": "tts_compress.evaluation",
    "EvaluationOptions": "tts_compress.evaluation",
    "Recipe": "tts_compress.recipes.recipe",
    "TTSCompressError": "tts_compress.errors",
    "check": "tts_compress.evaluation",
    "compress": "tts_compress.compression",
    "evaluate": "tts_compress.evaluation",
    "find_recipe": "tts_compress.recipes.family",
    "load": "tts_compress.models",
    "load_module": "tts_compress.torch.layers.module_file",
    "read_gates": "tts_compress.evaluation",
    "read_report": "tts_compress.evaluation",
    "save_module": "tts_compress.torch.layers.module_file",
    "write_report": "tts_compress.report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
