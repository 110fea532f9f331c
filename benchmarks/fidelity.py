"""Distance to FP32: the same noise for both, and FP32's durations for the compressed one, too.

What else moves all that follows, such as the pitch of a sine source, is FP32's as well: each voice
states the tensors that are held.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from benchmarks.sentences import Sentence
from benchmarks.voices.voice import DURATIONS, BenchVoice
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.evaluation.metrics.signal import observe, snr_db
from tts_compress.models import load
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.nodes import rename_read
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session

Held = dict[str, "npt.NDArray[np.float64]"]

_PREFIX = "benchmarks.held."
_DTYPES = {"float": "float32", "float16": "float16", "double": "float64"}
"""Names of numpy's types, by the runtime's; the integers have the same."""


def run_held(
    model: onnx.ModelProto, tensors: Mapping[str, str], given: Held | None, feeds: Feeds, spec: str
) -> tuple[npt.NDArray[np.float32], Held]:
    """Return the first output, and what the graph computed for tensors."""
    outputs = [model.graph.output[0].name, *tensors.values()]
    graph = copy_model(model) if given is None else bake(model, tensors, given, spec)
    first, *own = run_session(_expose(graph, tensors.values(), spec), feeds, spec, outputs)
    computed = (np.asarray(value, np.float64) for value in own)
    return np.asarray(first, np.float32), dict(zip(tensors, computed, strict=True))


def bake(
    model: onnx.ModelProto, tensors: Mapping[str, str], given: Held, spec: str
) -> onnx.ModelProto:
    """Return a copy of a graph in which tensors have given values for good."""
    copy = copy_model(model)
    for value in _expose(copy_model(model), tensors.values(), spec).get_outputs():
        for label in [label for label, tensor in tensors.items() if tensor == value.name]:
            kind = value.type[len("tensor(") : -1]
            values = given[label].astype(_DTYPES.get(kind, kind))
            copy.graph.initializer.append(numpy_helper.from_array(values, _PREFIX + label))
    for node in copy.graph.node:
        rename_read(node, {tensor: _PREFIX + label for label, tensor in tensors.items()})
    return copy


def _expose(
    model: onnx.ModelProto, tensors: Iterable[str], spec: str
) -> onnxruntime.InferenceSession:
    """Let a graph return tensors, too, and open it."""
    computed = {name for node in model.graph.node for name in node.output}
    returned = {value.name for value in model.graph.output}
    for tensor in tensors:
        if tensor not in computed:
            raise ModelError(f"'{spec}' has no tensor '{tensor}', which is held for comparing")
        if tensor not in returned:
            model.graph.output.append(helper.make_empty_tensor_value_info(tensor))
    return open_session(model, spec)


_SENTENCES = 1_000
"""More than are compared; the next noise begins there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """Distance to FP32 under the same noise, over all sentences."""

    snr_db: float | None
    """At FP32's durations and other held tensors; None where it is not finite."""

    log_mel_db: float
    kept_durations: float | None
    """Share of ids whose predicted duration is FP32's."""

    duration_change: float | None


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
    """Return all sentences under fed noise, with the reference's held tensors if one is given."""
    model: Any = load(path)
    graph = onnx.load(path)
    tensors, fed = voice.held(graph.graph), feed_noise(graph)
    noises = [value.name for value in fed.graph.input]
    spoken = []
    for index, sentence in enumerate(sentences):
        seed = noise * _SENTENCES + index
        held = reference[index].own if reference else None
        # As `synthesize` draws noise for the first call of a text.
        feeds = sentence.feeds | draw_noise(noises, seed=(seed, 0))
        samples, own = run_held(fed, tensors, held, feeds, path.name)
        if len(model.parts) > 1:
            # The first graph decides durations; the voice runs the others.
            first = bake(graph, tensors, held or own, path.name)
            chain = model.with_graphs({"": first}, model.manifest)
            samples = chain.synthesize(sentence.request["text"], seed=seed).samples
        frames = (held or own).get(DURATIONS)
        audio = Audio(
            samples=np.asarray(samples, np.float32).reshape(-1),
            sample_rate=model.sample_rate,
            durations=None if frames is None else np.rint(frames).astype(np.int64).reshape(-1),
        )
        spoken.append(Spoken(audio=audio, own=own))
    return spoken


def compare(reference: Sequence[Spoken], candidate: Sequence[Spoken]) -> Fidelity:
    """Return the distance from the reference of a candidate given the reference's durations."""
    pairs = zip(reference, candidate, strict=True)
    differences = [observe(before.audio, after.audio) for before, after in pairs]
    fidelity = Fidelity(
        snr_db=snr_db(differences),
        log_mel_db=float(np.mean([one.spectra.distance_db for one in differences])),
        kept_durations=None,
        duration_change=None,
    )
    if any(DURATIONS not in spoken.own for spoken in reference):
        return fidelity  # such as a language model of speech, which predicts none
    frames, own = (
        np.concatenate([spoken.own[DURATIONS].reshape(-1) for spoken in side])
        for side in (reference, candidate)
    )
    return replace(
        fidelity,
        # Frames are whole; seconds have rounding errors.
        kept_durations=float(np.mean(np.isclose(own, frames, rtol=1e-5, atol=0.0))),
        duration_change=float(own.sum() / frames.sum() - 1.0),
    )
