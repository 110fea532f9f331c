"""The melody of the candidate's speech against the reference's: its fundamental frequency, F0.

Frames are compared where the timing is the same, else along the alignment of the spectra. The same
figures of the reference against itself with other seeds are the floor. Names are those of VERSA,
which states the error in Hz.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tts_compress.evaluation.metric import Audios, Metric, Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.pitch import LEAST_FRAMES, track_pitch

_Track: TypeAlias = npt.NDArray[np.float64]
"""Hz, 0 where there is no voice, shape `[frames]`."""


def _observe(audios: Audios) -> dict[str, _Track]:
    roles = ("reference", "candidate", "other_seed")
    return {role: track_pitch(getattr(audios, role)) for role in roles}


def rmse_cents(before: _Track, after: _Track) -> float:
    """Return the root-mean-square error over frames with a voice in both; a semitone is 100.

    NaN where there are too few such frames.
    """
    left, right = _voiced(before, after)
    return float(np.sqrt(np.mean(np.square(right - left)))) if len(left) else np.nan


def correlation(before: _Track, after: _Track) -> float:
    """Return Pearson's correlation of the logarithms over frames with a voice in both."""
    left, right = _voiced(before, after)
    if not (len(left) and left.std() > 0.0 and right.std() > 0.0):
        return np.nan
    return float(np.corrcoef(left, right)[0, 1])


def voicing_error(before: _Track, after: _Track) -> float:
    """Return the share of frames with a voice in one alone."""
    return float(np.mean((before > 0.0) != (after > 0.0)))


def _voiced(before: _Track, after: _Track) -> tuple[_Track, _Track]:
    """Return both in cents where both have a voice; nothing where that is too short."""
    both = (before > 0.0) & (after > 0.0)
    if both.sum() < LEAST_FRAMES:
        return np.empty(0), np.empty(0)
    return 1200.0 * np.log2(before[both]), 1200.0 * np.log2(after[both])


def _mean_hz(track: _Track) -> float:
    """Return the geometric mean over frames with a voice."""
    voiced = track[track > 0.0]
    return float(np.exp(np.log(voiced).mean())) if len(voiced) >= LEAST_FRAMES else np.nan


def _compare(figure: Callable[[_Track, _Track], float], run: Run) -> Paired | None:
    """Return a figure of reference and candidate beside that of the reference's other seeds."""
    observed = run.observations("f0_mean")
    values: dict[str, list[float]] = {"other_seed": [], "candidate": []}
    alignments = {
        "other_seed": [spectra.frames for spectra in run.observations("floors")],
        "candidate": [signal.spectra.frames for signal in run.observations("signal")],
    }
    for role, alignment in alignments.items():
        for tracks, frames in zip(observed, alignment, strict=True):
            before, after = tracks["reference"][frames[:, 0]], tracks[role][frames[:, 1]]
            values[role].append(figure(before, after))
    return compare_pairs(run, values["other_seed"], values["candidate"])


def _mean(run: Run) -> Paired | None:
    observed = run.observations("f0_mean")
    before, after = (
        [_mean_hz(tracks[role]) for tracks in observed] for role in ("reference", "candidate")
    )
    return compare_pairs(run, before, after)


def _metric(name: str, figure: Callable[[_Track, _Track], float], show: Show) -> Metric:
    return show.metric(name, partial(_compare, figure), floor=True)


METRICS = (
    _metric("f0_rmse", rmse_cents, Show("F0 error", "cents", digits=1, better="lower")),
    _metric("f0_corr", correlation, Show("F0 correlation", digits=3)),
    _metric(
        "f0_voicing_error",
        voicing_error,
        Show("Voicing errors", "%", digits=1, scale=100, better="lower"),
    ),
    Show("F0, mean", "Hz", digits=1, better=None).metric(
        "f0_mean",
        _mean,
        observe=_observe,
        terms={
            "F0": "fundamental frequency of the voice, its melody; a semitone is 100 cents. Error "
            "and correlation are over frames with a voice in both; a voicing error is a frame with "
            "a voice in one alone.",
        },
    ),
)
