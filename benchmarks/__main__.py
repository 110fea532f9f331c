"""`python -m benchmarks`: FP32, stock quantization and our schemes, voice by voice."""

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.command import Add, command, positive
from benchmarks.contestants import PEERS, Contestant, fp32_contestant, make_contestant
from benchmarks.fidelity import Fidelity, compare, speak
from benchmarks.report import MISSING, print_report, render
from benchmarks.sentences import Lengths
from benchmarks.timing import Plan, Timing, measure_memory, time_in_turns
from benchmarks.voices import VOICES, open_voice, usual_voices
from tts_compress.artifact import sha256_of
from tts_compress.environment import describe_environment
from tts_compress.errors import TTSCompressError
from tts_compress.models.base import GraphModel
from tts_compress.progress import Progress
from tts_compress.recipes.formats import Quality, find_scheme
from tts_compress.recipes.recipe import schemes_of
from tts_compress.terminal import progress_bars


def _distance(fidelity: Fidelity | None) -> str:
    """Return SNR, log-mel distance, share of kept durations and change of the length."""
    if fidelity is None:
        return " | ".join(MISSING * 4)
    snr, kept, change = fidelity.snr_db, fidelity.kept_durations, fidelity.duration_change
    cells = (
        MISSING if snr is None else f"{snr:.1f}",
        f"{fidelity.log_mel_db:.2f}",
        MISSING if kept is None else f"{kept:.2%}",
        MISSING if change is None else f"{change:+.2%}",
    )
    return " | ".join(cells)


def _speed(t: Timing) -> str:
    mark = f" ({t.length_change:+.1%}*)" if t.length_change else ""
    spread = "" if t.interval is None else f" {t.interval[0]:.2f}–{t.interval[1]:.2f}"
    return f"{t.ratio_min:.2f} / {t.ratio_median:.2f}{spread}, {t.rtf:.3f}{mark}"


def _mega(count: int, digits: int = 0) -> str:
    return f"{count / 1e6:.{digits}f}"


def _bench_voice(name: str, options: Namespace, progress: Progress) -> dict[str, Any]:
    work = options.output / "work"
    kind, voice = VOICES[name], open_voice(name, work / "voices")
    lengths = Lengths(seconds=tuple(options.seconds), tokens=tuple(options.tokens))
    plan = Plan(threads=tuple(options.threads), rounds=options.rounds, warm_ups=2)
    sentences = kind.sentences(voice, lengths)
    fp32, *others = contestants = _make_all(voice, options, work / name, progress)
    spoken = speak(fp32.path, sentences, kind)
    rows, running = [], []
    for done, one in enumerate(contestants, 1):
        row: dict[str, Any] = {"kind": one.kind, "name": one.name, "error": one.error}
        try:
            if one.error is None:
                row |= {"size_bytes": one.size_bytes(), "making": one.cost}
                row["size_ratio"] = fp32.size_bytes() / one.size_bytes()
                row["peak_bytes"] = measure_memory(one, sentences[-1])
                other = one in others and speak(one.path, sentences, kind, spoken)
                row["fidelity"] = compare(spoken, other) if other else None
                running.append((one, row))
        except TTSCompressError as error:
            if one == fp32:
                raise
            row["error"] = str(error)
        rows.append(row)
        progress.advance(f"{name}: compare", done, len(contestants))
    timed = [one for one, _ in running]
    timings = time_in_turns(timed, sentences, voice.sample_rate, plan, progress)
    for (_, row), timing in zip(running, timings, strict=True):
        row["timings"] = timing
    floor = compare(spoken, speak(fp32.path, sentences, kind, spoken, noise=1))
    return {
        "name": name,
        "weights": "trained" if kind.trained else "random",
        "sample_rate": voice.sample_rate,
        "sha256": sha256_of(fp32.path),
        "sentences": {sentence.name: sentence.tokens for sentence in sentences},
        # Other noise alone shows nothing about durations: FP32 rounds its own.
        "noise_floor": replace(floor, kept_durations=None, duration_change=None),
        "contestants": rows,
    }


def _make_all(
    voice: GraphModel, options: Namespace, work: Path, progress: Progress
) -> list[Contestant]:
    files = voice.files().weights
    chosen: list[tuple[Literal["peer", "scheme"], str]] = [("peer", name) for name in options.peers]
    chosen += [("scheme", name) for name in find_schemes(voice.family, options)]
    contestants = [fp32_contestant(files)]
    for done, (kind, name) in enumerate(chosen, 1):
        contestants.append(make_contestant(kind, name, files, work))
        progress.advance(f"{work.name}: make", done, len(chosen))
    return contestants


def find_schemes(family: str, options: Namespace) -> list[str]:
    """Return the chosen schemes that a family has; by default all that do not train."""
    names = schemes_of(family)
    if options.schemes is not None:
        return [name for name in options.schemes if name.partition("@")[0] in names]
    return [name for name in names if options.train or not find_scheme(name).trained]


def _options(add: Add) -> None:
    usual = usual_voices()
    add("--voices", nargs="+", choices=VOICES, default=usual, help=f"({' '.join(usual)})")
    qualities = {f"int8@{quality}" for quality in Quality}
    schemes = sorted({*schemes_of("piper"), *schemes_of("contract"), *qualities})
    add("--schemes", nargs="*", choices=schemes, metavar="SCHEME", help=_any(schemes))
    add("--train", action="store_true", help="also time schemes that train, for many minutes each")
    add("--peers", nargs="*", choices=PEERS, default=PEERS, metavar="PEER", help=_any(PEERS))
    add("--threads", nargs="+", type=positive, default=(1, 2), help="of each run (1 2)")
    add("--seconds", nargs="+", type=float, default=(1.0, 5.0), help="of Piper's sentences (1 5)")
    add("--tokens", nargs="+", type=positive, default=(20, 100), help="of others' (20 100)")
    add("--rounds", type=positive, default=8, help="timed runs of each (%(default)s)")
    add("--output", type=Path, default=Path("out/bench"), help="folder (%(default)s)")


def _any(names: Sequence[str]) -> str:
    return f"any of {', '.join(names)}; none where no name follows (all)"


@command("benchmarks", _options)
def main(options: Namespace) -> int:
    """Time FP32, stock quantization and our schemes in turns, by default for under ten minutes."""
    voices = []
    with progress_bars() as progress:
        for done, name in enumerate(options.voices, 1):
            voices.append(_bench_voice(name, options, progress))
            progress.advance("voices", done, len(options.voices))
    document = {
        "environment": describe_environment(),
        "rounds": options.rounds,
        "voices": voices,
        "format_version": 3,
    }
    filters = {"distance": _distance, "speed": _speed, "mega": _mega}
    lines = render(Path(__file__).with_name("bench.md"), {"voices": voices}, filters)
    print_report(options.output / "bench", document, lines)
    ours = [row for voice in voices for row in voice["contestants"] if row["kind"] == "scheme"]
    return 1 if any(row["error"] for row in ours) else 0


if __name__ == "__main__":
    sys.exit(main())
