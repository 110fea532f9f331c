"""The single pass over the audio: pairs of utterances, and all that metrics are computed from."""

import hashlib
import math
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel

from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metric import Audios, Measure, find_measures, find_metrics
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.stages import TimedModels, Timings, read_timed, synthesize, time_models
from tts_compress.evaluation.store import Analyzer, Store, Synthesis, SynthesisJob, analyze
from tts_compress.evaluation.subject import Subject
from tts_compress.evaluation.suite import Suite
from tts_compress.folders import make_directory
from tts_compress.models.base import GraphModel
from tts_compress.numerics.damage import Renderings

OTHER_SEEDS = 1000
"""Added to a seed to speak the same text with other noise."""

_FEW = 16
"""Longer lists of numbers, such as spectra and embeddings, are not in a report."""

_GAIN = 10.0 ** (-1.0 / 20.0)
_LSB = 2.0**-15
"""The step of 16-bit samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UtterancePair:
    """One text with one seed, spoken by both models; and by the reference for its baselines."""

    index: int
    seed: int
    text: str
    speaker: str | None
    """None for models of one voice."""

    transcript: str
    """The words to be understood, normalised."""

    audio: Mapping[str, str]
    """Hashes of the samples, by `reference`, `candidate`, `other_seed` (the reference with other
    noise) and, of a text's first seed, `disturbed` (an inaudibly changed copy of the reference)."""

    seconds: Mapping[str, float]
    """Lengths of the first three."""

    kept: Mapping[str, str]
    """Paths of the WAV files of the first two beside the report, where they are kept."""

    observed: Mapping[str, Any]
    """Observations of metrics on the audio, by name."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything that metrics are computed from."""

    suite: Suite
    models: tuple[Subject, Subject] | None
    """Reference and candidate; None for recordings."""

    store: Store
    options: EvaluationOptions
    pairs: Sequence[UtterancePair]
    hypotheses: Mapping[str, str]
    """Normalised transcripts by the recognizer, by the hash of the audio."""

    measured: Mapping[str, Mapping[str, Any]]
    """Values of each measure that was done, by the hash of the audio."""

    @property
    def subjects(self) -> tuple[Subject, Subject]:
        """Reference and candidate, for what is measured of models alone (`Metric.of_models`)."""
        if self.models is None:
            raise EvaluationError("recordings have no model that could be measured")
        return self.models

    def observations(self, metric: str) -> list[Any]:
        """Return a metric's observations on the audio of each pair."""
        return [pair.observed[metric] for pair in self.pairs]

    @cached_property
    def blocks(self) -> Sequence[int]:
        """The text of each pair, for intervals: texts of the same words count as one."""
        first: dict[str, int] = {}
        return [first.setdefault(pair.transcript, pair.index) for pair in self.pairs]

    def measurements(self, measure: Measure) -> list[dict[str, Any]] | None:
        """Return what a measure found in each pair, by role; None where it was not done."""
        values = self.measured.get(measure.name)
        if values is None:
            return None
        return [{role: values[pair.audio[role]] for role in measure.roles} for pair in self.pairs]

    def values(self, position: int) -> dict[str, Any]:
        """Return the figures of a pair by metric and measure, from which all others follow."""
        pair = self.pairs[position]
        measures = find_measures()
        return {name: _plain(value) for name, value in pair.observed.items()} | {
            name: {role: _plain(values[pair.audio[role]]) for role in measures[name].roles}
            for name, values in self.measured.items()
        }

    @cached_property
    def timings(self) -> tuple[Timings, Timings]:
        """Timings of both models, measured once for all metrics that need them."""
        texts = [item.text for item in self.suite.utterances]
        if self.earlier is not None:
            return self.earlier.reference, self.earlier.candidate
        return time_models(self.subjects, texts, self.options)

    @cached_property
    def earlier(self) -> TimedModels | None:
        """Timings that were measured before this run, where the options ask for those."""
        if not self.options.timed_before:
            return None
        return read_timed(self.store, self.subjects, self.options)

    def environment(self) -> dict[str, Any]:
        """Return the machine that the timings are of."""
        return describe_environment() if self.earlier is None else self.earlier.environment


def count_audios(texts: int, seeds: int) -> int:
    """Return the audios that are recognized: reference, candidate, and the two baselines."""
    return texts * 2 * (seeds + 1)


