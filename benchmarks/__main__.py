"""`python -m benchmarks`: FP32, stock quantization and our schemes, voice by voice."""

import argparse
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.command import Add, command, positive
from benchmarks.contestants import PEERS, Contestant, MakingCost, fp32_contestant, make_contestant
from benchmarks.fidelity import Fidelity, Spoken, compare, speak
from benchmarks.report import MISSING, write_json
from benchmarks.sentences import Lengths, Sentence
from benchmarks.timing import Memory, Plan, Timing, measure_memory, time_in_turns
from benchmarks.voices import VOICES, open_voice, usual_voices
from benchmarks.voices.voice import BenchVoice
from tts_compress.artifact import sha256_of
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError
from tts_compress.models.base import GraphModel
from tts_compress.progress import Progress
from tts_compress.recipes.formats import Quality, find_scheme
from tts_compress.recipes.recipe import schemes_of
from tts_compress.terminal import progress_bars, show, show_json

_LABELS = {"reference": "", "peer": "onnxruntime ", "scheme": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestantResult:
    """One contestant on one voice."""

    kind: str
    name: str
    error: str | None = None
    size_bytes: int = 0
    size_ratio: float = 0.0
    making: MakingCost | None = None
    memory: Memory | None = None
    fidelity: Fidelity | None = None
    timings: tuple[Timing, ...] = ()

    @property
    def label(self) -> str:
        """Its name in tables."""
        return _LABELS[self.kind] + self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceResult:
    """All contestants on one voice; the first is FP32."""

    name: str
    weights: Literal["random", "trained"]
    sample_rate: int
    sha256: str
    sentences: dict[str, int]
    """Ids that the graph is given, by sentence."""

    noise_floor: Fidelity
    """FP32 with one noise against FP32 with another."""

    contestants: tuple[ContestantResult, ...]

    @property
    def sound(self) -> list[ContestantResult]:
        """Contestants that did not fail."""
        return [contestant for contestant in self.contestants if contestant.error is None]


def print_tables(voices: Sequence[VoiceResult]) -> None:
    """Print, for each voice, a table of files and one of speed, and what failed."""
    # A log has no width; these tables need more than the usual 80 columns.
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 140)
    for voice in voices:
        console.print(_files(voice), _speeds(voice))
        for contestant in voice.contestants:
            if contestant.error is not None:
                console.print(f"{contestant.label} failed: {contestant.error}", soft_wrap=True)


def _files(voice: VoiceResult) -> Table:
    table = _table(
        f"{voice.name}, {voice.weights} weights, {voice.sample_rate} Hz: size, memory and distance "
        "to FP32",
        "contestant|MB|smaller|peak MB|SNR dB|log-mel dB|durations kept|length|made in|peak MB",
    )
    for contestant in voice.sound:
        memory, making = contestant.memory, contestant.making
        table.add_row(
            contestant.label,
            f"{contestant.size_bytes / 1e6:.2f}",
            f"{contestant.size_ratio:.2f}×",
            f"{memory.peak_bytes / 1e6:.0f}" if memory else MISSING,
            *_distance(contestant.fidelity),
            f"{making.seconds:.1f} s" if making else MISSING,
            f"{making.peak_bytes / 1e6:.0f}" if making else MISSING,
        )
    table.add_section()
    table.add_row("fp32, other noise", *[MISSING] * 3, *_distance(voice.noise_floor))
    return table


def _distance(fidelity: Fidelity | None) -> tuple[str, ...]:
    if fidelity is None:
        return (MISSING,) * 4
    snr, kept, change = fidelity.snr_db, fidelity.kept_durations, fidelity.duration_change
    return (
        MISSING if snr is None else f"{snr:.1f}",
        f"{fidelity.log_mel_db:.2f}",
        MISSING if kept is None else f"{kept:.2%}",
        MISSING if change is None else f"{change:+.2%}",
    )


