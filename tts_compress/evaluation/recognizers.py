"""Speech recognizers behind one protocol: who listens when intelligibility is measured.

A new recognizer is a file beside `recognizer_pocketsphinx.py` and a line in `RECOGNIZERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tts_compress.errors import EvaluationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tts_compress.audio import Audio

__all__ = ["RECOGNIZERS", "Recognizer", "open_recognizer"]


class Recognizer(Protocol):
    """Turns speech into words; what it says of one audio never depends on another."""

    @property
    def description(self) -> str:
        """Recognizer, acoustic model and language model, with versions, for the report."""

    def transcribe(self, audio: Audio) -> str:
        """Return what is heard, not normalised; empty where nothing is.

        Takes any sample rate and never fails on silent, empty or non-finite samples: a broken
        candidate is a finding, not an error.
        """


def _pocketsphinx() -> Recognizer:
    from tts_compress.evaluation.recognizer_pocketsphinx import PocketSphinx

    return PocketSphinx()


RECOGNIZERS: Mapping[str, Callable[[], Recognizer]] = {"pocketsphinx": _pocketsphinx}
"""How to open each recognizer, by the name suites use."""


def open_recognizer(name: str) -> Recognizer:
    """Open a recognizer; this loads its models.

    Raises:
        EvaluationError: There is none of that name.
        MissingExtraError: Its package is not installed.
    """
    try:
        factory = RECOGNIZERS[name]
    except KeyError:
        known = ", ".join(sorted(RECOGNIZERS))
        raise EvaluationError(f"no recognizer named {name!r}; known: {known}") from None
    return factory()
