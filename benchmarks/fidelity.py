"""Distance to FP32: the same noise for both, and FP32's durations for the compressed one, too.

What else moves all that follows, such as the pitch of a sine source, is FP32's as well: each voice
states the tensors that are held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.holding import Held, HoldingSession, bake
from benchmarks.sentences import Sentence
from benchmarks.voices.voice import DURATIONS, BenchVoice
from tts_compress.audio import Audio
from tts_compress.evaluation.metrics.signal import observe, snr_db
from tts_compress.models import load
from tts_compress.models.base import GraphChain
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import input_names

_SENTENCES = 1_000
"""More than are compared; the next noise begins there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Distance to FP32 under the same noise, over all sentences."""

    snr_db: float | None
    """At FP32's durations and other held tensors; None where it is not finite."""

    log_mel_db: float
    """At the same."""

    kept_durations: float | None
    """Share of ids whose predicted duration is FP32's."""

    duration_change: float | None
    """Change of the total, relative to FP32's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One sentence as synthesized by one file."""

    audio: Audio
    own: Held
    """Values of the held tensors that the file computed, whatever it was given."""


def speak(
    path: Path,
    sentences: Sequence[Sentence],
    voice: BenchVoice,
    reference: Sequence[Spoken] | None = None,
    noise: int = 0,
) -> list[Spoken]:
    """Return all sentences under fed noise, with the reference's held tensors if one is given.

    Raises:
        ModelError: The graph cannot be run, or lacks a tensor that is held.
    """
    model: Any = load(path)
    graph = onnx.load(path)
    tensors, fed = voice.held(graph.graph), feed_noise(graph)
    session = HoldingSession(fed, tensors, reference[0].own if reference else None, path.name)
    noises = input_names(session.session)
    spoken = []
    for index, sentence in enumerate(sentences):
        seed = noise * _SENTENCES + index
        held = reference[index].own if reference else None
        # As `synthesize` draws noise for the first call of a text.
        samples, own = session.run(sentence.feeds | draw_noise(noises, seed=(seed, 0)), held)
        if isinstance(model, GraphChain) and model.followers():
            # The first graph decides durations; the voice runs the others.
            first = bake(graph, tensors, held or own, path.name)
            manifest: Any = model.manifest  # of FP32 there is none
            chain: Any = model.with_graph(first, manifest)
            samples = chain.synthesize(sentence.request["text"], seed=seed).samples
        audio = Audio(
            samples=np.asarray(samples, np.float32).reshape(-1),
            sample_rate=model.sample_rate,
            durations=np.rint((held or own)[DURATIONS]).astype(np.int64).reshape(-1),
        )
        spoken.append(Spoken(audio=audio, own=own))
    return spoken


def compare(reference: Sequence[Spoken], candidate: Sequence[Spoken]) -> Fidelity:
    """Return the distance from the reference of a candidate given the reference's durations."""
    pairs = zip(reference, candidate, strict=True)
    differences = [observe(before.audio, after.audio) for before, after in pairs]
    frames, own = (
        np.concatenate([spoken.own[DURATIONS].reshape(-1) for spoken in side])
        for side in (reference, candidate)
    )
    return Fidelity(
        snr_db=snr_db(differences),
        log_mel_db=float(np.mean([one.spectra.distance_db for one in differences])),
        # Frames are whole; seconds have rounding errors.
        kept_durations=float(np.mean(np.isclose(own, frames, rtol=1e-5, atol=0.0))),
        duration_change=float(own.sum() / frames.sum() - 1.0),
    )
