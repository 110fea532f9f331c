"""Samples of audio: at other rates, in exact files, and the hash that tells one audio from another.

Apart from the store, whose pieces are validated: workers start faster without that.
"""

import hashlib
from pathlib import Path

import numpy as np

from tts_compress.audio import Audio, Samples, resample, write_wav
from tts_compress.folders import make_directory


def audio_sha256(audio: Audio) -> str:
    """Return the hash of samples and rate; files differ by time stamps in their headers."""
    digest = hashlib.sha256(f"{audio.sample_rate} Hz\n".encode())
    digest.update(np.ascontiguousarray(audio.samples, dtype="<f4").tobytes())
    return digest.hexdigest()


def write_float_wav(path: Path, audio: Audio) -> None:
    """Write exact samples to a file that is never seen half-written."""
    make_directory(path.parent)
    write_wav(path, audio, encoding="FLOAT")


def finite_samples(audio: Audio, sample_rate: int) -> Samples:
    """Return float32 samples at a rate (Hz), with silence for NaN and ±1 for infinities."""
    finite = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0)
    return resample(finite, audio.sample_rate, sample_rate)
