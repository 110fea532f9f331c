"""Spectra in mel bands, and the distance of two along the best alignment in time.

Distortion is the distance of two renderings of a text from a third, in a unit of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio


@lru_cache(maxsize=8)
def mel_filters(
    sample_rate: int, n_fft: int, bands: int, limits_hz: tuple[float, float] | None = None
) -> npt.NDArray[np.float64]:
    """Return triangular filters of height 1, evenly spaced in mel, shape `[bands, n_fft // 2 + 1]`.

    A frequency of f Hz is 2595 · log10(1 + f / 700) mel.

    Args:
        sample_rate: Samples per second, Hz.
        n_fft: Samples in a transform.
        bands: Number of filters.
        limits_hz: Lower end of the lowest filter and upper end of the highest, Hz; by default 0
            and half the sample rate.
    """
    low, high = limits_hz or (0.0, sample_rate / 2)
    lowest, highest = (2595.0 * np.log10(1.0 + limit / 700.0) for limit in (low, high))
    mels = np.linspace(lowest, highest, bands + 2)
    edges = 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
    return _triangles(edges, sample_rate, n_fft)


@lru_cache(maxsize=8)
def slaney_filters(sample_rate: int, n_fft: int, bands: int) -> npt.NDArray[np.float64]:
    """Return filters of area 1 on Slaney's scale, up to half the rate, as librosa's by default.

    The scale is linear up to 1 kHz (15 mel) and logarithmic above, 27 mel for a factor of 6.4.
    Shape and arguments are those of `mel_filters`.
    """
    step = np.log(6.4) / 27.0
    highest = 15.0 + np.log(sample_rate / 2000.0) / step
    mels = np.linspace(0.0, highest, bands + 2)
    edges = np.where(mels < 15.0, mels * 200.0 / 3.0, 1000.0 * np.exp(step * (mels - 15.0)))
    widths = edges[2:] - edges[:-2]
    return np.asarray(_triangles(edges, sample_rate, n_fft) * (2.0 / widths)[:, None])


def slaney_spectrum(
    samples: npt.NDArray[np.float32], sample_rate: int, *, window: int, hop: int, bands: int
) -> npt.NDArray[np.float64]:
    """Return the power in each of Slaney's filters as librosa does by default.

    Args:
        samples: Shape `[T]`.
        sample_rate: Samples per second, Hz.
        window: Samples of Hann's window; frames are centred, with zeros around the samples.
        hop: Samples from one frame to the next.
        bands: Number of filters.

    Returns:
        Shape `[frames, bands]`.
    """
    power = np.square(centred_magnitudes(samples, window, hop, mode="constant"))
    return np.asarray(power @ slaney_filters(sample_rate, window, bands).T)


def centred_magnitudes(
    samples: npt.NDArray[np.float32], window: int, hop: int, *, mode: Literal["constant", "reflect"]
) -> npt.NDArray[np.float64]:
    """Return the magnitudes of centred frames in Hann's window, shape `[frames, window // 2 + 1]`.

    Args:
        samples: Shape `[T]`, at least one.
        window: Samples of a frame, even.
        hop: Samples from one frame to the next.
        mode: What is around the samples: zeros, or their reflection.
    """
    padded = np.pad(samples, window // 2, mode=mode)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    taper = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    return np.asarray(np.abs(np.fft.rfft(frames * taper, axis=1)))


def _triangles(
    edges: npt.NDArray[np.float64], sample_rate: int, n_fft: int
) -> npt.NDArray[np.float64]:
    """Return filters of height 1 between edges in Hz, shape `[bands + 2]`."""
    bins = np.fft.rfftfreq(n_fft, 1.0 / sample_rate)
    rising = (bins - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - bins) / np.diff(edges)[1:, None]
    return np.asarray(np.maximum(0.0, np.minimum(rising, falling)))


_Array: TypeAlias = npt.NDArray[np.float64]

MELS = 80

FLOOR_DB = -60.0
"""Below a full-scale sine by this much counts as silence.

