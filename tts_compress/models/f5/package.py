"""The official f5_tts package, imported without what only its training needs."""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

SAMPLE_RATE = 24_000
"""Sample rate of every F5-TTS model, Hz."""

HOP_LENGTH = 256
"""Samples per frame of its mel spectrograms."""


_TRAINER = "f5_tts.model.trainer"
_TRAINING = ("accelerate", "datasets", "ema_pytorch", "wandb")


def official(name: str) -> Any:
    """Return a module of the package, such as `f5_tts.api`, or of what it is built on."""
    from tts_compress.models.shims.torchaudio import offer_torchaudio

    offer_torchaudio()
    _offer_trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about programs for other audio formats
        return import_module(name)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the package's prints out of our own output, which programs read."""
    with redirect_stdout(io.StringIO()):
        yield


class _Trainer:
    """Stands where f5_tts's trainer would be, and cannot train."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ImportError(f"training F5-TTS needs {', '.join(_TRAINING)}; install f5-tts with them")


def _offer_trainer() -> None:
    """Let `import f5_tts.model`, which loads its trainer, succeed where that lacks a package."""
    if _TRAINER in sys.modules or all(find_spec(name) is not None for name in _TRAINING):
        return
    module = ModuleType(_TRAINER)
    module.__spec__ = ModuleSpec(_TRAINER, None)
    vars(module)["Trainer"] = _Trainer
    sys.modules[_TRAINER] = module
