"""The recording that F5-TTS speaks by, prepared as upstream does."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tts_compress.errors import ModelError
from tts_compress.models.f5.package import SAMPLE_RATE, official, quiet
from tts_compress.models.recording import read_header

if TYPE_CHECKING:
    from torch import Tensor

    from tts_compress.models.base import Prompt

__all__ = ["Reference", "check_recording", "prepare_reference", "write_recording"]

_SHORTEST_S = 0.5

# Converting the sample rate takes one filter per position between samples.
_LARGEST_FILTERS = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What upstream's inference takes."""

    samples: Tensor
    """Float32 `[1, T]`, without silence at the ends and at most 12 s long."""

    sample_rate: int
    """Samples per second, Hz."""

    text: str
    """What is said, with a full stop."""

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return self.samples.shape[-1] / self.sample_rate


def prepare_reference(prompt: Prompt, spec: str) -> Reference:
    """Return a recording cut and finished as `F5TTS.infer` does it.

    Raises:
        ModelError: There is no recording, its text is missing, or it holds next to no sound.
        MissingExtraError: A package is not installed.
    """
    if prompt.audio is None:
        raise ModelError(
            f"{spec!r} has no recording to speak by; put reference.wav and reference.txt (what is "
            "said in it) beside its checkpoint, or give a prompt with audio and text"
        )
    if not (prompt.text or "").strip():
        raise ModelError(
            f"what is said in '{prompt.audio}' is not known; write it into reference.txt beside "
            "it, or give it as the prompt's text"
        )
    import torch

    inference = official("f5_tts.infer.utils_infer")
    with TemporaryDirectory() as folder, quiet():
        copy = Path(folder) / "reference.wav"
        write_recording(prompt.audio, copy)
        cut, text = inference.preprocess_ref_audio_text(str(copy), prompt.text, show_info=_ignore)
        wave, sample_rate = _soundfile().read(cut, dtype="float32", always_2d=True)
    samples = torch.from_numpy(wave.T).mean(dim=0, keepdim=True)
    reference = Reference(samples=samples, sample_rate=sample_rate, text=text)
    if reference.duration_s < _SHORTEST_S:
        raise ModelError(
            f"'{prompt.audio}' holds {reference.duration_s:.1f} s of sound; "
            f"give a recording of {_SHORTEST_S:g} to 12 s"
        )
    return reference


def check_recording(path: Path) -> None:
    """Refuse a file that is no recording, without reading all of it.

    Raises:
        ModelError: It is missing, no audio, or of a sample rate that cannot be converted.
    """
    rate = read_header(path).samplerate
    common = math.gcd(rate, SAMPLE_RATE)
    if (rate // common) * (SAMPLE_RATE // common) > _LARGEST_FILTERS:
        raise ModelError(
            f"'{path}' has {rate} samples per second, which is in no simple relation to "
            f"{SAMPLE_RATE}; convert the recording to that rate"
        )


def write_recording(source: Path, target: Path) -> None:
    """Write a recording as WAV of 16 bits, which every reader knows; one that is keeps its samples.

    Raises:
        ModelError: It cannot be read.
    """
    check_recording(source)
    soundfile = _soundfile()
    try:
        exact = soundfile.info(source).subtype == "PCM_16"
        samples, rate = soundfile.read(source, dtype="int16" if exact else "float32")
    except (OSError, soundfile.LibsndfileError) as error:
        raise ModelError(f"cannot read audio from '{source}': {error}") from error
    if not np.isfinite(samples).all():
        raise ModelError(f"'{source}' holds values that are not finite; record it again")
    soundfile.write(
        target, samples if exact else _to_16_bits(samples), rate, subtype="PCM_16", format="WAV"
    )


def _to_16_bits(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    return np.clip(np.round(samples * 32768), -32768, 32767).astype(np.int16)


def _soundfile() -> Any:
    import soundfile

    return soundfile


def _ignore(message: str) -> None:
    """Take what upstream tells its users about the recording."""