Rounding to 8 bits leaves a hiss about 37 dB below the voice. Measured on the demo voice with a
floor of -80 dB, that hiss in pauses and empty bands is as far (0.71 dB) as a decoder with a wrong
weight (0.71 dB); with -60 dB it is 0.12 dB against 0.54 dB.
"""


_BAND = 0.1
"""Half-width of the band around the diagonal, as a share of the longer spectrum."""

_LEAST_BAND = 20
"""Smallest half-width in frames, for short audio: about a quarter of a second."""

_CORRELATED = 0.5
"""It is 0.94 with noise at 9 dB, and 0.7 to 0.9 where all is half a millisecond late."""

_STEP_S, _LATE_S, _CLEARLY = 0.005, 0.1, 0.04
"""Time between levels, the most by which a recording is late, and by how much better its levels
correlate there: 0.05 to 0.15 where it is 15 ms late, 0.00 with added noise or INT8."""

_BEGINS_S = 0.05
"""The most by which a recording with the same noise begins late: less than damage is long."""

_LOUD, _ALIKE = 10.0**-2.5, 0.85
"""Power of a loud tenth of a second, of the loudest one's, and its correlation where all is late:
0.93 or more with INT8; 0.73 where a sound is a frame longer at the edge of that time."""

_BLOCK = 64
"""Rows whose distances are found at once."""


def window_length(sample_rate: int) -> int:
    """Return the samples of an analysis window: the power of two nearest to 1024 at 22.05 kHz.

    That is 1024 from 16 to 24 kHz and 2048 at 44.1 and 48 kHz.
    """
    return int(2 ** round(log2(1024 * sample_rate / 22_050)))


def log_mel(audio: Audio, overlap: int = 4) -> _Array:
    """Return the log-mel spectrum in decibels below a full-scale sine, shape `[frames, 80]`.

    A last, partial frame is filled with zeros, so that even empty audio has one frame. Samples
    that are not finite count as zero; `health` reports them.

    Args:
        audio: What was spoken.
        overlap: Windows over each sample.
    """
    window = window_length(audio.sample_rate)
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=0.0, neginf=0.0)
    hop = window // overlap
    padded = np.zeros(window + (count_frames(audio, overlap) - 1) * hop)
    padded[: len(samples)] = samples
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    power = power_spectrum(frames, np.hanning(window + 1)[:-1])  # [frames, bins]
    mel = power @ mel_filters(audio.sample_rate, window, MELS).T  # [frames, bins] -> [frames, mels]
    return np.asarray(10.0 * np.log10(np.maximum(mel, 10.0 ** (FLOOR_DB / 10.0))))


def power_spectrum(frames: _Array, taper: _Array) -> _Array:
    """Return the power in each bin, 1 for a full-scale sine, shape `[frames, bins]`.

    Args:
        frames: Samples, shape `[frames, window]`.
        taper: Shape `[window]`.
    """
    spectrum = np.fft.rfft(frames * (taper * (2.0 / taper.sum())), axis=1)
    # The absolute value would take a root, only for it to be squared.
    return np.square(spectrum.real) + np.square(spectrum.imag)


def count_frames(audio: Audio, overlap: int = 4) -> int:
    """Return the number of frames of the spectrum."""
    window = window_length(audio.sample_rate)
    return 1 + -(-max(len(audio.samples) - window, 0) // (window // overlap))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two spectra, frame by frame."""

    distance_db: float
    """The log-mel distance; 0 for identical audio."""

    frames: npt.NDArray[np.int32]
    """Frames of the first and of the second that belong together, shape `[P, 2]`."""


def log_mel_distance(reference: Audio, candidate: Audio) -> float:
    """Return the log-mel distance in decibels; 0 for identical audio."""
    return compare_spectra(reference, candidate).distance_db


def compare_spectra(reference: Audio, candidate: Audio) -> Comparison:
    """Return the log-mel distance, and the frames that were compared.

    Per frame the root-mean-square difference over mels, then the mean over frames. Frames are
    compared one by one where the timing is the same, else along the best alignment in time.
    """
    if reference.sample_rate != candidate.sample_rate:
        rates = f"{reference.sample_rate} and {candidate.sample_rate}"
        raise ValueError(f"cannot compare audio at {rates} Hz")
    left, right = log_mel(reference), log_mel(candidate)
    if same_timing(reference, candidate):
        frames = np.repeat(np.arange(len(left), dtype=np.int32)[:, None], 2, axis=1)
        return Comparison(float(np.mean(frame_distances(left, right))), frames)
    return compare_warped(left, right)


