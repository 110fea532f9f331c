"""The program that runs espeak-ng, in a process of its own: `python -m` this module's name."""

import json
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError
from tts_compress.processes import serve

if TYPE_CHECKING:
    from piper import PiperVoice
    from piper.phonemize_espeak import EspeakPhonemizer


class _Host:
    """Serves the requests of `Espeak`; without piper it says so at the first one."""

    def phonemes(self, language: str, text: str) -> dict[str, Any]:
        """Return the phonemes of each sentence, or the problem with the language."""
        try:
            return {"sentences": _espeak().phonemize(language, text)}
        except ImportError as error:
            raise MissingExtraError(error.name or "piper", "piper") from error
        except RuntimeError as error:
            return {"problem": f"espeak-ng cannot speak {language!r}: {error}"}

    def ids(self, config: str, text: str) -> dict[str, Any]:
        """Return the phoneme ids of each sentence, or the problem with the configuration."""
        try:
            voice = _voice(config)
            sentences = [sentence for sentence in voice.phonemize(text) if sentence]
            return {"sentences": [voice.phonemes_to_ids(sentence) for sentence in sentences]}
        except ImportError as error:
            raise MissingExtraError(error.name or "piper", "piper") from error
        # A language espeak-ng does not know, a map without the symbols every sentence has.
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {"problem": f"{error}"}


@lru_cache(maxsize=8)
def _voice(config: str) -> "PiperVoice":
    from piper import PiperVoice
    from piper.config import PiperConfig

    return PiperVoice(session=None, config=PiperConfig.from_dict(json.loads(config)))


@cache
def _espeak() -> "EspeakPhonemizer":
    from piper.phonemize_espeak import EspeakPhonemizer

    return EspeakPhonemizer()


if __name__ == "__main__":
    serve(_Host)
