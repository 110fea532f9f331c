"""Audio at the rate that a network was trained with."""

from math import gcd

import numpy as np

from tts_compress.audio import Audio, Samples


def resample(samples: Samples, source: int, target: int) -> Samples:
    """Return `samples` at another rate (Hz), band-limited."""
    if source == target or not len(samples):
        return samples
    from scipy.signal import resample_poly  # a second, in each of the processes

    common = gcd(source, target)
    return np.asarray(resample_poly(samples, target // common, source // common), np.float32)


def finite_samples(audio: Audio, sample_rate: int) -> Samples:
    """Return float32 samples at a rate (Hz), with silence for NaN and ±1 for infinities."""
    finite = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0)
    return resample(finite, audio.sample_rate, sample_rate)