def same_timing(reference: Audio, candidate: Audio) -> bool:
    """Return True if each moment of one is the same moment of the other.

    Equal length is not enough: of two symbols one may have gained the frame that the other lost,
    and everything between them is late. Where durations are not known, such as in recordings,
    neither is late if the noise is the same, or the loudness does not fit better at another time.
    """
    if reference.sample_rate != candidate.sample_rate:
        return False
    if len(reference.samples) != len(candidate.samples):
        return False
    if reference.durations is None or candidate.durations is None:
        late = _is_late(_ups_and_downs(reference), _ups_and_downs(candidate))
        return not late or same_noise(reference, candidate)
    return np.array_equal(reference.durations, candidate.durations)


def same_noise(reference: Audio, candidate: Audio) -> bool:
    """Return True if samples of equal number correlate; those of two seeds do not."""
    before, after = (
        np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
        for audio in (reference, candidate)
    )
    norms = float(np.sqrt((before @ before) * (after @ after)))
    return float(before @ after) >= _CORRELATED * norms > 0.0


def on_time(reference: Audio, candidate: Audio) -> tuple[Audio, float]:
    """Return the candidate as if it had begun with the reference, and by how many s it was late.

    That is up to 50 ms, or as much early, where all of its samples correlate; 0 for other noise,
    and where a sound in it is longer. One of the other polarity is turned, which nobody hears.
    """
    before, after = (
        np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
        for audio in (reference, candidate)
    )
    reach, rate = round(_BEGINS_S * reference.sample_rate), reference.sample_rate
    points = 1 << (len(before) + len(after) + reach).bit_length()
    products = np.fft.rfft(after, points) * np.fft.rfft(before, points).conj()
    fits = np.roll(np.fft.irfft(products, points), reach)[: 2 * reach + 1]
    best = int(np.abs(fits).argmax())
    late, sign = best - reach, np.sign(fits[best])
    norms = float(np.sqrt((before @ before) * (after @ after)))
    if not sign * fits[best] >= _CORRELATED * norms > 0.0:
        return candidate, 0.0
    samples = sign * np.pad(candidate.samples, (max(0, -late), abs(late)))[max(0, late) :]
    if late and not _correlates_throughout(before, samples, rate):
        return candidate, 0.0
    # Where the lengths differ by no more than that, what is cut off or missing is silence.
    length = len(candidate.samples) - late
    length = len(before) if abs(length - len(before)) <= abs(late) else length
    return replace(candidate, samples=samples[:length].astype(np.float32)), late / rate


