"""The damage that a converted graph does: the same noise and durations, a few short texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Record
from tts_compress.evaluation.metrics.distortion import summarize
from tts_compress.evaluation.pairs import OTHER_SEEDS
from tts_compress.models.base import GraphModel
from tts_compress.numerics.distortion import Distances, observe, spectrum
from tts_compress.numerics.spectra import compare_spectra, compare_warped
from tts_compress.onnx.durations import rounded_durations
from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session

_HELD = "tts_compress.held."
_Floats = npt.NDArray[np.float32]


class Damage(Record):
    """Differences from the reference over all texts."""

    log_mel_db: float
    """Mean log-mel distance with the same noise and the durations of the reference, decibels."""

    distortion: float | None
    """The metric `distortion` of the same audio, 1 is what mu-law adds; None where a voice speaks
    alike with every seed."""

    duration_frames: float
    """Mean change of a predicted duration before it is made whole, frames: about the share of
    symbols that last a frame more or less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Utterance:
    feeds: Feeds
    reference: Audio
    target: npt.NDArray[np.float64]
    """The spectrum of another seed's rendering."""

    distances: Distances
    held: dict[str, npt.NDArray[np.generic]]
    """Whole durations, by the name of the input that takes them."""

    durations: list[_Floats]
    """The same before they are rounded."""


class Listener:
    """Compares converted graphs of a voice with the FP32 one.

    Args:
        model: The voice.
        reference: Its FP32 graph.
        texts: What is spoken.
        seed: Seed of the noise.
        threads: Threads of the graph.
    """

    def __init__(
        self,
        model: GraphModel,
        reference: onnx.ModelProto,
        texts: Sequence[str],
        *,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        self._spec, self._rate, self._threads = model.spec, model.sample_rate, threads
        nodes = rounded_durations(reference, model.parts[""].lengths)
        self._rounded = [node.output[0] for node in nodes]
        self._real = [node.input[0] for node in nodes]
        self._sound = reference.graph.output[0].name
        calls = [list(model.calibration_calls(texts, seed=s)) for s in (seed, seed + OTHER_SEEDS)]
        graph = with_outputs(feed_noise(reference), [self._sound, *self._rounded, *self._real])
        session = open_session(graph, self._spec, threads)
        self._utterances = [
            self._utterance(feeds, *(run_session(session, f, self._spec) for f in (feeds, other)))
            for feeds, other in zip(*calls, strict=True)
        ]

    @property
    def feeds(self) -> list[Feeds]:
        """Inputs of each text, with fed noise."""
        return [one.feeds for one in self._utterances]

    def measure(
        self, graph: onnx.ModelProto, *, sound: bool = True, durations: bool = True
    ) -> Damage:
        """Return the damage of a converted graph.

        Args:
            graph: The graph; not modified.
            sound: False where its sound is known to be the reference's.
            durations: False where its durations are.
        """
        fed = feed_noise(graph)
        heard = self._hear(self._holding(copy_model(fed)), {}) if sound else (0.0, 0.0)
        moved = self._moved(with_outputs(fed, self._real)) if durations and self._real else 0.0
        return Damage(log_mel_db=heard[0], distortion=heard[1], duration_frames=moved)

    def probe(self, graph: onnx.ModelProto, given: Sequence[Feeds]) -> list[tuple[float, float]]:
        """Return log-mel distances and changes of durations of a graph with further inputs.

        Args:
            graph: The graph.
            given: Values of the further inputs, for each measurement.
        """
        fed = feed_noise(graph)
        held = open_session(self._holding(copy_model(fed)), self._spec, self._threads)
        free = None
        if self._real:
            free = open_session(with_outputs(fed, self._real), self._spec, self._threads)
        found = []
        for more in given:
            distances = [
                compare_spectra(one.reference, self._speak(held, one, more)).distance_db
                for one in self._utterances
            ]
            moved = 0.0 if free is None else self._change(free, more)
            found.append((float(np.mean(distances)), moved))
        return found

    def _utterance(self, feeds: Feeds, mine: list[_Floats], other: list[_Floats]) -> _Utterance:
        count = len(self._rounded)
        reference, another = self._audio(mine[0]), self._audio(other[0])
        return _Utterance(
            feeds=feeds,
            reference=reference,
            target=spectrum(another),
            distances=observe(reference, reference, another),
            held={f"{_HELD}{place}": value for place, value in enumerate(mine[1 : 1 + count])},
            durations=mine[1 + count :],
        )

    def _hear(self, graph: onnx.ModelProto, more: Feeds) -> tuple[float, float | None]:
        session = open_session(graph, self._spec, self._threads)
        near, far = [], []
        for one in self._utterances:
            audio = self._speak(session, one, more)
            near.append(compare_spectra(one.reference, audio).distance_db)
            distance = compare_warped(spectrum(audio), one.target).distance_db
            far.append(
                Distances(
                    reference=one.distances.reference,
                    candidate=distance,
                    coded=one.distances.coded,
                )
            )
        found = summarize(far, list(range(len(far))))
        known = found is not None and isfinite(found.value)
        return float(np.mean(near)), found.value if found is not None and known else None

    def _moved(self, graph: onnx.ModelProto) -> float:
        session = open_session(graph, self._spec, self._threads)
        return self._change(session, {})

    def _speak(self, session: Any, one: _Utterance, more: Feeds) -> Audio:
        return self._audio(run_session(session, one.feeds | one.held | more, self._spec)[0])

    def _change(self, session: Any, more: Feeds) -> float:
        """Return the mean change of real durations, frames."""
        changes = []
        for one in self._utterances:
            own = run_session(session, one.feeds | more, self._spec)
            pairs = zip(own, one.durations, strict=True)
            changes += [float(np.mean(np.abs(new - old))) for new, old in pairs]
        return float(np.mean(changes)) if changes else 0.0

    def _audio(self, samples: _Floats) -> Audio:
        flat = np.asarray(samples, np.float32).reshape(-1)
        return Audio(samples=flat, sample_rate=self._rate)

    def _holding(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Let a graph read durations as inputs; it then returns nothing but its sound."""
        graph = Graph(with_outputs(model, [self._sound]))
        for place, tensor in enumerate(self._rounded):
            name = f"{_HELD}{place}"
            graph.redirect(tensor, name)
            value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            graph.model.graph.input.append(value)
        return graph.finish()