def is_recognized(role: str, position: int, suite: Suite) -> bool:
    """Return True for audio whose words count: other seeds are heard for a text's first seed only.

    They show the size of chance, as disturbed copies do, and take as long to recognize as the rest.
    """
    return role != "other_seed" or position % len(suite.seeds) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One model's share of an evaluation: texts of a suite.

    An evaluation that finds all shares in its store speaks and recognizes nothing.
    """

    role: Literal["reference", "candidate"]
    model: Subject
    suite: Suite
    texts: Sequence[int]
    """Places in the suite."""

    def speak(
        self, store: Store, options: EvaluationOptions
    ) -> Iterator[tuple[str, int, Synthesis]]:
        """Yield each audio as soon as it is spoken, what is spoken already from the store.

        With it come its role in a pair, and the place of its text and seed in the suite's order.

        Raises:
            TextError: A text cannot be spoken.
            EvaluationError: The model's process failed.
        """
        jobs = suite_jobs(self.model, self.suite, 0, self.texts)
        if self.role == "reference":
            jobs += suite_jobs(self.model, self.suite, OTHER_SEEDS, self.texts)
        count = len(self.texts) * len(self.suite.seeds)
        first, others = list[Synthesis](), list[Synthesis]()
        stage = f"synthesize {self.role}"
        for piece in synthesize(store, self.model, jobs, options, stage=stage):
            if len(first) < count:
                yield self.role, len(first), piece
                first.append(piece)
            else:
                others.append(piece)
        for position, piece in enumerate(self._other_renderings(first, others, store, options)):
            yield "other_seed", position, piece

    def _other_renderings(
        self,
        first: Sequence[Synthesis],
        others: Sequence[Synthesis],
        store: Store,
        options: EvaluationOptions,
    ) -> Iterator[Synthesis]:
        """Yield the renderings with other seeds; of a voice without noise, with other weights.

        Those weights differ so little that nobody hears it. Where they move a length nevertheless,
        or the sound no longer correlates, a text is compared with itself.
        """
        alike = [a.audio for a in first] == [b.audio for b in others]  # a candidate has no others
        if not alike or not isinstance(self.model.model, GraphModel):
            yield from others
            return
        model = self.model.varied()
        jobs = suite_jobs(model, self.suite, 0, self.texts)
        pieces = synthesize(store, model, jobs, options, stage="synthesize other weights")
        for piece, same in zip(pieces, others, strict=True):
            both = Renderings(read_spoken(store, same), read_spoken(store, piece))
            yield piece if both.same_noise else same


def fill_store(
    side: Side,
    recognizer: Analyzer,
    measures: Mapping[Measure, Analyzer],
    store: Store,
    options: EvaluationOptions,
) -> None:
    """Speak and analyse what an evaluation needs of one model; what is there is not repeated.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: A process failed.
    """
    spoken = list(side.speak(store, options))
    heard = [
        (piece.audio, store.wav_path(piece))
        for role, position, piece in spoken
        if is_recognized(role, position, side.suite)
    ]
    heard += [
        store.keep("disturbed", disturb(read_spoken(store, piece)))
        for role, position, piece in spoken
        if role == "reference" and position % len(side.suite.seeds) == 0
    ]
    analyze(store, recognizer, heard, options, total=len(heard))
    for measure, analyzer in measures.items():
        measured = [
            (piece.audio, store.wav_path(piece))
            for role, _, piece in spoken
            if role in measure.roles
        ]
        if measured:
            analyze(store, analyzer, measured, options, total=len(measured))


class AudioPairs:
    """Pairs of utterances, as their audio comes.

    Args:
        suite: The texts and seeds.
        store: Takes the audio.
        keep_in: Folder of the report, which gets a copy of the audio in `wav/`.
    """

    def __init__(self, suite: Suite, store: Store, keep_in: Path | None = None) -> None:
        self.suite = suite
        self.store = store
        self._keep_in = keep_in
        self.pairs: list[UtterancePair] = []
        self._before: Audios | None = None
        self.files: dict[str, Path] = {}
        """WAV files by the hash of their samples."""

    def add(
        self,
        position: int,
        audios: Mapping[str, Audio],
        hashes: Mapping[str, str],
        speaker: str | None = None,
    ) -> Iterator[tuple[str, Path]]:
        """Make the pair of a text and seed; yield its inaudibly changed copy, of the first seed.

        Args:
            position: Place of text and seed in the suite's order.
            audios: Audio by role.
            hashes: Its hashes.
            speaker: The voice's speaker, if it has several.
        """
        index, turn = divmod(position, len(self.suite.seeds))
        text, seed = self.suite.utterances[index], self.suite.seeds[turn]
        reference, candidate, other = (audios[r] for r in ("reference", "candidate", "other_seed"))
        heard = Audios(reference=reference, candidate=candidate, other_seed=other)
        before, self._before = (self._before if turn else None), heard
        copies = {} if turn else {"disturbed": self.store.keep("disturbed", disturb(reference))}
        kept = {}
        if self._keep_in is not None:
            for role in ("reference", "candidate"):
                kept[role] = f"wav/{index:04d}-seed{seed}-{role}.wav"
                _keep(audios[role], self._keep_in / kept[role])
        self.pairs.append(
            UtterancePair(
                index=index,
                seed=seed,
                text=text.text,
                speaker=speaker,
                transcript=self.suite.transcript(text),
                audio={**hashes, **{role: key for role, (key, _) in copies.items()}},
                seconds={role: audio.duration_s for role, audio in audios.items()},
                kept=kept,
                observed={
                    metric.name: metric.observe(replace(heard, before=before))
                    for metric in find_metrics()
                    if metric.observe
                },
            )
        )
        self.files |= copies.values()
        yield from copies.values()

    def check_sound(self) -> None:
        """Refuse a reference that speaks nothing.

        Raises:
            EvaluationError: Every one of its audios is empty.
        """
        if not any(pair.seconds["reference"] for pair in self.pairs):
            raise EvaluationError("the reference speaks nothing: every text gave empty audio")


def speak_pairs(
    models: tuple[Subject, Subject], pairs: AudioPairs, options: EvaluationOptions
) -> Generator[tuple[str, Path], None, None]:
    """Have two models speak a suite: make the pairs, and yield what is to be recognized at once.

    One model after the other: two may not fit into memory beside the rest.

    Args:
        models: Reference and candidate.
        pairs: Takes the pairs.
        options: Settings of the worker processes.

    Yields:
        The hash of an audio's samples, and its WAV file.

    Raises:
        TextError: A text cannot be spoken.
        EvaluationError: A model's process failed, or the reference speaks nothing.
    """
    suite, store = pairs.suite, pairs.store
    texts, (before, after) = range(len(suite.utterances)), models
    spoken: dict[int, dict[str, Synthesis]] = {}
    for side in (
        Side(role="reference", model=before, suite=suite, texts=texts),
        Side(role="candidate", model=after, suite=suite, texts=texts),
    ):
        for role, position, piece in side.speak(store, options):
            pairs.files[piece.audio] = store.wav_path(piece)
            pair = spoken.setdefault(position, {})
            pair[role] = piece
            if role == "candidate":
                audios = {name: read_spoken(store, said) for name, said in pair.items()}
                hashes = {name: said.audio for name, said in pair.items()}
                yield from pairs.add(position, audios, hashes, piece.speaker)
            if is_recognized(role, position, suite):
                yield piece.audio, pairs.files[piece.audio]
    pairs.check_sound()


def noise_seed(text: str, seed: int) -> int:
    """Return the seed that a text is spoken with for a seed of the suite.

    Texts with the same noise would all be longer or shorter with the same seeds: differences
    between seeds were up to three times as uncertain as their intervals over texts said.
    """
    return seed + 10_000 * (zlib.crc32(text.encode()) % 200_000)


def suite_jobs(
    model: Subject, suite: Suite, shift: int, texts: Iterable[int]
) -> list[SynthesisJob]:
    """Return a model's jobs, text by text and seed by seed.

    Args:
        model: The model.
        suite: The texts and seeds.
        shift: Added to every seed.
        texts: Places of the texts in the suite.
    """
    return [
        SynthesisJob(
            model=model.fingerprint,
            text=suite.utterances[index].text,
            seed=noise_seed(suite.utterances[index].text, seed + shift),
            speaker=model.speaker_of(index),
        )
        for index in texts
        for seed in suite.seeds
    ]


def disturb(audio: Audio) -> Audio:
    """Return the audio 1 dB softer, with triangular noise of one 16-bit step added.

    The noise is seeded by the samples: the same audio gives the same copy.
    """
    seed = int.from_bytes(hashlib.sha256(audio.samples.tobytes()).digest()[:8], "little")
    noise = np.random.default_rng(seed).triangular(-_LSB, 0.0, _LSB, len(audio.samples))
    return Audio(
        samples=(audio.samples * _GAIN + noise).astype(np.float32), sample_rate=audio.sample_rate
    )


def read_spoken(store: Store, piece: Synthesis) -> Audio:
    """Return the audio of a finished job, with its durations."""
    durations = None if piece.durations is None else np.array(piece.durations, np.int64)
    return replace(read_wav(store.wav_path(piece)), durations=durations)


def _keep(audio: Audio, path: Path) -> None:
    """Write audio that plays everywhere."""
    make_directory(path.parent)
    samples = np.nan_to_num(audio.samples, nan=0.0, posinf=1.0, neginf=-1.0)
    write_wav(path, replace(audio, samples=samples))


def _plain(value: Any) -> Any:
    """Return the numbers of an observation as JSON has them, without long lists of them."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(part) for part in value] if len(value) <= _FEW else None
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, float | int | str | None) else None
