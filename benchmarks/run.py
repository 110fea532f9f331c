"""One run of the benchmark, voice by voice."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks.contestants import Contestant, make_contestant
from benchmarks.fidelity import Spoken, compare, speak
from benchmarks.results import Bench, ContestantResult, Fidelity, VoiceResult
from benchmarks.sentences import Sentence, make_sentences
from benchmarks.timing import Plan, measure_memory, time_in_turns
from benchmarks.voices import open_voice
from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.models.base import GraphModel
    from tts_compress.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Voices, contestants and settings of a run."""

    voices: tuple[str, ...]
    schemes: tuple[str, ...]
    peers: tuple[str, ...]
    seconds: tuple[float, ...]
    plan: Plan


def bench(choice: Choice, work: Path, progress: Progress) -> Bench:
    """Measure everything chosen; files that were made before are found in `work`.

    Raises:
        ModelError: A voice cannot be made or opened.
        EvaluationError: FP32 itself cannot be run.
    """
    voices = []
    for done, name in enumerate(choice.voices):
        progress.advance("voices", done, len(choice.voices))
        voices.append(_bench_voice(name, choice, work, progress))
    progress.advance("voices", len(choice.voices), len(choice.voices))
    return Bench(
        environment=describe_environment(),
        rounds=choice.plan.rounds,
        warm_ups=choice.plan.warm_ups,
        voices=tuple(voices),
    )


def _bench_voice(name: str, choice: Choice, work: Path, progress: Progress) -> VoiceResult:
    voice = open_voice(name, work / "voices")
    sentences = make_sentences(voice, choice.seconds)
    contestants = _make_all(voice, choice, work / name, progress)
    reference = contestants[0]
    spoken = speak(reference.path, sentences, voice.sample_rate)
    other = speak(reference.path, sentences, voice.sample_rate, spoken, noise=1)
    results = []
    for done, contestant in enumerate(contestants):
        progress.advance(f"{name}: compare", done, len(contestants))
        results.append(_measure(contestant, reference, spoken, sentences))
    progress.advance(f"{name}: compare", len(contestants), len(contestants))
    sound = [index for index, result in enumerate(results) if result.error is None]
    running = [contestants[index] for index in sound]
    timings = time_in_turns(
        running, sentences, voice.sample_rate, choice.plan, _Named(progress, name)
    )
    for index, timing in zip(sound, timings, strict=True):
        results[index] = replace(results[index], timings=tuple(timing))
    # Other noise alone shows nothing about durations: FP32 rounds its own.
    floor = replace(compare(spoken, other), kept_durations=None, duration_change=None)
    return VoiceResult(
        name=name,
        sample_rate=voice.sample_rate,
        sha256=sha256_of(reference.path),
        sentences={sentence.name: len(sentence.ids) for sentence in sentences},
        noise_floor=floor,
        contestants=tuple(results),
    )


def _make_all(
    voice: GraphModel, choice: Choice, work: Path, progress: Progress
) -> list[Contestant]:
    path = voice.files().weights[0]
    wanted: list[tuple[Literal["peer", "scheme"], str]] = [("peer", name) for name in choice.peers]
    wanted += [("scheme", name) for name in choice.schemes]
    found = [Contestant(kind="reference", name="fp32", path=path)]
    stage = f"{work.name}: make"
    for done, (kind, name) in enumerate(wanted):
        progress.advance(stage, done, len(wanted))
        found.append(make_contestant(kind, name, path, work, _Named(progress, work.name)))
    progress.advance(stage, len(wanted), max(len(wanted), 1))
    return found


def _measure(
    contestant: Contestant,
    reference: Contestant,
    spoken: Sequence[Spoken],
    sentences: Sequence[Sentence],
) -> ContestantResult:
    """Return everything about a contestant but its speed."""
    result = ContestantResult(kind=contestant.kind, name=contestant.name, making=contestant.cost)
    if contestant.error is not None:
        return replace(result, error=contestant.error)
    size = contestant.path.stat().st_size
    try:
        return replace(
            result,
            size_bytes=size,
            size_ratio=reference.path.stat().st_size / size,
            memory=measure_memory(contestant, sentences[-1]),
            fidelity=_fidelity(contestant, spoken, sentences),
        )
    except TTSCompressError as error:
        if contestant.kind == "reference":
            raise
        return replace(result, error=str(error))


def _fidelity(
    contestant: Contestant, spoken: Sequence[Spoken], sentences: Sequence[Sentence]
) -> Fidelity | None:
    """Return the distance to FP32; measured once per file, because it is always the same."""
    if contestant.kind == "reference":
        return None
    code = Path(__file__).with_name("fidelity.py").read_text(encoding="utf-8")
    asked = repr([code, [asdict(sentence) for sentence in sentences]])
    key = hashlib.sha256(asked.encode()).hexdigest()[:12]
    kept = contestant.path.parents[1] / f"fidelity-{key}.json"
    if not kept.is_file():
        candidate = speak(contestant.path, sentences, spoken[0].audio.sample_rate, spoken)
        write_text_atomically(kept, json.dumps(asdict(compare(spoken, candidate))))
    return Fidelity(**json.loads(kept.read_text(encoding="utf-8")))


class _Named:
    """Shows the stages of one voice under its name."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move the bar of this voice's stage."""
        self._progress.advance(f"{self._name}: {stage.strip()}", done, total)
