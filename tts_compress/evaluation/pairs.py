"""The single pass over the audio: pairs of utterances, and all that metrics are computed from."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tts_compress.audio import Audio, read_wav, write_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.metric import Audios, Measure, find_metrics
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.stages import Timings, time_models
from tts_compress.evaluation.store import (
    Store,
    Synthesis,
    audio_sha256,
    make_directory,
    write_float_wav,
)
from tts_compress.evaluation.subject import Subject
from tts_compress.evaluation.suite import Suite

OTHER_SEEDS = 1000
"""Added to a seed to speak the same text with other noise."""

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
    noise) and `disturbed` (an inaudibly changed copy of the reference)."""

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
    models: tuple[Subject, Subject]
    store: Store
    options: EvaluationOptions
    pairs: Sequence[UtterancePair]
    hypotheses: Mapping[str, str]
    """Normalised transcripts by the recognizer, by the hash of the audio."""

    measured: Mapping[str, Mapping[str, Any]]
    """Values of each measure that was done, by the hash of the audio."""

    def observations(self, metric: str) -> list[Any]:
        """Return a metric's observations on the audio of each pair."""
        return [pair.observed[metric] for pair in self.pairs]

    def measurements(self, measure: Measure) -> list[dict[str, Any]] | None:
        """Return what a measure found in each pair, by role; None where it was not done."""
        values = self.measured.get(measure.name)
        if values is None:
            return None
        return [{role: values[pair.audio[role]] for role in measure.roles} for pair in self.pairs]

    @cached_property
    def timings(self) -> tuple[Timings, Timings]:
        """Timings of both models, measured once for all metrics that need them."""
        texts = [item.text for item in self.suite.utterances]
        return time_models(self.models, texts, self.options)


def observe_pairs(
    store: Store,
    suite: Suite,
    spoken: Sequence[Mapping[str, Synthesis]],
    keep_in: Path | None,
) -> tuple[list[UtterancePair], dict[str, Path]]:
    """Read each WAV file once, and return the pairs with the files to transcribe, by hash.

    Args:
        store: Holds the audio; takes the disturbed copies.
        suite: The texts and seeds.
        spoken: For each text and seed, what `reference`, `candidate` and `other_seed` spoke.
        keep_in: Folder of the report, which gets a copy of the audio in `wav/`.

    Raises:
        EvaluationError: The reference speaks nothing.
    """
    files: dict[str, Path] = {}
    pairs = []
    # Pair by pair: the audio of a whole suite may be larger than memory.
    for place, pieces in enumerate(spoken):
        index, seed = place // len(suite.seeds), pieces["reference"].seed
        audios = {role: read_spoken(store, piece) for role, piece in pieces.items()}
        copy = disturb(audios["reference"])
        hashes = {role: piece.audio for role, piece in pieces.items()}
        hashes["disturbed"] = audio_sha256(copy)
        path = store.root / "disturbed" / f"{hashes['disturbed'][:32]}.wav"
        write_float_wav(path, copy)
        files |= {piece.audio: store.wav_path(piece) for piece in pieces.values()}
        files[hashes["disturbed"]] = path
        kept = {}
        if keep_in is not None:
            for role in ("reference", "candidate"):
                kept[role] = f"wav/{index:04d}-seed{seed}-{role}.wav"
                _keep(audios[role], keep_in / kept[role])
        pairs.append(
            UtterancePair(
                index=index,
                seed=seed,
                text=suite.utterances[index].text,
                speaker=pieces["reference"].speaker,
                transcript=suite.transcript(suite.utterances[index]),
                audio=hashes,
                seconds={role: audio.duration_s for role, audio in audios.items()},
                kept=kept,
                observed={m.name: m.observe(Audios(**audios)) for m in find_metrics() if m.observe},
            )
        )
    if not any(pair.seconds["reference"] for pair in pairs):
        raise EvaluationError("the reference speaks nothing: every text gave empty audio")
    return pairs, files


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
