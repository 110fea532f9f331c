"""Damage to the sound of a graph: a few texts, spoken by FP32 and by candidates."""

import math
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TypeAlias, cast

import numpy as np
import onnx

from tts_compress.audio import Audio
from tts_compress.compression.workbench import Job, Workbench, read_texts
from tts_compress.models.base import GraphModel, OnnxGraph, Speaking
from tts_compress.models.onnx_model import varied
from tts_compress.models.speakers import speakers_in_turn
from tts_compress.models.streaming import texts_in
from tts_compress.numerics.damage import KINDS, Renderings, Sizes, compare
from tts_compress.numerics.pauses import floor_noise, floor_rise
from tts_compress.numerics.spectra import (
    compare_warped,
    frame_distances,
    mu_law,
    same_timing,
    spectrum,
)
from tts_compress.onnx.graph import Array, with_outputs
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.precision import rounded_durations
from tts_compress.onnx.session import Feeds, open_session, run_session
from tts_compress.recipes.formats import Quality

Say: TypeAlias = Callable[[int], Audio]
"""Returns the audio of a text, by its number; threads may call it once it has returned one."""

Energies: TypeAlias = tuple[float, ...]
"""Damage of each kind, in squares of a bound; that of independent causes adds up."""

TEXTS = 16
"""Texts that are spoken."""

_FEW = 6
"""Texts whose worst moment has about half the damage of the worst in a hundred."""

_MOMENT = 0.6
"""Margins of that damage for a bound of 1: at 0.5 the worst of a hundred has 0.6 on average. With
0.8, two of 200 texts of the demo voice were damaged; with 0.6 its worst of 600 has 0.6."""

OTHER_SEED = 1000
"""Distance of the seeds of two renderings of the reference."""

_FEW_TEXTS = 4
"""Texts that candidates of one group speak."""

_SIDE_BY_SIDE = min(os.cpu_count() or 1, 8)
"""Texts, or candidates, that are spoken at a time, each with the memory of one call."""

_RATE = 22_050
"""Samples per second that a bare graph's output is taken for, Hz."""

_COARSE = 4
"""Windows over each sample where renderings with the same noise are compared, fewer than the
metric's."""

_FLOOR_DB = 3.0
"""Rise of the floor of pauses in any octave above 500 Hz that is kept."""