def _speeds(voice: VoiceResult) -> Table:
    """Return times faster than FP32, by minimum and by median, and the real-time factor."""
    fp32 = voice.contestants[0]
    columns = [f"{t.sentence}, {_threads(t)}" for t in fp32.timings]
    table = _table(
        f"{voice.name}, {voice.weights} weights: times faster than FP32 (minimum / median, 95 % "
        "interval of the mean), real-time factor",
        "|".join(["contestant", *columns]),
    )
    for contestant in voice.sound:
        table.add_row(contestant.label, *map(_speed, contestant.timings))
    if any(t.length_change for contestant in voice.sound for t in contestant.timings):
        table.caption = "* the audio is so much longer than FP32's: durations moved"
    return table


def _speed(t: Timing) -> str:
    mark = f" ({t.length_change:+.1%}*)" if t.length_change else ""
    spread = "" if t.interval is None else f" {t.interval[0]:.2f}–{t.interval[1]:.2f}"
    return f"{t.ratio_min:.2f} / {t.ratio_median:.2f}{spread}, {t.rtf:.3f}{mark}"


def _threads(timing: Timing) -> str:
    return "1 thread" if timing.threads == 1 else f"{timing.threads} threads"


def _table(title: str, columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for index, column in enumerate(columns.split("|")):
        table.add_column(column, justify="right" if index else "left")
    return table


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


@dataclass(frozen=True, slots=True)
class _Reference:
    """A voice in FP32, and what it spoke."""

    voice: BenchVoice
    contestant: Contestant
    sentences: Sequence[Sentence]
    spoken: Sequence[Spoken]


def _bench_voice(name: str, choice: Choice, work: Path, progress: Progress) -> VoiceResult:
    kind, voice = VOICES[name], open_voice(name, work / "voices")
    sentences = kind.sentences(voice, choice.lengths)
    contestants = _make_all(voice, choice, work / name, progress)
    path = contestants[0].path
    spoken = speak(path, sentences, kind)
    reference = _Reference(kind, contestants[0], sentences, spoken)
    results = []
    for done, contestant in enumerate(contestants, 1):
        results.append(_measure(contestant, reference))
        progress.advance(f"{name}: compare", done, len(contestants))
    sound = [index for index, result in enumerate(results) if result.error is None]
    running = [contestants[index] for index in sound]
    timings = time_in_turns(running, sentences, voice.sample_rate, choice.plan, progress)
    for index, timing in zip(sound, timings, strict=True):
        results[index] = replace(results[index], timings=tuple(timing))
    floor = compare(spoken, speak(path, sentences, kind, spoken, noise=1))
    return VoiceResult(
        name=name,
        weights="trained" if kind.trained else "random",
        sample_rate=voice.sample_rate,
        sha256=sha256_of(path),
        sentences={sentence.name: sentence.tokens for sentence in sentences},
        # Other noise alone shows nothing about durations: FP32 rounds its own.
        noise_floor=replace(floor, kept_durations=None, duration_change=None),
        contestants=tuple(results),
    )


def _make_all(
    voice: GraphModel, choice: Choice, work: Path, progress: Progress
) -> list[Contestant]:
    files = voice.files().weights
    chosen: list[tuple[Literal["peer", "scheme"], str]] = [("peer", name) for name in choice.peers]
    chosen += [("scheme", name) for name in find_schemes(voice.family, choice)]
    contestants = [fp32_contestant(files)]
    for done, (kind, name) in enumerate(chosen, 1):
        contestants.append(make_contestant(kind, name, files, work))
        progress.advance(f"{work.name}: make", done, len(chosen))
    return contestants


def find_schemes(family: str, choice: Choice) -> list[str]:
    """Return the chosen schemes that a family has, in their order."""
    names = schemes_of(family)
    if choice.schemes is not None:
        return [name for name in choice.schemes if name.partition("@")[0] in names]
    return [name for name in names if choice.train or not find_scheme(name).trained]


def _measure(contestant: Contestant, fp32: _Reference) -> ContestantResult:
    """Return everything about a contestant but its speed."""
    result = ContestantResult(kind=contestant.kind, name=contestant.name, making=contestant.cost)
    if contestant.error is not None:
        return replace(result, error=contestant.error)
    is_fp32, size = contestant.kind == "reference", contestant.size_bytes()
    try:
        memory = measure_memory(contestant, fp32.sentences[-1])
        fidelity = None
        if not is_fp32:
            spoken = speak(contestant.path, fp32.sentences, fp32.voice, fp32.spoken)
            fidelity = compare(fp32.spoken, spoken)
    except TTSCompressError as error:
        if is_fp32:
            raise
        return replace(result, error=str(error))
    ratio = fp32.contestant.size_bytes() / size
    return replace(result, size_bytes=size, size_ratio=ratio, memory=memory, fidelity=fidelity)


def choice_of(options: Namespace) -> Choice:
    """Return what options state; `--quick` has defaults of its own."""
    quick: bool = options.quick
    return Choice(
        voices=tuple(options.voices or (("medium",) if quick else usual_voices())),
        schemes=None if options.schemes is None else tuple(options.schemes),
        train=options.train,
        peers=tuple(PEERS if options.peers is None else options.peers),
        lengths=Lengths(
            seconds=tuple(options.seconds or ((5.0,) if quick else (1.0, 5.0))),
            tokens=tuple(options.tokens or ((20,) if quick else (20, 100))),
        ),
        plan=Plan(
            threads=tuple(options.threads or ((1,) if quick else (1, 2))),
            rounds=options.rounds or (5 if quick else 8),
            warm_ups=1 if quick else 2,
        ),
    )


def _options(add: Add) -> None:
    add("--quick", action="store_true", help="one voice and length, 1 thread, 5 rounds")
    add("--voices", nargs="+", choices=VOICES, help="(medium demo)")
    qualities = {f"int8@{quality}" for quality in Quality}
    schemes = sorted({*schemes_of("piper"), *schemes_of("contract"), *qualities})
    add("--schemes", nargs="*", choices=schemes, metavar="SCHEME", help=_any(schemes))
    add("--train", action="store_true", help="also time schemes that train, for many minutes each")
    add("--peers", nargs="*", choices=PEERS, metavar="PEER", help=_any(PEERS))
    add("--threads", nargs="+", type=positive, help="of each run (1 2)")
    add("--seconds", nargs="+", type=_seconds, help="of each sentence of Piper's (1 5)")
    add("--tokens", nargs="+", type=positive, help="of each sentence of other voices (20 100)")
    add("--rounds", type=positive, help="timed runs of each (8)")
    add("--output", type=Path, default=Path("out/bench"), help="folder (%(default)s)")
    add("--json", action="store_true", help="print bench.json in the place of tables")


def _any(names: Sequence[str]) -> str:
    return f"any of {', '.join(names)}; none where no name follows (all)"


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.2 <= value <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length from 0.2 to 60 seconds")
    return value


@command("benchmarks", _options)
def main(options: Namespace) -> int:
    """Time FP32, stock quantization and our schemes in turns, by default for under ten minutes."""
    choice, voices = choice_of(options), []
    with progress_bars() as progress:
        for done, name in enumerate(choice.voices, 1):
            voices.append(_bench_voice(name, choice, options.output / "work", progress))
            progress.advance("voices", done, len(choice.voices))
    document = {
        "environment": describe_environment(),
        "rounds": choice.plan.rounds,
        "warm_ups": choice.plan.warm_ups,
        "voices": [asdict(voice) for voice in voices],
        "format_version": 2,
    }
    path = write_json(options.output / "bench.json", document)
    if options.json:
        show_json(document)
    else:
        print_tables(voices)
        show(f"written: {path}")
    ours = [c for voice in voices for c in voice.contestants if c.kind == "scheme"]
    return 1 if any(contestant.error for contestant in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
