"""Step 6, ``check``: measure a finished voice against its teacher; prints JSON.

The voice speaks through the ``piper`` package, the unmodified file, real default scales.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from piper import PiperVoice, SynthesisConfig

from .acoustics import Sounds, collect, largest_jump, mel_difference, worst_click
from .align import Aligner, load_aligner
from .asr import Listener
from .features import HOP, Clip, load_held_out
from .speech import SAMPLE_RATE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Audio = npt.NDArray[np.float32]


class Speaker:
    """One ONNX voice, reproducible by its seed."""

    def __init__(self, model: Path, seed: int) -> None:
        onnxruntime.set_seed(seed)
        self._voice = PiperVoice.load(model)

    def say(self, text: str, noise: float | None = None, noise_w: float | None = None) -> Audio:
        """Raw model output, not normalised. ``-> [n]``."""
        settings = SynthesisConfig(noise_scale=noise, noise_w_scale=noise_w, normalize_audio=False)
        chunks = [c.audio_float_array for c in self._voice.synthesize(text, settings)]
        return np.concatenate(chunks).astype(np.float32)


def describe(audios: Sequence[Audio], clips: Sequence[Clip], aligner: Aligner) -> dict[str, Any]:
    """Return level, clicks and the sounds' measures of many utterances."""
    sounds = Sounds()
    for audio, clip in zip(audios, clips, strict=True):
        collect(sounds, aligner, clip.ids, audio)
    ends = [float(max(abs(a[0]), abs(a[-1]))) for a in audios]
    return {
        "seconds": round(sum(len(a) for a in audios) / SAMPLE_RATE, 2),
        "peak": round(max(float(np.abs(a).max()) for a in audios), 3),
        "largest_jump": round(max(largest_jump(a) for a in audios), 3),
        "worst_click": round(max(worst_click(a) for a in audios), 2),
        "median_worst_click": round(float(np.median([worst_click(a) for a in audios])), 2),
        "largest_end_sample": round(max(ends), 4),
        **sounds.summary(),
    }


def noise_effect(model: Path, texts: Sequence[str], scale: float) -> dict[str, float]:
    """Return the difference of two renderings that only differ in their noise."""
    speaker = Speaker(model, 7)
    pairs = [(speaker.say(t, scale, 0.0), speaker.say(t, scale, 0.0)) for t in texts]
    waves = [
        float(np.corrcoef(a[: len(b)], b[: len(a)])[0, 1]) for a, b in pairs if len(a) == len(b)
    ]
    return {
        "mel_difference_db": round(float(np.mean([mel_difference(a, b) for a, b in pairs])), 2),
        "waveform_correlation": round(float(np.mean(waves)), 3),
    }


def duration_effect(model: Path, texts: Sequence[str], noise_w: float) -> dict[str, float]:
    """Return the spread of an utterance's length over four renderings, relative to it."""
    speaker = Speaker(model, 8)
    lengths = np.array([[len(speaker.say(t, None, noise_w)) for _ in range(4)] for t in texts])
    spread = lengths.std(1, ddof=1) / lengths.mean(1)
    return {"length_spread": round(float(spread.mean()), 4)}


def duration_ratios(audios: Sequence[Audio], clips: Sequence[Clip]) -> dict[str, float]:
    """Return voice length / teacher length: total, and the 5 % and 95 % quantiles."""
    ratios = [len(a) / (c.frames * HOP) for a, c in zip(audios, clips, strict=True)]
    total = sum(len(a) for a in audios) / sum(c.frames * HOP for c in clips)
    low, high = np.quantile(ratios, [0.05, 0.95])
    return {"total": round(total, 3), "q05": round(low, 3), "q95": round(high, 3)}


def check_model(
    model: Path, clips: Sequence[Clip], aligner: Aligner, listener: Listener, seeds: int
) -> dict[str, Any]:
    """Return all figures of one voice."""
    texts = [c.text for c in clips]
    renders = []
    for seed in range(seeds):
        speaker = Speaker(model, seed + 1)
        renders.append([speaker.say(t) for t in texts])
    still = Speaker(model, 1)
    silent = [still.say(t, 0.0, 0.0) for t in texts]
    wers = [listener.word_error_rate(texts, audios) for audios in renders]
    return {
        "bytes": model.stat().st_size,
        "wer_default_per_seed": [round(w, 4) for w in wers],
        "wer_default": round(float(np.mean(wers)), 4),
        "wer_without_noise": round(listener.word_error_rate(texts, silent), 4),
        "duration_ratio": duration_ratios(renders[0], clips),
        "default": describe(renders[0], clips, aligner),
        "without_noise": describe(silent, clips, aligner),
        "noise_scale": {str(s): noise_effect(model, texts[:10], s) for s in (0.0, 0.333, 0.667)},
        "noise_w": {str(s): duration_effect(model, texts[:10], s) for s in (0.0, 0.8)},
    }


def check(work: Path, models: Sequence[Path], count: int, seeds: int = 2) -> None:
    """Print the figures of the teacher and of every voice as JSON."""
    clips = load_held_out(work)[:count]
    aligner, listener = load_aligner(work / "aligner.pt"), Listener()
    teacher = [c.wav.numpy() for c in clips]
    result = {
        "sentences": len(clips),
        "teacher": {
            "wer": round(listener.word_error_rate([c.text for c in clips], teacher), 4),
            **describe(teacher, clips, aligner),
        },
        "voices": {str(m): check_model(m, clips, aligner, listener, seeds) for m in models},
    }
    print(json.dumps(result, indent=2))
