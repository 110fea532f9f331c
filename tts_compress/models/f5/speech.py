"""Speaking by F5-TTS's own code, reproducibly: one part of the text after the other."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from tts_compress.audio import Audio
from tts_compress.errors import ModelError, TextError, reason
from tts_compress.models.base import check_text
from tts_compress.models.f5.package import HOP_LENGTH, SAMPLE_RATE, official, quiet
from tts_compress.models.f5.reference import write_recording

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.audio import Samples
    from tts_compress.models.base import Prompt
    from tts_compress.models.f5.options import F5Options
    from tts_compress.models.f5.reference import Reference

__all__ = ["MAX_FRAMES", "F5Runtime", "check_symbols", "speak", "split_text"]

MAX_FRAMES = 8_192
"""Frames of the recording and one part of a text together, 87 s: the text encoder's positions."""

_CROSS_FADE_S = 0.15
_LONGEST_S = 22.0


class F5Runtime:
    """Upstream's own `F5TTS.infer`, with its own random noise.

    Args:
        api: The official object.
        prompt: The recording to speak by, and what is said in it.
        options: How to run the solver.

    Raises:
        ModelError: The recording cannot be read.
    """

    def __init__(self, api: Any, prompt: Prompt, options: F5Options) -> None:
        assert prompt.audio is not None, "a recording was prepared"
        self._api = api
        self._text = prompt.text
        self._options = options
        # A copy that upstream reads without further programs, whatever the recording's format.
        self._folder = TemporaryDirectory()
        self._recording = Path(self._folder.name) / "reference.wav"
        write_recording(prompt.audio, self._recording)

    def speak(self, text: str) -> Audio:
        """Speak a text; long ones in parts on several threads, as upstream does.

        Raises:
            TextError: There is nothing to speak in the text.
            ModelError: Upstream's code fails.
        """
        check_text(text)
        try:
            samples, sample_rate = self._infer(text)
        # Of audio codecs that upstream's way of reading recordings may need, or of the modules.
        except (ImportError, RuntimeError, ValueError) as error:
            raise ModelError(f"f5_tts cannot speak {text[:40]!r}: {reason(error)}") from error
        return Audio(samples=np.asarray(samples, np.float32), sample_rate=sample_rate)

    def _infer(self, text: str) -> tuple[Any, int]:
        with quiet():
            samples, sample_rate, _ = self._api.infer(
                str(self._recording),
                self._text,
                text,
                show_info=lambda *_: None,
                progress=None,
                nfe_step=self._options.nfe_step,
                cfg_strength=self._options.cfg_strength,
                sway_sampling_coef=self._options.sway_sampling_coef,
                speed=self._options.speed,
            )
        return samples, sample_rate


def check_symbols(api: Any, text: str) -> None:
    """Refuse a text in a script that the model was not trained on.

    Raises:
        TextError: No letter of it is in the model's vocabulary.
    """
    symbols = official("f5_tts.model.utils").convert_char_to_pinyin([text])[0]
    known = api.ema_model.vocab_char_map
    if not any(symbol in known for symbol in symbols if symbol.isalnum()):
        raise TextError(
            f"the model knows no letter of {text[:40]!r}; give a text in its own language"
        )


def split_text(text: str, reference: Reference, options: F5Options) -> list[str]:
    """Return the parts that upstream would speak a text in, each of about 22 s with the recording.

    Raises:
        TextError: A part is too long, or the text has nothing to speak.
    """
    check_text(text)
    per_second = len(reference.text.encode()) / reference.duration_s
    longest = int(per_second * (_LONGEST_S - reference.duration_s) * options.speed)
    parts: list[str] = official("f5_tts.infer.utils_infer").chunk_text(text, max_chars=longest)
    for part in parts:
        frames = _frames(part, reference, options)
        if frames > MAX_FRAMES:
            raise TextError(
                f"{part[:40]!r}… would be spoken in one go for "
                f"{frames * HOP_LENGTH / SAMPLE_RATE:.0f} s, the recording included; at most "
                f"{MAX_FRAMES * HOP_LENGTH / SAMPLE_RATE:.0f} s can be: end sentences with a "
                "full stop"
            )
    return parts


def speak(
    api: Any,
    reference: Reference,
    parts: Sequence[str],
    options: F5Options,
    seed: int | None,
) -> Audio:
    """Speak the parts of a text, each with noise chosen by the seed and its number.

    Args:
        api: The official object.
        reference: What to speak by.
        parts: Of the text.
        options: How to run the solver.
        seed: Chooses the noise; None speaks without.

    Raises:
        ModelError: The modules cannot be run.
    """
    from tts_compress.models.torch_noise import paired_noise

    waves = []
    for index, part in enumerate(parts):
        with paired_noise(None if seed is None else (seed, index)):
            waves.append(_speak_part(api, reference, part, options))
    return Audio(samples=_join(waves), sample_rate=SAMPLE_RATE)


def _speak_part(api: Any, reference: Reference, part: str, options: F5Options) -> Samples:
    """Speak in the way that streams: the other one runs on threads of its own.

    Noise could not be chosen there. One piece as long as can be is the whole part.
    """
    pieces = official("f5_tts.infer.utils_infer").infer_batch_process(
        (reference.samples, reference.sample_rate),
        reference.text,
        [part],
        api.ema_model,
        api.vocoder,
        mel_spec_type=api.mel_spec_type,
        progress=None,
        nfe_step=options.nfe_step,
        cfg_strength=options.cfg_strength,
        sway_sampling_coef=options.sway_sampling_coef,
        speed=options.speed,
        device=api.device,
        streaming=True,
        chunk_size=1 << 48,
    )
    try:
        with quiet():
            return np.concatenate([piece for piece, _ in pieces]).astype(np.float32)
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"the model cannot speak {part[:40]!r}: {reason(error)}") from error


def _join(waves: Sequence[Samples]) -> Samples:
    """Fade the parts into each other in a straight line, as upstream does."""
    joined = waves[0]
    for wave in waves[1:]:
        count = min(int(_CROSS_FADE_S * SAMPLE_RATE), len(joined), len(wave))
        rising = np.linspace(0, 1, count)
        start = len(joined) - count
        overlap = joined[start:] * (1 - rising) + wave[:count] * rising
        joined = np.concatenate([joined[:start], overlap, wave[count:]])
    return joined.astype(np.float32)


def _frames(part: str, reference: Reference, options: F5Options) -> int:
    """Return how long upstream's rule makes the recording and a part together."""
    recording = int(reference.duration_s * SAMPLE_RATE) // HOP_LENGTH
    said, wanted = len(reference.text.encode()), len(part.encode())
    speed = 0.3 if wanted < 10 else options.speed  # few syllables are spoken slowly
    return max(recording + int(recording / said * wanted / speed), said + wanted) + 1
