"""Hearing what candidates of a compression damage: they speak beside the FP32 graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TypeAlias

import numpy as np

from tts_compress.audio import Audio
from tts_compress.compression.calibration import read_texts
from tts_compress.compression.manifest import Job
from tts_compress.compression.workbench import Workbench
from tts_compress.models.base import GraphModel
from tts_compress.numerics.distortion import mu_law, spectrum
from tts_compress.numerics.pauses import floor_noise, floor_rise
from tts_compress.numerics.spectra import compare_warped, frame_distances, same_timing
from tts_compress.onnx.graph import Array
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.session import open_session, run_session

Speak: TypeAlias = Callable[[Conversion | None, int, int], list[Audio]]
"""Returns what a converted graph, or the FP32 one, says with a seed's noise of so many texts."""

TEXTS = 6
"""Texts that are heard."""

_FEW_TEXTS = 2
"""Texts that candidates of one group speak."""

_OTHER_SEED = 1000
"""Distance of the seeds of two renderings of the reference."""

_RATE = 22_050
"""Samples per second that a bare graph's output is taken for, Hz."""

_COARSE = 4
"""Windows over each sample where candidates of one group are compared, fewer than the metric's."""

_FLOOR_DB = 3.0
"""Rise of the floor of pauses in any octave above 500 Hz that is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Damage of a candidate over all texts."""

    distortion: float
    """Distance from another rendering that the candidate adds, 1 is as much as mu-law adds."""

    floor_db: float
    """Rise of the floor of pauses, worst octave, decibels."""

    moved: int
    """Texts whose timing is another one."""

    def share(self, bound: float) -> float:
        """Return the largest share of a bound that is used; infinite where a length moved."""
        return inf if self.moved else max(self.distortion / bound, self.floor_db / _FLOOR_DB, 0.0)


class Listener:
    """Compares what converted graphs say with what the FP32 one says.

    Args:
        speak: Speaks the texts.
        seed: Seed of the noise.
    """

    def __init__(self, speak: Speak, seed: int) -> None:
        self._speak, self._seed = speak, seed
        self._reference = speak(None, seed, TEXTS)
        self.texts = len(self._reference)
        others = speak(None, seed + _OTHER_SEED, TEXTS)
        self._targets = [spectrum(audio) for audio in others]
        self._near = [spectrum(audio, _COARSE) for audio in self._reference]
        coded = [mu_law(audio) for audio in self._reference]
        self._own = self._distance(self._reference)
        self._unit = self._distance(coded) - self._own
        self._near_unit = self._near_distance(coded[:_FEW_TEXTS])

    def hear(self, candidate: Conversion) -> Heard:
        """Return the damage of a converted graph."""
        return self.judge(self._speak(candidate, self._seed, TEXTS))

    def judge(self, audios: Sequence[Audio]) -> Heard:
        """Return the damage of what a candidate said of the texts."""
        pairs = list(zip(self._reference, audios, strict=True))
        return Heard(
            distortion=_ratio(self._distance(audios) - self._own, self._unit),
            floor_db=self._floor(audios),
            moved=sum(not same_timing(*pair) for pair in pairs),
        )

    def compare(self, candidate: Conversion, bound: float) -> float:
        """Return the energy of a group's damage alone, in squares of a bound.

        The distance is that from the reference's own rendering: it is finer than distortion, which
        hardly knows small damage from chance where two renderings differ.
        """
        audios = self._speak(candidate, self._seed, _FEW_TEXTS)
        pairs = list(zip(self._reference, audios, strict=False))
        if not all(same_timing(*pair) for pair in pairs):
            return inf
        near = _ratio(self._near_distance(audios), self._near_unit) / bound
        noise = [floor_noise(a.samples, b.samples, a.sample_rate) for a, b in pairs]
        return max([near**2, *(share for share in noise if share is not None)])

    def _distance(self, audios: Sequence[Audio]) -> float:
        pairs = zip(audios, self._targets, strict=True)
        return float(sum(compare_warped(spectrum(a), target).distance_db for a, target in pairs))

    def _near_distance(self, audios: Sequence[Audio]) -> float:
        total = 0.0
        for audio, target in zip(audios, self._near, strict=False):
            mine = spectrum(audio, _COARSE)
            if len(mine) == len(target):
                total += float(np.mean(frame_distances(mine, target)))
            else:
                total += compare_warped(mine, target).distance_db
        return total

    def _floor(self, audios: Sequence[Audio]) -> float:
        rises = [
            floor_rise(before.samples, after.samples, before.sample_rate)
            for before, after in zip(self._reference, audios, strict=True)
            if same_timing(before, after)
        ]
        return max((rise for rise in rises if rise is not None), default=0.0)


def speech(bench: Workbench, given: str | Path | None, job: Job) -> Speak | None:
    """Return what lets a graph speak: a voice a few calibration texts, a bare graph its feeds.

    None for a bare graph that does not return one channel of samples.
    """
    model, settings = bench.model, bench.recipe.calibration
    assert settings is not None, "integers are calibrated"

    if isinstance(model, GraphModel):
        bench.calls()
        texts, _ = read_texts(settings, given, job.seed, model.speaking.language)
        # Those that nothing is observed on, the longest last: short ones hardly hold a pause.
        heard = sorted(texts[-len(bench.held_out) :], key=len)[-TEXTS:]

        def speak(conversion: Conversion | None, seed: int, count: int) -> list[Audio]:
            graphs = {} if conversion is None else {bench.part: convert(conversion)}
            voice = model.with_graphs(graphs, None)
            return [voice.synthesize(text, seed=seed) for text in heard[:count]]

        return speak
    bench.calls()
    feeds = bench.held_out[:TEXTS]

    def outputs(conversion: Conversion | None, count: int) -> list[Array]:
        graph = model.graph() if conversion is None else convert(conversion)
        session = open_session(feed_noise(graph), model.spec)
        return [run_session(session, call, model.spec)[0] for call in feeds[:count]]

    def run(conversion: Conversion | None, _: int, count: int) -> list[Audio]:
        waves = (output.ravel() for output in outputs(conversion, count))
        return [Audio(samples=wave.astype(np.float32), sample_rate=_RATE) for wave in waves]

    (first,) = outputs(None, 1)
    is_sound = first.dtype.kind == "f" and first.size == max(first.shape, default=0) >= _RATE // 10
    return run if is_sound else None


def _ratio(added: float, unit: float) -> float:
    """Return a distance in units; of audio that has none to compare with, any is too much."""
    return added / unit if unit > 0 else (inf if added > 0 else 0.0)
