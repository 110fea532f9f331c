"""Stage 3: turn what was spoken and heard into numbers; reads the store and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tts_compress.audio import Audio, read_wav
from tts_compress.errors import EvaluationError
from tts_compress.evaluation.bootstrap import compare_rates
from tts_compress.evaluation.floors import OTHER_SEEDS, disturb
from tts_compress.evaluation.health import check_health
from tts_compress.evaluation.normalize import find_normalizer
from tts_compress.evaluation.rates import count_edits
from tts_compress.evaluation.signal import (
    log_mel_distance,
    same_timing,
    snr_db,
    summarize_distances,
)
from tts_compress.evaluation.store import audio_sha256
from tts_compress.report.evaluation import (
    Duration,
    ErrorRate,
    Floors,
    Health,
    Pair,
    Signal,
    Speech,
    Utterance,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tts_compress.evaluation.rates import Edits
    from tts_compress.evaluation.store import Store
    from tts_compress.evaluation.suite import Suite

__all__ = ["Score", "audio_name", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What was said, as numbers."""

    wer: ErrorRate
    cer: ErrorRate
    signal: Signal
    duration: Duration
    health: Pair[Health]
    floors: Floors
    utterances: tuple[Utterance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A text of the suite with one seed."""

    index: int
    text: str
    transcript: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendering:
    """One row spoken by one model."""

    wav: Path
    durations: tuple[int, ...] | None
    seconds: float
    hypothesis: str
    words: Edits
    characters: Edits

    def audio(self) -> Audio:
        """Read the samples; a suite's audio together may be larger than memory."""
        known = None if self.durations is None else np.array(self.durations, np.int64)
        return replace(read_wav(self.wav), durations=known)


def score(store: Store, suite: Suite, models: tuple[str, str], recognizer: str) -> Score:
    """Score finished synthesis and recognition stages.

    Args:
        store: The work directory.
        suite: What was spoken.
        models: Fingerprints of reference and candidate.
        recognizer: The description of the recognizer that listened.

    Raises:
        EvaluationError: A stage is not finished, or the reference speaks nothing.
    """
    rows = [
        _Row(index=index, text=item.text, transcript=suite.transcript(item), seed=seed)
        for index, item in enumerate(suite.utterances)
        for seed in suite.seeds
    ]
    listener = _Listener(store, suite.normalizer, recognizer)
    reference = [listener.render(models[0], row) for row in rows]
    candidate = [listener.render(models[1], row) for row in rows]
    distances = _distances(reference, candidate)
    blocks = [row.index for row in rows]
    return Score(
        wer=_compare(reference, candidate, blocks, "words"),
        cer=_compare(reference, candidate, blocks, "characters"),
        signal=_signal(reference, candidate, distances),
        duration=_duration(reference, candidate),
        health=Pair(
            reference=check_health(one.audio() for one in reference),
            candidate=check_health(one.audio() for one in candidate),
        ),
        floors=_floors(listener, models[0], rows, reference),
        utterances=tuple(
            _utterance(row, before, after, distance)
            for row, before, after, distance in zip(
                rows, reference, candidate, distances, strict=True
            )
        ),
    )


def audio_name(index: int, seed: int, model: str) -> str:
    """Return the name of a kept WAV file; `model` is `reference` or `candidate`."""
    return f"{index:04d}-seed{seed}-{model}.wav"


@dataclass(frozen=True, slots=True)
class _Listener:
    """Looks renderings up in the store."""

    store: Store
    normalizer: str
    recognizer: str

    def render(
        self, model: str, row: _Row, *, shift: int = 0, disturbed: bool = False
    ) -> _Rendering:
        """Return how a model spoke a row, with `shift` added to the seed."""
        seed = row.seed + shift
        spoken = self.store.find_spoken(model, row.text, seed)
        if spoken is None:
            raise EvaluationError(f"{row.text!r} with seed {seed} is not synthesized yet")
        wav = self.store.wav_path(model, row.text, seed)
        audio = read_wav(wav)
        key = audio_sha256(disturb(audio)) if disturbed else spoken.audio
        heard = self.store.find_heard(self.recognizer, key)
        if heard is None:
            raise EvaluationError(f"{row.text!r} with seed {seed} is not recognized yet")
        hypothesis = find_normalizer(self.normalizer)(heard.hypothesis)
        return _Rendering(
            wav=wav,
            durations=spoken.durations,
            seconds=audio.duration_s,
            hypothesis=hypothesis,
            words=count_edits([row.transcript], [hypothesis], "word")[0],
            characters=count_edits([row.transcript], [hypothesis], "character")[0],
        )


def _compare(
    reference: Sequence[_Rendering],
    candidate: Sequence[_Rendering],
    blocks: Sequence[int],
    unit: str,
) -> ErrorRate:
    return compare_rates(
        [getattr(one, unit) for one in reference], [getattr(one, unit) for one in candidate], blocks
    )


def _distances(left: Sequence[_Rendering], right: Sequence[_Rendering]) -> list[float]:
    pairs = zip(left, right, strict=True)
    return [log_mel_distance(before.audio(), after.audio()) for before, after in pairs]


def _signal(
    reference: Sequence[_Rendering], candidate: Sequence[_Rendering], distances: list[float]
) -> Signal:
    summary = summarize_distances(distances)
    pairs = list(zip(reference, candidate, strict=True))
    held = [same_timing(before.audio(), after.audio()) for before, after in pairs]
    sharp = [distance for distance, same in zip(distances, held, strict=True) if same]
    return Signal(
        log_mel_distance_db=summary.mean,
        log_mel_distance=summary,
        snr_db=snr_db((before.audio(), after.audio()) for before, after in pairs),
        equal_length=float(np.mean([before.seconds == after.seconds for before, after in pairs])),
        same_timing=float(np.mean(held)),
        same_timing_log_mel_distance_db=float(np.mean(sharp)) if sharp else None,
    )


def _duration(reference: Sequence[_Rendering], candidate: Sequence[_Rendering]) -> Duration:
    total = sum(one.seconds for one in reference)
    if total == 0.0:
        raise EvaluationError("the reference speaks nothing: every text gave empty audio")
    pairs = list(zip(reference, candidate, strict=True))
    known = [(a.durations, b.durations) for a, b in pairs if a.durations and b.durations]
    symbols = sum(len(before) for before, _ in known)
    return Duration(
        ratio=sum(one.seconds for one in candidate) / total,
        kept=sum(_same(*pair) for pair in known) / symbols if symbols else None,
    )


def _same(before: tuple[int, ...], after: tuple[int, ...]) -> int:
    """Count the symbols with equal frames; none where the symbols themselves differ."""
    return (
        sum(a == b for a, b in zip(before, after, strict=True)) if len(before) == len(after) else 0
    )


def _floors(
    listener: _Listener, model: str, rows: Sequence[_Row], reference: Sequence[_Rendering]
) -> Floors:
    others = [listener.render(model, row, shift=OTHER_SEEDS) for row in rows]
    disturbed = [listener.render(model, row, disturbed=True) for row in rows]
    blocks = [row.index for row in rows]
    return Floors(
        other_seeds=_compare(reference, others, blocks, "words"),
        other_seeds_log_mel_distance_db=float(np.mean(_distances(reference, others))),
        recognizer=_compare(reference, disturbed, blocks, "words"),
    )


def _utterance(
    row: _Row, reference: _Rendering, candidate: _Rendering, distance: float
) -> Utterance:
    kept = None
    if reference.durations and candidate.durations:
        kept = _same(reference.durations, candidate.durations) / len(reference.durations)
    return Utterance(
        index=row.index,
        seed=row.seed,
        text=row.text,
        transcript=row.transcript,
        words=reference.words.tokens,
        characters=reference.characters.tokens,
        reference=_speech(reference),
        candidate=_speech(candidate),
        log_mel_distance_db=distance,
        durations_kept=kept,
    )


def _speech(rendering: _Rendering) -> Speech:
    return Speech(
        hypothesis=rendering.hypothesis,
        word_errors=rendering.words.errors,
        character_errors=rendering.characters.errors,
        seconds=rendering.seconds,
        audio=None,
    )
