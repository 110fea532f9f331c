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
from benchmarks.timing import Plan, measure_memory, time_in_turns
from benchmarks.voices import VOICES, open_voice
from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError
from tts_compress.recipes.family import schemes_of
from tts_compress.recipes.schemes import find_scheme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.sentences import Lengths, Sentence
    from benchmarks.voices.voice import BenchVoice
    from tts_compress.models.base import GraphModel
    from tts_compress.progress import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Voices, contestants and settings of a run."""

    voices: tuple[str, ...]
    schemes: tuple[str, ...] | None
    """None for all that its family has and that do not train, or also those with `train`."""

    train: bool
    peers: tuple[str, ...]
    lengths: Lengths
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
    kind, voice = VOICES[name], open_voice(name, work / "voices")
    sentences = kind.sentences(voice, choice.lengths)
    contestants = _make_all(voice, choice, work / name, progress)
    reference = contestants[0]
    spoken = speak(reference.path, sentences, kind)
    other = speak(reference.path, sentences, kind, spoken, noise=1)
    results = []
    for done, contestant in enumerate(contestants):
        progress.advance(f"{name}: compare", done, len(contestants))
        results.append(_measure(contestant, reference, _Heard(kind, sentences, spoken)))
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
        weights="trained" if kind.trained else "random",
        sample_rate=voice.sample_rate,
        sha256=sha256_of(reference.path),
        sentences={sentence.name: sentence.tokens for sentence in sentences},
        noise_floor=floor,
        contestants=tuple(results),
    )


def _make_all(
    voice: GraphModel, choice: Choice, work: Path, progress: Progress
) -> list[Contestant]:
    files = voice.files().weights
    wanted: list[tuple[Literal["peer", "scheme"], str]] = [("peer", name) for name in choice.peers]
    wanted += [("scheme", name) for name in find_schemes(voice.family, choice)]
    graphs = tuple(file.name for file in files)
    found = [Contestant(kind="reference", name="fp32", path=files[0], graphs=graphs)]
    stage = f"{work.name}: make"
    for done, (kind, name) in enumerate(wanted):
        progress.advance(stage, done, len(wanted))
        found.append(make_contestant(kind, name, files, work, _Named(progress, work.name)))
    progress.advance(stage, len(wanted), max(len(wanted), 1))
    return found


def find_schemes(family: str, choice: Choice) -> list[str]:
    """Return the chosen schemes that a family has, in their order."""
    names = schemes_of(family)
    if choice.schemes is not None:
        return [name for name in choice.schemes if name.partition("@")[0] in names]
    return [name for name in names if choice.train or not find_scheme(name).trained]


@dataclass(frozen=True, slots=True)
class _Heard:
    """A voice in FP32."""

    voice: BenchVoice
    sentences: Sequence[Sentence]
    spoken: Sequence[Spoken]


def _measure(contestant: Contestant, reference: Contestant, fp32: _Heard) -> ContestantResult:
    """Return everything about a contestant but its speed."""
    result = ContestantResult(kind=contestant.kind, name=contestant.name, making=contestant.cost)
    if contestant.error is not None:
        return replace(result, error=contestant.error)
    size = contestant.size_bytes()
    try:
        return replace(
            result,
            size_bytes=size,
            size_ratio=reference.size_bytes() / size,
            memory=measure_memory(contestant, fp32.sentences[-1]),
            fidelity=_fidelity(contestant, fp32),
        )
    except TTSCompressError as error:
        if contestant.kind == "reference":
            raise
        return replace(result, error=str(error))


def _fidelity(contestant: Contestant, fp32: _Heard) -> Fidelity | None:
    """Return the distance to FP32; measured once per file, because it is always the same."""
    if contestant.kind == "reference":
        return None
    files = [Path(__file__).with_name(name) for name in ("fidelity.py", "holding.py")]
    code = [file.read_text(encoding="utf-8") for file in files]
    asked = repr([code, [sentence.digest() for sentence in fp32.sentences]])
    key = hashlib.sha256(asked.encode()).hexdigest()[:12]
    assert contestant.kept is not None, "FP32 is not compared"
    kept = contestant.kept / f"fidelity-{key}.json"
    if not kept.is_file():
        candidate = speak(contestant.path, fp32.sentences, fp32.voice, fp32.spoken)
        write_text_atomically(kept, json.dumps(asdict(compare(fp32.spoken, candidate))))
    return Fidelity(**json.loads(kept.read_text(encoding="utf-8")))


class _Named:
    """Shows the stages of one voice under its name."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress, self._name = progress, name

    def advance(self, stage: str, done: int, total: int) -> None:
        """Move the bar of this voice's stage."""
        self._progress.advance(f"{self._name}: {stage.strip()}", done, total)
