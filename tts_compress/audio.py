"""Mono speech in memory and on disk."""

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from math import gcd
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.artifact import atomic_file
from tts_compress.errors import ModelError, needing, raising
from tts_compress.folders import make_directory
from tts_compress.reading import MOST_AUDIO_BYTES, check_file

Samples: TypeAlias = npt.NDArray[np.float32]
Encoding: TypeAlias = Literal["PCM_16", "FLOAT"]

_UNKNOWN_BYTES, _CHUNK_BYTES = 0x7FFF_0000, 64
"""Sizes that headers of unknown length state, and what some writers' sizes are too large by."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audio:
    """One spoken text."""

    samples: Samples
    """Shape `[T]`, nominally in [-1, 1], never normalised: loudness and clipping are measured."""

    sample_rate: int
    """Samples per second, Hz."""

    durations: npt.NDArray[np.int64] | None = None
    """Frames of each input symbol, shape `[S]`, where the system predicts them."""

    def __repr__(self) -> str:
        return f"Audio({self.duration_s:.2f} s, {self.sample_rate} Hz)"

    def _repr_html_(self) -> str:
        """Return a player for notebooks, with the audio in it."""
        content = b64encode(self.to_wav()).decode("ascii")
        return (
            f'<audio controls src="data:audio/wav;base64,{content}"></audio> '
            f"{self.duration_s:.2f} s, {self.sample_rate} Hz"
        )

    def to_wav(self, encoding: Encoding = "PCM_16") -> bytes:
        """Return the content of a mono WAV file.

        Args:
            encoding: `FLOAT` keeps every sample exactly, `PCM_16` plays everywhere.
        """
        import soundfile

        content = BytesIO()
        soundfile.write(content, self.samples, self.sample_rate, subtype=encoding, format="WAV")
        return content.getvalue()

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return len(self.samples) / self.sample_rate


def write_wav(path: Path, audio: Audio, *, encoding: Encoding = "PCM_16") -> None:
    """Write a mono WAV file, never seen half-written, with an encoding of `Audio.to_wav`."""
    content = audio.to_wav(encoding)  # libsndfile itself calls a full disk a "System error"
    with atomic_file(path) as partial:
        partial.write_bytes(content)


def read_wav(path: Path) -> Audio:
    """Read a mono WAV file as float32."""
    import soundfile

    # A name such as `x.raw` means samples without a header, and is a TypeError.
    causes = (OSError, TypeError, ValueError, soundfile.LibsndfileError)
    with raising(ModelError, f"cannot read audio from '{path}'", *causes):
        check_file(path, MOST_AUDIO_BYTES)
        samples, sample_rate = soundfile.read(path, dtype="float32", always_2d=True)
    if samples.shape[1] != 1:
        raise ModelError(f"'{path}' has {samples.shape[1]} channels; mono audio is needed")
    if lacking := _missing_bytes(path):
        raise ModelError(f"'{path}' is cut off: by its header it has {lacking} bytes more")
    return Audio(samples=samples[:, 0], sample_rate=int(sample_rate))


def _missing_bytes(path: Path) -> int:
    """Return the bytes that a RIFF file lacks, which libsndfile does not tell.

    Programs that write into a pipe state the largest size there is, or nearly so.
    """
    with path.open("rb") as file:
        kind, size = file.read(4), 8 + int.from_bytes(file.read(4), "little")
    lacking = size - path.stat().st_size
    return lacking if kind == b"RIFF" and size < _UNKNOWN_BYTES and lacking > _CHUNK_BYTES else 0


def resample(samples: Samples, source: int, target: int) -> Samples:
    """Return `samples` at another rate (Hz), band-limited."""
    if source == target or not len(samples):
        return samples
    with needing("evaluate"):
        from scipy.signal import resample_poly  # a second, in each of the processes
    common = gcd(source, target)
    return np.asarray(resample_poly(samples, target // common, source // common), np.float32)


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
