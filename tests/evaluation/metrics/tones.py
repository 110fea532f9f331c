"""Sounds that networks score."""

import numpy as np

from tts_compress.audio import Samples


def gliding_tone() -> Samples:
    """Return four seconds of a gated, gliding tone in noise."""
    time_s = np.arange(64_000) / 16_000
    glide = np.sin(2 * np.pi * 180 * time_s * (1 + 0.05 * np.sin(2 * np.pi * 3 * time_s)))
    noise = np.random.default_rng(7).standard_normal(len(time_s))
    gate = np.sin(2 * np.pi * 1.5 * time_s) > 0
    return np.asarray(0.2 * glide * gate + 0.01 * noise, np.float32)