def _correlates_throughout(before: _Array, after: _Array, rate: int) -> bool:
    """Return True if each tenth of a second correlates, of the loud ones."""
    size, shared = round(0.1 * rate), min(len(before), len(after))
    if shared < size:
        return False
    left, right = (
        np.lib.stride_tricks.sliding_window_view(wave[:shared], size)[:: size // 2]
        for wave in (before, np.nan_to_num(after).astype(np.float64))
    )
    power = np.square(left).sum(axis=1)
    norms = np.sqrt(power * np.square(right).sum(axis=1))
    fits = (left * right).sum(axis=1) >= _ALIKE * norms
    return bool(fits[power >= _LOUD * power.max()].all())


def _is_late(before: _Array, after: _Array) -> bool:
    """Return True if levels every 5 ms fit clearly better where one side is later or earlier."""
    reach = round(_LATE_S / _STEP_S)
    if len(before) < 3 * reach:
        return False
    middle = before[reach:-reach]
    windows = np.lib.stride_tricks.sliding_window_view(after, len(middle))
    fits = windows @ middle / (np.linalg.norm(windows, axis=1) * np.linalg.norm(middle) + 1e-9)
    return bool(fits.max() > max(0.5, fits[reach - 1 : reach + 2].max() + _CLEARLY))


def _ups_and_downs(audio: Audio) -> _Array:
    """Return the level every 5 ms about its mean, dB; what is 50 dB below the mean is silence."""
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0).astype(np.float64)
    size = max(1, round(_STEP_S * audio.sample_rate))
    power = np.square(samples[: len(samples) // size * size]).reshape(-1, size).mean(axis=1)
    levels = 10.0 * np.log10(power + 1e-5 * power.sum() / max(1, len(power)) + 1e-12)
    return np.asarray(levels - levels.sum() / max(1, len(levels)))


def frame_distances(left: _Array, right: _Array) -> _Array:
    """Return the root-mean-square difference over mels of each frame; shapes broadcast."""
    return np.asarray(np.sqrt(np.mean(np.square(left - right), axis=-1)))


def compare_warped(left: _Array, right: _Array) -> Comparison:
    """Return the mean frame distance along the best alignment, and the alignment."""
    band = _band(len(left), len(right))
    path = np.array(align(_band_distances(left, right, band), [begin for begin, _ in band]))
    # Anew along the path, where it is exact.
    distances = frame_distances(left[path[:, 0]], right[path[:, 1]])
    return Comparison(float(np.mean(distances)), path.astype(np.int32))


def _band_distances(left: _Array, right: _Array, band: Sequence[tuple[int, int]]) -> list[_Array]:
    """Return the frame distances of each row of `left` to the columns of `right` in its band.

    They are taken from products of whole blocks, so that equal frames are up to 1e-6 dB apart.
    """
    centre = right.mean()
    left, right = left - centre, right - centre
    energies = np.square(left).sum(axis=1)[:, None], np.square(right).sum(axis=1)
    distances: list[_Array] = []
    for first in range(0, len(left), _BLOCK):
        rows = band[first : first + _BLOCK]
        columns = slice(rows[0][0], rows[-1][1])
        block = energies[0][first : first + _BLOCK] + energies[1][columns]
        block -= 2.0 * (left[first : first + _BLOCK] @ right[columns].T)
        block = np.sqrt(np.maximum(block, 0.0) / left.shape[1])
        distances += [
            row[begin - columns.start : end - columns.start]
            for row, (begin, end) in zip(block, rows, strict=True)
        ]
    return distances


def align(costs: Sequence[_Array], starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the cheapest monotonic path from the first cell to the last, steps of 0 or 1.

    Args:
        costs: The cells of each row that lie in the band.
        starts: The column of each row's first cell; the first is 0. Neighbouring rows overlap.
    """
    totals = [np.cumsum(costs[0])]
    for row in range(1, len(costs)):
        offset = starts[row] - starts[row - 1]
        totals.append(_next_row(totals[-1], costs[row], offset))
    return _trace_back(totals, starts)


def _next_row(above: _Array, cost: _Array, offset: int) -> _Array:
    """Return the cheapest totals of a row, given those of the row above.

    A cell is entered from above (`entry`) and followed along the row, so that its total is
    min over k <= j of entry[k] + sum(cost[k..j]); with prefix sums that is a running minimum.
    """
    padded = np.full(offset + len(cost) + 1, np.inf)
    shared = min(len(above), len(padded) - 1)
    padded[1 : shared + 1] = above[:shared]
    entry = np.minimum(padded[offset:-1], padded[offset + 1 :])
    sums = cost.cumsum()
    return np.asarray(sums + np.minimum.accumulate(entry - (sums - cost)))


def _trace_back(totals: Sequence[_Array], starts: Sequence[int]) -> list[tuple[int, int]]:
    def total(cell: tuple[int, int]) -> float:
        row, offset = cell[0], cell[1] - starts[cell[0]]
        is_cell = row >= 0 and 0 <= offset < len(totals[row])
        return float(totals[row][offset]) if is_cell else np.inf

    row, column = len(totals) - 1, starts[-1] + len(totals[-1]) - 1
    path = [(row, column)]
    while row or column:
        # The diagonal comes first, so that of equal paths the shortest is taken.
        row, column = min((row - 1, column - 1), (row - 1, column), (row, column - 1), key=total)
        path.append((row, column))
    return path[::-1]


def _band(rows: int, columns: int) -> list[tuple[int, int]]:
    """Return the columns `[begin, end)` of the band in each row, around the diagonal."""
    # A row must reach the next row's centre, or a steep diagonal would leave the band.
    reach = max(_LEAST_BAND, round(_BAND * max(rows, columns)), -(-columns // rows))
    centres = np.linspace(0, columns - 1, rows).round().astype(int).tolist()
    return [(max(0, centre - reach), min(columns, centre + reach + 1)) for centre in centres]


_LEVEL_DB = -12.0
"""Root mean square, below full scale, at which a voice is analysed.

The analysis hears nothing below its floor of -60 dB, then 48 dB below the voice: with a voice of 65
dB SPL that is 17 dB SPL in each band, a quiet room. How loud a voice is makes no difference.
"""

_LOWEST_MEL = 150.0
"""Centre of the lowest band, 100 Hz: what is below is hardly heard at that level, and differs
between renderings that are heard as the same."""

_OVERLAP = 16
"""Frames of 4 ms at 16 kHz: a copy that is late by part of a frame is no distance away."""

_LONG_S = 30.0
"""Seconds from which on frames are as coarse as those of other distances: memory grows with the
square of their number."""

_TELEPHONE_LEVEL = 10.0 ** (-26.0 / 20.0)
"""Root mean square of speech on a telephone line (ITU-T P.56)."""

_MU = 255.0


class Distances(NamedTuple):
    """Distances from one other rendering, decibels."""

    reference: float
    candidate: float
    coded: float
    """That of the reference's audio after mu-law."""

    closer: float | None = None
    """How much closer together two seeds of the candidate are than of the reference; None where
    a text has no other seed to compare with."""


def observe(reference: Audio, candidate: Audio, other: Audio) -> Distances:
    """Return how far two renderings are from a third.

    Args:
        reference: A rendering by the reference.
        candidate: The candidate's, with the same seed or of the same features.
        other: What both are compared with: the reference's with another seed, or a recording.
    """
    rates = {audio.sample_rate for audio in (reference, candidate, other)}
    if len(rates) > 1:
        raise ValueError(f"cannot compare audio at {sorted(rates)} Hz")
    coded = mu_law(reference)
    longest = max(audio.duration_s for audio in (reference, candidate, other))
    overlap = _OVERLAP if longest < _LONG_S else 4
    target = spectrum(other, overlap)
    spectra = (spectrum(audio, overlap) for audio in (reference, candidate, coded))
    return Distances(*(compare_warped(each, target).distance_db for each in spectra))


def seeds_apart(first: Audio, second: Audio) -> float:
    """Return the distance of two renderings of a text by one voice, decibels."""
    longest = max(first.duration_s, second.duration_s)
    overlap = _OVERLAP if longest < _LONG_S else 4
    return compare_warped(spectrum(first, overlap), spectrum(second, overlap)).distance_db


def mu_law(audio: Audio) -> Audio:
    """Return the audio as 8-bit mu-law keeps it, at the level of a telephone line."""
    scaled = np.clip(_at_level(audio, _TELEPHONE_LEVEL), -1.0, 1.0)
    codes = np.round(127.0 * np.sign(scaled) * np.log1p(_MU * np.abs(scaled)) / np.log1p(_MU))
    decoded = np.sign(codes) * np.expm1(np.abs(codes) / 127.0 * np.log1p(_MU)) / _MU
    return replace(audio, samples=decoded.astype(np.float32))


def spectrum(audio: Audio, overlap: int = _OVERLAP) -> npt.NDArray[np.float64]:
    """Return the log-mel spectrum that distances are taken of, shape `[frames, bands]`."""
    samples = _at_level(audio, 10.0 ** (_LEVEL_DB / 20.0)).astype(np.float32)
    highest = 2595.0 * np.log10(1.0 + audio.sample_rate / 1400.0)
    lowest = int(np.ceil(_LOWEST_MEL / highest * (MELS + 1))) - 1
    return log_mel(replace(audio, samples=samples), overlap)[:, lowest:]


def _at_level(audio: Audio, level: float) -> npt.NDArray[np.float64]:
    """Return the samples with another root mean square; silence stays silent."""
    samples = np.nan_to_num(audio.samples.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    present = np.sqrt(np.mean(np.square(samples))) if len(samples) else 0.0
    return samples * (level / present) if present else samples
