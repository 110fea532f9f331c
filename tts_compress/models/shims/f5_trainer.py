"""The trainer of f5_tts, where what only training needs is not installed.

`import f5_tts` loads its trainer, and that loads a service for logging experiments and a library
of data sets. Speaking uses neither.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

__all__ = ["Trainer", "offer_f5_trainer"]

_NAME = "f5_tts.model.trainer"
_NEEDS = ("accelerate", "datasets", "ema_pytorch", "wandb")


class Trainer:
    """Stands where f5_tts's trainer would be, and cannot train."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ImportError(f"training F5-TTS needs {', '.join(_NEEDS)}; install f5-tts with them")


def offer_f5_trainer() -> None:
    """Let `import f5_tts.model` succeed where a package that only its trainer needs is missing."""
    if _NAME in sys.modules or all(find_spec(name) is not None for name in _NEEDS):
        return
    module = ModuleType(_NAME, doc=__doc__)
    module.__spec__ = ModuleSpec(_NAME, None)
    vars(module)["Trainer"] = Trainer
    sys.modules[_NAME] = module
