"""The voices that are timed. A file of this folder states its own as `VOICES`.

Speed, size and memory depend on a network's shape, not on its weights, so seeded random weights
stand for every voice of a system; effects of trained weights are measured on the demo voice.
"""

import importlib
import pkgutil
from pathlib import Path

from benchmarks.voices.voice import BenchVoice
from tts_compress.config import demo_voice
from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.models.base import GraphModel


def _find_voices() -> dict[str, BenchVoice]:
    voices: dict[str, BenchVoice] = {}
    for module in pkgutil.iter_modules(__path__):
        stated = importlib.import_module(f"{__name__}.{module.name}")
        voices |= {voice.name: voice for voice in getattr(stated, "VOICES", ())}
    return voices


VOICES = _find_voices()


def usual_voices() -> tuple[str, ...]:
    """Return the voices that are timed by default; the embedded one may lack in a checkout."""
    return ("medium", "demo") if demo_voice().is_file() else ("medium",)


def open_voice(name: str, work: Path) -> GraphModel:
    """Return a voice that has a file, made on first use and kept in `work`."""
    if name not in VOICES:
        raise ModelError(f"no benchmark voice {name!r}; there are {', '.join(VOICES)}")
    voice = load(VOICES[name].spec(work))
    assert isinstance(voice, GraphModel)
    return voice
