"""Sentences of Piper voices: real phonemes, at a real speaking rate whatever the weights."""

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.sentences import Sentence, run_request
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import with_outputs
from tts_compress.onnx.session import Feeds, open_session

FRAMES_PER_ID = 2.5
"""Frames of a phoneme id in Piper's English voices, pads between phonemes counted."""

# About 600 phoneme ids; written for this purpose and in no calibration set.
_TEXT = (
    "The keeper of the lighthouse counted seven ships before the fog rolled in from the west, "
    "and by noon the harbor bell was ringing for the fishermen who had gone out at dawn, while "
    "their children waited on the pier with lanterns, blankets, and a kettle of hot soup, "
    "because the old captain had told them that nobody comes home from the winter sea without "
    "a story, an empty stomach, and at least one frozen finger to complain about."
)


class Durations:
    """The frames that an FP32 voice with the one `Ceil` of VITS gives to phoneme ids."""

    def __init__(self, voice: GraphModel) -> None:
        graph = voice.graph()
        ceil = next(node for node in graph.graph.node if node.op_type == "Ceil")
        self._session = open_session(with_outputs(graph, ceil.output), voice.spec, 1)
        usual = next(voice.calibration_calls([_TEXT], seed=0))
        self._ids = tuple(int(value) for value in usual["input"][0])
        self._noise, _, self._duration_noise = (float(value) for value in usual["scales"])

    def ids(self, count: int) -> tuple[int, ...]:
        """Return the first phoneme ids of a text and its last, repeated where it is too short."""
        inner = self._ids[:-1] + self._ids[1:-1] * (count // len(self._ids))
        return (*inner[: count - 1], self._ids[-1])

    def scale(self, count: int, frames: float) -> float:
        """Return the length scale at which so many ids take so many frames."""
        ids = self.ids(count)
        return search_scale(lambda scale: self._frames(ids, scale), frames)

    def sentence(self, name: str, count: int, frames: float) -> Sentence:
        """Return so many ids at the length scale at which they take so many frames.

        Timed without random durations, so that every run is equally long.
        """
        ids, scale = self.ids(count), self.scale(count, frames)
        return Sentence(
            name=name,
            tokens=count,
            feeds=_feeds(ids, (self._noise, scale, self._duration_noise)),
            request=run_request(_feeds(ids, (self._noise, scale, 0.0))),
        )

    def _frames(self, ids: Sequence[int], scale: float) -> float:
        return float(self._session.run(None, _feeds(ids, (self._noise, scale, 0.0)))[0].sum())


def _feeds(ids: Sequence[int], scales: tuple[float, float, float]) -> Feeds:
    """Return the graph's inputs; the scales of noise, length and duration noise."""
    return {
        "input": np.array([ids], np.int64),
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array(scales, np.float32),
    }


def make_sentences(
    voice: GraphModel, seconds: Sequence[float], samples_per_frame: int = 256
) -> list[Sentence]:
    """Return a sentence for each wanted length of audio."""
    durations = Durations(voice)
    sentences = []
    for wanted in seconds:
        frames = wanted * voice.sample_rate / samples_per_frame
        count = max(3, round(frames / FRAMES_PER_ID))
        sentences.append(durations.sentence(f"{wanted:g} s", count, frames))
    return sentences


def search_scale(frames_at: Callable[[float], float], wanted: float) -> float:
    """Return the scale at which a function that grows with it comes closest to `wanted`."""
    low, high = 0.02, 50.0
    for _ in range(20):
        middle = (low * high) ** 0.5
        if frames_at(middle) < wanted:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda scale: abs(frames_at(scale) - wanted))
