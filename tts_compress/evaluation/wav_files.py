"""Exact audio in files, and the hash that tells one audio from another.

Apart from the store, whose pieces are validated: workers start faster without that.
"""

import hashlib
from pathlib import Path

import numpy as np

from tts_compress.audio import Audio, write_wav
from tts_compress.errors import ArtifactError


def audio_sha256(audio: Audio) -> str:
    """Return the hash of samples and rate; files differ by time stamps in their headers."""
    digest = hashlib.sha256(f"{audio.sample_rate} Hz\n".encode())
    digest.update(np.ascontiguousarray(audio.samples, dtype="<f4").tobytes())
    return digest.hexdigest()


def make_directory(path: Path) -> None:
    """Create a directory and its parents.

    Raises:
        ArtifactError: It cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot create '{path}': {error.strerror or error}") from error


def write_float_wav(path: Path, audio: Audio) -> None:
    """Write exact samples to a file that is never seen half-written."""
    make_directory(path.parent)
    write_wav(path, audio, encoding="FLOAT")
