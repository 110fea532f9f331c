"""Speech recognizers behind one protocol; they measure intelligibility.

A module of this package, named as suites name it, is a recognizer if it has a function
`open_recognizer() -> Recognizer`. Another package names such a module under the entry points
`tts_compress.recognizers`.
"""

import pkgutil
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

from tts_compress.audio import Audio
from tts_compress.errors import EvaluationError, MissingExtraError

__all__ = ["Recognizer", "open_recognizer", "recognizer_names"]

_GROUP = "tts_compress.recognizers"


class Recognizer(Protocol):
    """Turns speech into words; its transcript of one audio never depends on another."""

    @property
    def description(self) -> str:
        """Recognizer, acoustic model and language model, with versions, for the report."""

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript, not normalised; empty where no words are found.

        Takes any sample rate and never fails on silent, empty or non-finite samples: a broken
        candidate is a finding, not an error.
        """


def recognizer_names() -> frozenset[str]:
    """Return the names suites may use; nothing is imported for that."""
    shipped = {info.name for info in pkgutil.iter_modules(__path__)}
    return frozenset(shipped | entry_points(group=_GROUP).names)


def open_recognizer(name: str) -> Recognizer:
    """Open a recognizer; this loads its models.

    Raises:
        EvaluationError: There is none of that name.
        MissingExtraError: Its package is not installed.
    """
    known = recognizer_names()
    if name not in known:
        raise EvaluationError(f"no recognizer named {name!r}; known: {', '.join(sorted(known))}")
    others = entry_points(group=_GROUP, name=name)
    try:
        module = next(iter(others)).load() if others else import_module(f"{__name__}.{name}")
        opened: Recognizer = module.open_recognizer()
    except ImportError as error:
        raise MissingExtraError(error.name or name, "evaluate") from error
    return opened