@contextmanager
def side_by_side() -> Iterator[ThreadPoolExecutor]:
    """Yield threads that speak and listen; what still waits when an error leaves is not begun."""
    pool = ThreadPoolExecutor(_SIDE_BY_SIDE)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def energies(same_noise: float, pause_noise: float, moment: float, bound: float) -> Energies:
    """Return the energies of damage, in the order of `SoundDamage.shares`.

    Args:
        same_noise: As `AudioComparison.same_noise` returns it.
        pause_noise: As `AudioComparison.pause_noise` returns it.
        moment: Damage of the worst moment, in margins of its kind.
        bound: Largest distortion.
    """
    return (same_noise / bound) ** 2, pause_noise, (moment / (_MOMENT * bound)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundDamage:
    """Damage of a candidate to the sound of all texts."""

    distortion: float
    """Distance from another rendering that the candidate adds, 1 is as much as mu-law adds."""

    floor_db: float
    """Rise of the floor of pauses, worst octave, decibels."""

    moved: int = 0
    """Number of texts whose timing is another one."""

    texts: int = 0
    """Number of texts."""

    moment: float = 0.0
    """Damage of the worst moment in six texts, in margins of its kind (`KINDS`)."""

    @property
    def is_audible(self) -> bool:
        """True where `--quality good` would have refused the sound, whatever its durations."""
        return self.distortion > (Quality.GOOD.bound or 0) or self.floor_db > _FLOOR_DB

    @property
    def is_elsewhere(self) -> bool:
        """True where more than a quarter of the texts have another timing."""
        return 4 * self.moved > self.texts

    def describe(self) -> str:
        """Return a line for people."""
        pauses = "" if self.moved == self.texts else f", pauses {self.floor_db:+.1f} dB"
        kept = f"other durations in {self.moved} of them" if self.moved else "every duration kept"
        return f"sound of {self.texts} texts: distortion {self.distortion:.2f}{pauses}, {kept}"

    def share(self, bound: float) -> float:
        """Return the largest share of a bound that is used."""
        return max(self.shares(bound))

    def shares(self, bound: float) -> tuple[float, float, float]:
        """Return the shares of a bound that distortion, pauses and the worst moment use.

        Infinite where too many texts moved; moments and pauses are those of the others.
        """
        if self.is_elsewhere:
            return inf, inf, inf
        moment = self.moment / (_MOMENT * bound)
        used = self.distortion / bound, self.floor_db / _FLOOR_DB, moment
        return max(used[0], 0.0), max(used[1], 0.0), max(used[2], 0.0)


class AudioComparison:
    """Compares the audio of candidates with that of the FP32 graph."""

    def __init__(self, reference: Sequence[Audio], others: Sequence[Audio]) -> None:
        self._reference, self._others = reference, others
        self._targets = [spectrum(audio) for audio in others]
        self._near = [spectrum(audio, _COARSE) for audio in reference]
        coded = [mu_law(audio) for audio in reference]
        self._own = self._distance(reference)
        self._unit = self._distance(coded) - self._own
        self._near_units = self._near_distances(coded)

    @property
    def texts(self) -> int:
        """Number of texts."""
        return len(self._reference)

    def judge(self, audios: Sequence[Audio]) -> SoundDamage:
        """Return the damage of a candidate's audio of the texts."""
        moved = sum(not same_timing(*pair) for pair in zip(self._reference, audios, strict=True))
        if self._is_broken(audios):
            return SoundDamage(
                distortion=inf, floor_db=inf, moved=moved, texts=self.texts, moment=inf
            )
        # By chance, mu-law may be no farther from the other renderings of a few texts.
        near = self._unit <= 0.0
        added = 0.0 if near else self._distance(audios) - self._own
        return SoundDamage(
            distortion=self.same_noise(audios) if near else added / self._unit,
            floor_db=self._floor(audios),
            moved=moved,
            texts=self.texts,
            moment=self._worst(audios),
        )

    def energies(self, audios: Sequence[Audio], bound: float) -> Energies:
        """Return the energies of a group's damage alone.

        Infinite where a length moved, or samples are not finite.

        Args:
            audios: A candidate's, of the first texts, with the same noise.
            bound: Largest distortion.
        """
        if self._is_broken(audios) or not all(map(same_timing, self._reference, audios)):
            return inf, inf, inf
        noises = self.same_noise(audios), self.pause_noise(audios)
        return energies(*noises, self.spoilt(audios), bound)

    def same_noise(self, audios: Sequence[Audio]) -> float:
        """Return the distance from the reference's own audio, 1 is that of mu-law.

        It is finer than distortion, which hardly tells small damage from chance where two
        renderings differ.

        Args:
            audios: Of the first texts, with the same noise.
        """
        distances = self._near_distances(audios)
        added, unit = sum(distances), sum(self._near_units[: len(distances)])
        # Audio that mu-law does not change has nothing to compare with: any damage is too much.
        return added / unit if unit > 0 else (inf if added > 0 else 0.0)

    def pause_noise(self, audios: Sequence[Audio]) -> float:
        """Return the power added to pauses in shares of their floor, 1 is a rise of 3 dB."""
        pairs = zip(self._reference, audios, strict=False)
        noise = [floor_noise(a.samples, b.samples, a.sample_rate) for a, b in pairs]
        return max((share for share in noise if share is not None), default=0.0)

    def spoilt(self, audios: Sequence[Audio]) -> float:
        """Return how much the worst 0.15 s differ beyond the rest, in margins of that damage.

        The root mean square over texts, which chance moves less than their largest.

        Args:
            audios: Of the first texts, with the same noise.
        """
        kind = KINDS["spoilt"]
        pairs = zip(self._reference, audios, strict=False)
        sizes = [kind.size(Renderings(*pair))[0] for pair in pairs]
        return math.sqrt(float(np.mean(np.square(sizes)))) / kind.margin

    def _is_broken(self, audios: Sequence[Audio]) -> bool:
        """Return True if samples of a candidate are not finite where all of the reference's are."""
        return any(
            np.isfinite(before.samples).all() and not np.isfinite(after.samples).all()
            for before, after in zip(self._reference, audios, strict=False)
        )

    @cached_property
    def _usual(self) -> list[dict[str, float]]:
        """Damage of the reference with another seed, by text and kind."""
        return [
            {kind: size for kind, (size, _) in sizes.items()}
            for sizes in _compared(self._reference, self._others)
        ]

    def _worst(self, audios: Sequence[Audio]) -> float:
        """Return the damage of the worst moment beyond the usual, in margins of its kind.

        The largest of independent sizes grows as the logarithm of their number, so that of more or
        fewer texts counts as that of six.
        """
        texts = zip(self._reference, audios, self._usual, strict=True)
        kept = [
            (before, after, usual) for before, after, usual in texts if same_timing(before, after)
        ]
        damages = _compared([before for before, _, _ in kept], [after for _, after, _ in kept])
        shares = (
            (size - usual[name]) / KINDS[name].margin
            for damage, (_, _, usual) in zip(damages, kept, strict=True)
            for name, (size, _) in damage.items()
        )
        return max(0.0, max(shares, default=0.0)) * math.log1p(_FEW) / math.log1p(self.texts)

    def _distance(self, audios: Sequence[Audio]) -> float:
        def distance(audio: Audio, target: Array) -> float:
            return compare_warped(spectrum(audio), target).distance_db

        with side_by_side() as pool:
            return float(sum(pool.map(distance, audios, self._targets)))

    def _near_distances(self, audios: Sequence[Audio]) -> list[float]:
        distances = []
        for audio, target in zip(audios, self._near, strict=False):
            mine = spectrum(audio, _COARSE)
            if len(mine) == len(target):
                distances.append(float(np.mean(frame_distances(mine, target))))
            else:
                distances.append(compare_warped(mine, target).distance_db)
        return distances

    def _floor(self, audios: Sequence[Audio]) -> float:
        rises = [
            floor_rise(before.samples, after.samples, before.sample_rate)
            for before, after in zip(self._reference, audios, strict=True)
            if same_timing(before, after)
        ]
        return max((rise for rise in rises if rise is not None), default=0.0)


def _compared(reference: Sequence[Audio], audios: Sequence[Audio]) -> list[Sizes]:
    """Return the damage of each text, by kind."""
    with side_by_side() as pool:
        return list(pool.map(compare, reference, audios))


class DurationComparison:
    """Compares durations, before they are made whole, with those of the FP32 graph.

    Args:
        reference: The FP32 graph.
        lengths: Outputs of it that decide durations.
        feeds: Inputs of each text, with fed noise.
        spec: The model's name in errors.
    """

    def __init__(
        self,
        reference: onnx.ModelProto,
        lengths: Collection[str],
        feeds: Sequence[Feeds],
        spec: str,
    ) -> None:
        self._real = [node.input[0] for node in rounded_durations(reference, lengths)]
        self._feeds, self._spec = feeds, spec
        (self._before,) = self._durations(reference, [{}]) if self._real else [[]]

    @property
    def exist(self) -> bool:
        """True if the graph makes predicted durations whole."""
        return bool(self._real)

    def changes(self, graph: onnx.ModelProto, inputs: Sequence[Feeds]) -> list[float]:
        """Return the mean change of durations in a converted graph, frames; 0 without any.

        Args:
            graph: Not modified.
            inputs: Further inputs, for each of which the mean is returned.
        """
        if not self._real:
            return [0.0] * len(inputs)
        return [
            float(
                np.mean([np.mean(np.abs(a - b)) for a, b in zip(after, self._before, strict=True)])
            )
            for after in self._durations(graph, inputs)
        ]

    def _durations(self, graph: onnx.ModelProto, inputs: Sequence[Feeds]) -> list[list[Array]]:
        """Return the durations of all texts for each of further inputs."""
        watched = with_outputs(feed_noise(graph), self._real)
        session = open_session(watched, self._spec, 1, briefly=True)
        return [
            [value for f in self._feeds for value in run_session(session, f | more, self._spec)]
            for more in inputs
        ]


@dataclass(frozen=True, slots=True)
class Speech:
    """Texts that a graph speaks in FP32 or converted, on one thread."""

    texts: int
    """Number of texts."""

    open: Callable[[onnx.ModelProto | None, int], Say]
    """Returns what speaks by a converted graph, or by the FP32 one, with a seed's noise."""


class SpeechComparison:
    """Compares what converted graphs say with what the FP32 one says.

    Args:
        speech: Speaks the texts.
        seed: Seed of the noise.
    """

    def __init__(self, speech: Speech, seed: int) -> None:
        self._speech, self._seed = speech, seed
        reference, others = (self._spoken(None, s) for s in (seed, seed + OTHER_SEED))
        self._audio = AudioComparison(reference, others)
        self.texts = self._audio.texts

    def damage(self, candidate: onnx.ModelProto | None) -> SoundDamage:
        """Return the damage of a converted graph; None is the FP32 one."""
        return self._audio.judge(self._spoken(candidate, self._seed))

    def energies(self, candidate: onnx.ModelProto, bound: float) -> Energies:
        """Return the energies of a group's damage alone, in squares of a bound."""
        say = self._speech.open(candidate, self._seed)
        return self._audio.energies([say(n) for n in range(min(_FEW_TEXTS, self.texts))], bound)

    def _spoken(self, graph: onnx.ModelProto | None, seed: int) -> list[Audio]:
        """Return the audio of all texts, several at a time."""
        say = self._speech.open(graph, seed)
        first = say(0)  # which opens the graph
        with side_by_side() as pool:
            return [first, *pool.map(say, range(1, self._speech.texts))]


def speech(bench: Workbench, job: Job) -> Speech | None:
    """Return what lets a graph speak: a voice a few calibration texts, a bare graph its feeds.

    None for a bare graph that does not return one channel of samples.
    """
    model, settings = bench.model, bench.recipe.calibration
    assert settings is not None, "integers are calibrated"
    bench.calls()
    if not isinstance(model, GraphModel):
        return _sounds(model, bench.held_out[:TEXTS])
    texts, _ = read_texts(settings, bench.calibration, job.seed, model.speaking.language)
    # Those that nothing is observed on, the longest last: short ones hardly hold a pause.
    spoken = sorted(texts[-len(bench.held_out) :], key=len)[-TEXTS:]
    original = model.with_graphs({}, None, threads=1)  # which opens its graph once
    other = _other_rendering(original, spoken[0], job.seed)

    def opened(graph: onnx.ModelProto | None, seed: int) -> Say:
        voice = original if seed == job.seed else other
        if graph is not None:
            voice = original.with_graphs({bench.part: graph}, None)
        return _by_speakers(voice, spoken, seed)

    return Speech(len(spoken), opened)


def _sounds(model: OnnxGraph, feeds: Sequence[Feeds]) -> Speech | None:
    """Return what lets a bare graph speak its feeds; None where these are no samples."""

    def run(graph: onnx.ModelProto) -> Callable[[int], Array]:
        session = open_session(feed_noise(graph), model.spec, 1, briefly=True)
        return lambda number: cast("Array", run_session(session, feeds[number], model.spec)[0])

    sound = run(model.graph())
    first = sound(0)
    if first.dtype.kind != "f" or first.size != max(first.shape, default=0):
        return None
    # Feeds hold the noise, so the original returns the same whatever the seed.
    originals = [first, *map(sound, range(1, len(feeds)))]
    if max(wave.size for wave in originals) < _RATE // 10:
        return None
    # Samples of a bare graph have any scale.
    peak = max(float(np.nan_to_num(np.abs(sound)).max(initial=0.0)) for sound in originals) or 1.0

    def opened(graph: onnx.ModelProto | None, _: int) -> Say:
        sound = originals.__getitem__ if graph is None else run(graph)

        def say(number: int) -> Audio:
            wave = (sound(number).ravel() / peak).astype(np.float32)
            return Audio(samples=wave, sample_rate=_RATE)

        return say

    return Speech(len(feeds), opened)


def hear(original: GraphModel, small: GraphModel, seed: int = 0) -> SoundDamage:
    """Return the damage of an artifact to the sound of a few texts.

    Raises:
        TTSCompressError: The voice cannot speak the texts.
    """
    texts = sorted(texts_in(original.speaking.language), key=len)
    spoken = texts[3 * len(texts) // 4 :][:_FEW_TEXTS]
    other = _other_rendering(original, spoken[0], seed)
    says = (
        _by_speakers(original, spoken, seed),
        _by_speakers(other, spoken, seed + OTHER_SEED),
        _by_speakers(small, spoken, seed),
    )
    reference, others, audios = ([say(n) for n in range(len(spoken))] for say in says)
    return AudioComparison(reference, others).judge(audios)


def _by_speakers(voice: GraphModel, texts: Sequence[str], seed: int) -> Say:
    """Return what speaks texts; speakers of many from the first to the last."""
    speakers = speakers_in_turn(voice)

    def say(number: int) -> Audio:
        speaker = speakers[number * len(speakers) // len(texts)] if speakers else None
        speaking = voice.speaking_as(Speaking(speaker=speaker))
        return speaking.synthesize(texts[number], seed=seed + number)  # texts share no noise

    return say


def _other_rendering(voice: GraphModel, text: str, seed: int) -> GraphModel:
    """Return what speaks another rendering with another seed: of a voice without noise, varied."""
    first, second = (voice.synthesize(text, seed=s) for s in (seed, seed + OTHER_SEED))
    if not np.array_equal(first.samples, second.samples):
        return voice
    other = varied(voice)
    return other if Renderings(first, other.synthesize(text, seed=seed)).same_noise else voice
