"""espeak-ng, in a child process: a few texts, such as a hundred dotted letters, end its process.

The child also runs the code of piper around it, so that this process need not import that.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import tts_compress
from tts_compress.errors import MissingExtraError, ModelError, TextError, TTSCompressError, needing
from tts_compress.processes import Answer, Child, ChildEndedError, serve

if TYPE_CHECKING:
    from piper import PiperVoice
    from piper.phonemize_espeak import EspeakPhonemizer

_PACKAGES = Path(tts_compress.__file__).parents[1]
_PROGRAM = ("-P", "-m", "tts_compress.models.espeak")
_TIMEOUT_S = 120.0
"""Longest time for a text, and to start."""

_ERRORS: Mapping[str, type[TTSCompressError]] = {"MissingExtraError": MissingExtraError}


@cache
def espeak() -> Espeak:
    """Return the one of this process."""
    return Espeak()


class Espeak:
    """Phonemes and ids of texts; its process is started when needed, and again if it ended.

    Threads take turns.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._ready = False
        self._owner = 0
        """Number of the process that started it."""

        self._lock = Lock()

    def start(self) -> None:
        """Begin to start the process, which then starts beside what the caller does next."""
        with self._lock:
            self._start()

    def phonemes(self, language: str, text: str) -> list[list[str]]:
        """Return the phonemes of each sentence.

        Args:
            language: An espeak-ng voice name.
            text: Text without null characters and halves of surrogate pairs.
        """
        return self._sentences("phonemes", text, language=language)

    def ids(self, config: str, text: str) -> list[list[int]]:
        """Return the phoneme ids of each sentence, as piper itself feeds them.

        Args:
            config: Content of a Piper voice's JSON file.
            text: As for `phonemes`.
        """
        return self._sentences("ids", text, config=config)

    def _sentences(self, do: str, text: str, **arguments: str) -> list[Any]:
        request = {"do": do, "text": text, **arguments}
        with self._lock:
            try:
                answer = self._ask(request)
            except ChildEndedError:
                try:
                    answer = self._ask(request)  # an earlier text may have done the damage
                except ChildEndedError as ended:
                    raise TextError(
                        f"espeak-ng {'takes too long' if ended.late else 'breaks down'} over "
                        f"{text[:40]!r}…; write it otherwise: long runs of letters with full stops "
                        "are known for it"
                    ) from None
        if error := answer.get("error"):
            kind = _ERRORS.get(error["kind"], ModelError)
            raise kind.__new__(kind, error["message"])
        sentences: list[Any] = answer["ok"]
        return sentences

    def _ask(self, request: Mapping[str, object]) -> Answer:
        child = self._start()
        try:
            if not self._ready:
                child.ask(None, _TIMEOUT_S)
                self._ready = True
            return child.ask(request, _TIMEOUT_S)
        except BaseException:  # an interrupt would leave the response for the next request
            self._child = None
            child.close()
            raise

    def _start(self) -> Child:
        if self._child is None or self._owner != os.getpid():  # a fork has its own
            # Packages on a path that was added while this process ran are importable there, too.
            path = os.pathsep.join([*filter(None, sys.path), str(_PACKAGES)])
            try:
                self._child = Child([sys.executable, *_PROGRAM], os.environ | {"PYTHONPATH": path})
            except OSError as error:
                raise ModelError(f"cannot start a process for espeak-ng: {error}") from error
            self._owner, self._ready = os.getpid(), False
        return self._child


def _phonemes(language: str, text: str) -> list[list[str]]:
    with needing("piper"):
        try:
            return _espeak().phonemize(language, text)
        except RuntimeError as error:
            raise ModelError(f"espeak-ng cannot speak {language!r}: {error}") from error


def _ids(config: str, text: str) -> list[list[int]]:
    try:
        voice = _voice(config)
        sentences = [sentence for sentence in voice.phonemize(text) if sentence]
        return [voice.phonemes_to_ids(sentence) for sentence in sentences]
    except ImportError as error:
        raise MissingExtraError(error.name or "piper", "piper") from error
    # A language espeak-ng does not know, a map without the symbols every sentence has.
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{error}") from error


@lru_cache(maxsize=8)
def _voice(config: str) -> PiperVoice:
    from piper import PiperVoice
    from piper.config import PiperConfig

    return PiperVoice(session=None, config=PiperConfig.from_dict(json.loads(config)))


@cache
def _espeak() -> EspeakPhonemizer:
    from piper.phonemize_espeak import EspeakPhonemizer

    return EspeakPhonemizer()


if __name__ == "__main__":
    # Without piper it says so at the first request.
    serve(lambda: SimpleNamespace(phonemes=_phonemes, ids=_ids))
