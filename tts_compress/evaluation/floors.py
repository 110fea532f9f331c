"""Inaudible changes that tell how much of a difference is the recognizer's own."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.audio import Audio, read_wav
from tts_compress.evaluation.store import audio_sha256, write_float_wav

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.evaluation.store import Store

__all__ = ["OTHER_SEEDS", "disturb", "disturbed_copy"]

OTHER_SEEDS = 1000
"""Added to a seed to speak the same text with other noise."""

_GAIN = 10.0 ** (-1.0 / 20.0)
_LSB = 2.0**-15
"""The step of 16-bit samples."""


def disturb(audio: Audio) -> Audio:
    """Return the audio 1 dB softer, with triangular noise of one 16-bit step added.

    The noise is seeded by the samples: the same audio gives the same copy.
    """
    seed = int.from_bytes(hashlib.sha256(audio.samples.tobytes()).digest()[:8], "little")
    noise = np.random.default_rng(seed).triangular(-_LSB, 0.0, _LSB, len(audio.samples))
    return Audio(
        samples=(audio.samples * _GAIN + noise).astype(np.float32), sample_rate=audio.sample_rate
    )


def disturbed_copy(store: Store, wav: Path) -> tuple[str, Path]:
    """Write the disturbed copy of a WAV file into the store; return its hash and path."""
    copy = disturb(read_wav(wav))
    key = audio_sha256(copy)
    path = store.root / "disturbed" / f"{key[:32]}.wav"
    write_float_wav(path, copy)
    return key, path
