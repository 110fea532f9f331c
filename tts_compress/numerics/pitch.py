"""The fundamental frequency of speech over time, F0, by YIN and a path of least cost.

De Cheveigné and Kawahara, "YIN, a fundamental frequency estimator for speech and music", 2002.
"""

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio
from tts_compress.numerics.spectra import count_frames, window_length

_LOWEST_HZ, _HIGHEST_HZ = 60.0, 500.0
_CANDIDATES = 5

_UNVOICED_COST = 0.4
"""Aperiodicity, from 0 to 1, above which a frame has no voice."""

_ONSET_COST = 0.15
_JUMP_COST = 1.0
"""Cost of a jump by an octave from one frame to the next."""

_PERIOD_COST = 0.02
"""Cost of a period of twice the length: it is as periodic, but not the first."""

_FLOOR = 1e-4
"""Energy of a frame, against that of loud speech, below which there is no voice: -40 dB."""

LEAST_FRAMES = 10
"""Frames with a voice in both, about a tenth of a second, without which there is no figure."""

_BLOCK = 256
"""Frames analysed at once, which bounds the memory."""

_Array = npt.NDArray[np.float64]


def track_pitch(audio: Audio) -> _Array:
    """Return the fundamental frequency in Hz of each frame, 0 where there is no voice.

    Frames are those of `spectra.log_mel`. Samples that are not finite count as zero.
    """
    rate = audio.sample_rate
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=0.0, neginf=0.0).astype(np.float64)
    window, longest = round(0.025 * rate), int(rate / _LOWEST_HZ) + 1
    size = window + longest + 1
    # The windows of a common period, 5 ms apart, are centred where a frame of the spectrum is.
    centres = np.arange(count_frames(audio)) * (window_length(rate) // 4) + window_length(rate) // 2
    starts = centres - (window + rate // 200) // 2 + size
    # A moving average of a millisecond, as in YIN's evaluation: hiss has no pitch.
    average = np.full(max(1, rate // 1000), 1.0 / max(1, rate // 1000))
    smooth = np.convolve(np.pad(samples, (size, int(starts[-1]) + size)), average, "same")
    frames = np.lib.stride_tricks.sliding_window_view(smooth, size)
    costs, periods, energies = [], [], []
    for begin in range(0, len(starts), _BLOCK):
        block = frames[starts[begin : begin + _BLOCK]]
        dips, places = _candidates(_aperiodicity(block, window), int(rate / _HIGHEST_HZ))
        costs.append(dips)
        periods.append(places)
        energies.append(np.mean(np.square(block), axis=1))
    energy, period = np.concatenate(energies), np.concatenate(periods)
    cost = np.concatenate(costs)
    cost[energy <= max(_FLOOR * float(np.quantile(energy, 0.9)), 1e-10)] = np.inf
    chosen = _cheapest_path(cost, np.log2(period))
    length = np.take_along_axis(period, np.maximum(chosen, 0)[:, None], axis=1)[:, 0]
    return np.where(chosen < 0, 0.0, rate / length)


def _aperiodicity(frames: _Array, window: int) -> _Array:
    """Return YIN's normalised difference (its equation 8) for each lag, shape `[frames, lags]`.

    Args:
        frames: Samples of each frame, shape `[frames, window + lags]`.
        window: Samples that are compared at each lag.
    """
    size = frames.shape[1]
    lags = size - window
    points = 1 << (size - 1).bit_length()
    spectrum = np.fft.rfft(frames, points)
    spectrum *= np.fft.rfft(frames[:, :window], points).conj()
    products = np.fft.irfft(spectrum, points)[:, :lags]
    sums = np.cumsum(np.pad(np.square(frames), ((0, 0), (1, 0))), axis=1)
    energies = sums[:, window : window + lags] - sums[:, :lags]
    differences = np.maximum(energies[:, :1] + energies - 2.0 * products, 0.0)
    differences[:, 0] = 0.0
    means = np.cumsum(differences, axis=1)[:, 1:] / np.arange(1, lags)
    normalised: _Array = np.ones_like(differences)
    np.divide(differences[:, 1:], means, out=normalised[:, 1:], where=means > 1e-12)
    return normalised


def _candidates(aperiodicity: _Array, shortest: int) -> tuple[_Array, _Array]:
    """Return the costs of each frame's deepest dips, and their periods in samples.

    Both have the shape `[frames, candidates]`; a dip that is missing has an infinite cost.
    """
    before, here, after = (
        aperiodicity[:, shortest - 1 : -2],
        aperiodicity[:, shortest:-1],
        aperiodicity[:, shortest + 1 :],
    )
    # The vertex of the parabola through three lags.
    bend = np.maximum(before - 2.0 * here + after, 1e-12)
    shift = np.clip(0.5 * (before - after) / bend, -0.5, 0.5)
    depth = here - 0.25 * (before - after) * shift
    periods = np.arange(shortest, shortest + here.shape[1]) + shift
    costs = depth + _PERIOD_COST * np.log2(periods / shortest)
    costs = np.where((here < before) & (here <= after), costs, np.inf)
    places = np.argpartition(costs, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    return np.take_along_axis(costs, places, 1), np.take_along_axis(periods, places, 1)


def _cheapest_path(costs: _Array, octaves: _Array) -> npt.NDArray[np.intp]:
    """Return the candidate of each frame, -1 for none, on the cheapest path.

    Args:
        costs: Of each frame's candidates, shape `[frames, candidates]`.
        octaves: Their periods as logarithms to base 2.
    """
    frames, count = costs.shape
    # The last state is that without a voice.
    local = np.concatenate((costs, np.full((frames, 1), _UNVOICED_COST)), axis=1)
    total, origins = local[0], np.zeros((frames, count + 1), np.intp)
    step = np.full((count + 1, count + 1), _ONSET_COST)
    step[count, count] = 0.0
    for frame in range(1, frames):
        step[:count, :count] = _JUMP_COST * np.abs(octaves[frame - 1][:, None] - octaves[frame])
        reached = total[:, None] + step
        origins[frame] = reached.argmin(axis=0)
        total = reached.min(axis=0) + local[frame]
    state, path = int(total.argmin()), np.empty(frames, np.intp)
    for frame in range(frames - 1, -1, -1):
        path[frame] = state if state < count else -1
        state = int(origins[frame, state])
    return path


def pitch_changes(before: Audio, after: Audio, seconds: _Array) -> tuple[_Array, _Array]:
    """Return by how many cents the second voice is higher, and the times in it, in seconds.

    Of moments with a voice in both; a semitone is 100. None where there are too few.

    Args:
        before: The first voice.
        after: The second.
        seconds: Moments of both that belong together, shape `[moments, 2]`.
    """
    tracks = []
    for audio, times in zip((before, after), seconds.T, strict=True):
        track = track_pitch(audio)
        places = np.rint(times * audio.sample_rate / (window_length(audio.sample_rate) // 4))
        tracks.append(track[np.minimum(places.astype(np.intp), len(track) - 1)])
    left, right = tracks
    voiced = np.flatnonzero((left > 0.0) & (right > 0.0))
    if len(voiced) < LEAST_FRAMES:
        voiced = voiced[:0]
    return 1200.0 * np.log2(right[voiced] / left[voiced]), seconds[voiced, 1]
