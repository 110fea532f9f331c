"""The canary of a voice: levels of a short sound, by which a player sees that its runtime garbles.

WebGPU and other accelerators have made noise or silence of voices without any error (onnxruntime
issue 29807, transformers.js issue 1320). A player that speaks the canary when it opens a voice, and
compares the levels with those that are stored, sees that before a listener hears it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session

_SECONDS = 0.2
"""Length of the sound that is compared."""

_SIZE, _HOP = 512, 256
"""Samples of a frame, and from one to the next."""

_BANDS = 16
_RANGE_DB = 40.0
"""Levels that are further below the loudest count as that far below it."""

_USUAL_DB, _MOST_DB = 1.0, 3.0
"""Root mean square difference of levels that a right runtime stays below, and the largest that may
be allowed for a voice whose noise cannot be turned off."""

_REPEATS = 4


def make_canary(voice: OnnxVoice) -> dict[str, Any] | None:
    """Return what a player speaks and has to hear; None of a voice whose sound is never the same.

    Numbers among the inputs that scale noise are set to 0.
    """
    model, (call, _) = voice.graph(), voice.two_calls("")
    session = open_session(model, voice.spec)
    part, names = voice.parts[""], input_names(session)
    position = [output.name for output in session.get_outputs()].index(part.output)

    def say(feeds: Feeds) -> npt.NDArray[np.float64]:
        sound: npt.NDArray[np.float64] = np.asarray(
            run_session(session, feeds, voice.spec)[position], np.float64
        ).reshape(-1)
        return sound

    feeds = {name: value for name, value in call.items() if name in names}
    changed = _without_noise(feeds, [n for n in feeds if part.roles[n].role == "scales"], say)
    sounds = [say(feeds | changed) for _ in range(_REPEATS)]
    heard = _heard(sounds, voice.sample_rate)
    if heard is None:
        return None
    tokens = next(n for n, role in part.roles.items() if role.role == "tokens")
    ids = feeds[tokens].reshape(-1).tolist()
    return {"ids": ids, "inputs": {n: v.tolist() for n, v in changed.items()}} | heard


def _heard(sounds: list[npt.NDArray[np.float64]], rate: int) -> dict[str, Any] | None:
    """Return the levels of the loudest part of sounds, None where they are not the same."""
    count = round(_SECONDS * rate / _HOP) - 1
    length = len(sounds[0])
    if any(len(sound) != length for sound in sounds) or length < count * _HOP:
        return None
    energy = np.convolve(np.square(sounds[0]), np.ones(count * _HOP), "valid")
    at = max(0, min(int(energy.argmax()), length - (count + 1) * _HOP))
    edges = np.unique(np.rint(np.geomspace(2, _SIZE // 2, _BANDS + 1)).astype(int))
    levels, *others = (_levels(sound[at:], count, edges) for sound in sounds)
    floor = float(levels.max()) - _RANGE_DB
    tolerance = max(_USUAL_DB, *(2.0 * _distance(levels, other, floor) for other in others))
    if not tolerance <= _MOST_DB:  # nor of numbers that are none
        return None
    return {
        "samples": length,
        "at": at,
        "size": _SIZE,
        "hop": _HOP,
        "edges": edges.tolist(),
        "levels_db": np.maximum(levels, floor).round(1).tolist(),
        "floor_db": round(floor, 1),
        "tolerance_db": round(tolerance, 1),
    }


def _without_noise(feeds: Feeds, names: list[str], say: Any) -> dict[str, npt.NDArray[Any]]:
    """Return inputs with 0 for each number without which the sound keeps length and loudness."""
    usual = say(feeds)
    changed = {name: feeds[name].copy() for name in names}
    for values in changed.values():
        for index, kept in enumerate(values.flat):
            values.flat[index] = 0
            if not _is_alike(usual, say(feeds | changed)):
                values.flat[index] = kept
    return changed


def _is_alike(usual: npt.NDArray[np.float64], sound: npt.NDArray[np.float64]) -> bool:
    """Return True for a sound of about the same length that is less than 20 dB softer."""
    if not 0.5 < len(sound) / max(1, len(usual)) < 2.0:
        return False
    return bool(np.square(sound).mean() > 0.01 * np.square(usual).mean())


def _levels(sound: npt.NDArray[np.float64], count: int, edges: Any) -> npt.NDArray[np.float64]:
    """Return the power of frames in bands, in dB of full scale, of shape `[frames, bands]`."""
    padded = np.pad(sound, (0, max(0, (count + 1) * _HOP - len(sound))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _SIZE)[: count * _HOP : _HOP]
    window = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(_SIZE) / _SIZE)
    power = np.square(np.abs(np.fft.rfft(frames * window))) / _SIZE**2
    return 10.0 * np.log10(np.add.reduceat(power[:, : edges[-1]], edges[:-1], axis=1) + 1e-12)


def _distance(left: Any, right: Any, floor: float) -> float:
    difference = np.maximum(left, floor) - np.maximum(right, floor)
    return float(np.sqrt(np.square(difference).mean()))
