"""Distance to FP32: the same noise for both, and FP32's durations for the compressed one, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from benchmarks.results import Fidelity
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.evaluation.metrics.signal import observe, snr_db
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import input_names, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.sentences import Sentence

_GIVEN, _OWN = "benchmarks.given_durations", "benchmarks.own_durations"
Durations = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """One sentence as synthesized by one file."""

    audio: Audio
    own: Durations
    """Frames of each phoneme id that the file itself chose, whatever it was given."""


def speak(
    path: Path,
    sentences: Sequence[Sentence],
    sample_rate: int,
    reference: Sequence[Spoken] | None = None,
    noise: int = 0,
) -> list[Spoken]:
    """Return all sentences under fed noise, with the reference's durations if one is given.

    Raises:
        ModelError: The graph cannot be run, or is not built as Piper's are.
    """
    graph = expose_durations(feed_noise(onnx.load(path)), given=reference is not None)
    session = open_session(graph, path.name)
    spoken = []
    for index, sentence in enumerate(sentences):
        feeds = sentence.feeds(random_durations=True)
        feeds |= draw_noise(input_names(session), seed=(noise, index))
        if reference is not None:
            feeds[_GIVEN] = reference[index].own
        audio, *_, own = session.run(None, feeds)
        used = own if reference is None else reference[index].own
        samples = np.asarray(audio, np.float32).reshape(-1)
        durations = used.astype(np.int64).reshape(-1)
        spoken.append(
            Spoken(
                audio=Audio(samples=samples, sample_rate=sample_rate, durations=durations), own=own
            )
        )
    return spoken


def compare(reference: Sequence[Spoken], candidate: Sequence[Spoken]) -> Fidelity:
    """Return the distance from the reference of a candidate given the reference's durations."""
    pairs = zip(reference, candidate, strict=True)
    differences = [observe(before.audio, after.audio) for before, after in pairs]
    frames = np.concatenate([spoken.own.reshape(-1) for spoken in reference])
    own = np.concatenate([spoken.own.reshape(-1) for spoken in candidate])
    return Fidelity(
        snr_db=snr_db(differences),
        log_mel_db=float(np.mean([one.spectra.distance_db for one in differences])),
        kept_durations=float(np.mean(own == frames)),
        duration_change=float(own.sum() / frames.sum() - 1.0),
    )


def expose_durations(model: onnx.ModelProto, *, given: bool) -> onnx.ModelProto:
    """Add an output for the frames of each id to a graph, and with `given` an input of them.

    Args:
        model: The graph; changed in place.
        given: The frames come from a new input instead of the graph.

    Raises:
        ModelError: The graph is not that of a Piper voice.
    """
    graph = model.graph
    ceils = [index for index, node in enumerate(graph.node) if node.op_type == "Ceil"]
    if len(ceils) != 1:
        raise ModelError(f"the graph has {len(ceils)} Ceil operators; a Piper voice has one")
    chosen = graph.node[ceils[0]].output[0]
    added = [helper.make_node("Cast", [chosen], [_OWN], _OWN, to=TensorProto.FLOAT)]
    graph.output.append(helper.make_tensor_value_info(_OWN, TensorProto.FLOAT, None))
    if given:
        for node in graph.node:
            for position, name in enumerate(node.input):
                if name == chosen:
                    node.input[position] = f"{_GIVEN}.cast"
        shape = [None, None, None]
        graph.input.append(helper.make_tensor_value_info(_GIVEN, TensorProto.FLOAT, shape))
        added.append(helper.make_node("CastLike", [_GIVEN, chosen], [f"{_GIVEN}.cast"]))
    for node in reversed(added):
        graph.node.insert(ceils[0] + 1, node)
    return model
