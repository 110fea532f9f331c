"""Likeness of the candidate's voice to the reference's, by Resemblyzer's speaker encoder.

Wan et al., "Generalized end-to-end loss for speaker verification", ICASSP 2018. The wheel's file is
opened here with torch; its code, which needs webrtcvad and librosa, is never imported, and pauses
are left in. The name is VERSA's, whose encoder is another one: values do not compare.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Audio, Samples, finite_samples
from tts_compress.evaluation.metric import Measure, Paired, Show, compare_pairs
from tts_compress.evaluation.pairs import Run
from tts_compress.numerics.spectra import slaney_spectrum

_RATE = 16_000
_HOP = 160
_PART = 160
"""Frames of the 1.6 s that the encoder takes at once."""

_STEP = 77
"""Frames from one part to the next: 1.3 parts begin in a second."""

_LEAST_COVERAGE = 0.75
"""Share of the last part that is speech; one with less is left out."""

_LEVEL = 10.0 ** (-30.0 / 20.0)
"""Root mean square that softer speech is brought to."""


def _installed(_: object) -> dict[str, str] | None:
    """Return the version; None where the wheel, torch, or SciPy to resample, is not installed."""
    try:
        versions = {name: version(name) for name in ("resemblyzer", "torch", "scipy")}
    except PackageNotFoundError:
        return None
    return {"resemblyzer": versions["resemblyzer"]}


def open_encoder() -> Callable[[Samples], npt.NDArray[np.float32]]:
    """Return the encoder of the installed wheel: samples at 16 kHz to an embedding, shape `[256]`.

    Embeddings have length 1, but for those of silence, which are zero.
    """
    import torch

    path = Path(str(distribution("resemblyzer").locate_file("resemblyzer/pretrained.pt")))
    state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
    layers = torch.nn.ModuleDict(
        {"lstm": torch.nn.LSTM(40, 256, 3, batch_first=True), "linear": torch.nn.Linear(256, 256)}
    )
    layers.load_state_dict({name: state[name] for name in layers.state_dict()})
    torch.set_num_threads(1)

    @torch.inference_mode()
    def encode(samples: Samples) -> npt.NDArray[np.float32]:
        parts = torch.from_numpy(split_parts(samples))
        _, (hidden, _) = layers["lstm"](parts)
        outputs = layers["linear"](hidden[-1]).relu()
        mean = torch.nn.functional.normalize(outputs, dim=1).mean(dim=0)
        embedding: npt.NDArray[np.float32] = torch.nn.functional.normalize(mean, dim=0).numpy()
        return embedding

    return encode


def split_parts(samples: Samples) -> npt.NDArray[np.float32]:
    """Return the mel spectra of overlapping parts, shape `[parts, 160, 40]`, as upstream does."""
    level = float(np.sqrt(np.mean(np.square(samples, dtype=np.float64)))) if len(samples) else 0.0
    if 0.0 < level < _LEVEL:
        samples = np.asarray(samples * (_LEVEL / level), np.float32)
    frames = -(-(len(samples) + 1) // _HOP)
    starts = list(range(0, max(1, frames - _PART + _STEP + 1), _STEP))
    if len(starts) > 1 and len(samples) / _HOP - starts[-1] < _LEAST_COVERAGE * _PART:
        starts.pop()
    padded = np.pad(samples, (0, max(0, (starts[-1] + _PART) * _HOP - len(samples))))
    mel = slaney_spectrum(padded, _RATE, window=400, hop=_HOP, bands=40).astype(np.float32)
    return np.stack([mel[start : start + _PART] for start in starts])


def _open(_: object) -> Callable[[Audio], list[float]]:
    encode = open_encoder()

    def measure(audio: Audio) -> list[float]:
        samples = np.clip(finite_samples(audio, _RATE), -1.0, 1.0)
        return [round(value, 6) for value in encode(samples).tolist()]

    return measure


_MEASURE = Measure(
    name="speaker",
    settings=_installed,
    open=_open,
    roles=("reference", "candidate", "other_seed"),
)


def _embeddings(run: Run) -> dict[str, npt.NDArray[np.float64]] | None:
    """Return the embeddings by role, shape `[pairs, 256]`, of length 1."""
    measurements = run.measurements(_MEASURE)
    if measurements is None:
        return None
    return {role: _unit([vectors[role] for vectors in measurements]) for role in _MEASURE.roles}


def _unit(embeddings: Sequence[Sequence[float]]) -> npt.NDArray[np.float64]:
    rows = np.array(embeddings)
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


def _to_reference(run: Run) -> Paired | None:
    voices = _embeddings(run)
    if voices is None:
        return None
    cosines = {role: np.sum(voices["reference"] * voices[role], axis=1) for role in voices}
    return compare_pairs(run, cosines["other_seed"], cosines["candidate"])


def _to_prompt(run: Run) -> Paired | None:
    """Return the similarity to the recording by which both models speak; None without one."""
    voices = _embeddings(run)
    if voices is None or run.models is None:
        return None
    prompt: Any = run.subjects[0].model.speaking.prompt
    if prompt is None or prompt.audio is None:
        return None
    import soundfile

    samples, rate = soundfile.read(prompt.audio, dtype="float32", always_2d=True)
    recording = Audio(samples=samples.mean(axis=1), sample_rate=rate)
    (voice,) = _unit([_open(None)(recording)])
    return compare_pairs(run, voices["reference"] @ voice, voices["candidate"] @ voice)


METRICS = (
    Show("Speaker similarity", digits=3).metric(
        "spk_similarity",
        _to_reference,
        floor=True,
        measure=_MEASURE,
        terms={
            "Speaker similarity": "cosine of two embeddings of a voice by a network; 1 is the same "
            "voice. Of the compressed model to the reference, and of both to the recording that "
            "they speak by.",
        },
    ),
    Show("Similarity to the recording", digits=3).metric(
        "spk_similarity_prompt", _to_prompt, measure=_MEASURE
    ),
)
