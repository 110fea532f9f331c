"""Speech recognizers behind one protocol; they measure intelligibility.

A module of this package, named as suites name it, with `_` for `-`, is a recognizer if it has a
function `open_recognizer(model: str, language: str) -> Recognizer`. Another package names such a
module under the entry points `tts_compress.recognizers`. If it needs packages beyond `evaluate`,
the module names this project's extra with them as `EXTRA`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from tts_compress.errors import EvaluationError, MissingExtraError

if TYPE_CHECKING:
    from tts_compress.audio import Audio

__all__ = ["Recognizer", "check_recognizer", "open_recognizer", "recognizer_names"]

_GROUP = "tts_compress.recognizers"


class Recognizer(Protocol):
    """Turns speech into words; its transcript of one audio never depends on another."""

    @property
    def description(self) -> str:
        """Recognizer, models and settings, with versions, for the report.

        Finished transcripts are kept by it: what decides them, such as the weights, is part of it.
        """

    @property
    def device(self) -> str:
        """`cpu`, or `cuda` for a recognizer of which one process at a time is enough."""

    def transcribe(self, audio: Audio) -> str:
        """Return the transcript, not normalised; empty where no words are found.

        Takes any sample rate and never fails on silent, empty or non-finite samples: a broken
        candidate is a finding, not an error.
        """


def recognizer_names() -> frozenset[str]:
    """Return the names suites may use; nothing is imported for that."""
    shipped = {info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)}
    return frozenset(shipped | entry_points(group=_GROUP).names)


def check_recognizer(given: str) -> str:
    """Return the name in `NAME` or `NAME:MODEL`.

    Raises:
        EvaluationError: There is no recognizer of that name.
    """
    name = given.partition(":")[0]
    known = recognizer_names()
    if name not in known:
        raise EvaluationError(f"no recognizer named {name!r}; known: {', '.join(sorted(known))}")
    return name


def open_recognizer(given: str, language: str) -> Recognizer:
    """Open a recognizer; this loads its models.

    Args:
        given: `NAME` for its default model, or `NAME:MODEL`, a hub's name or a folder.
        language: The language of the texts, an espeak-ng voice name such as `en-us`.

    Raises:
        EvaluationError: There is none of that name, its model cannot be opened, or it does not
            know the language.
        MissingExtraError: Its package is not installed.
    """
    name = check_recognizer(given)
    others = entry_points(group=_GROUP, name=name)
    extra = "evaluate"
    try:
        if others:
            module = next(iter(others)).load()
        else:
            module = import_module(f"{__name__}.{name.replace('-', '_')}")
        extra = getattr(module, "EXTRA", extra)
        opened: Recognizer = module.open_recognizer(given.partition(":")[2], language)
    except ImportError as error:
        raise MissingExtraError(error.name or name, extra) from error
    return opened
