"""`python -m benchmarks.power`: false alarms and power of each size of a suite, as tables."""

import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import Add, command
from benchmarks.power.rare import (
    MISSES,
    PLANS,
    RATE_SIZES,
    Miss,
    Passing,
    RateMiss,
    misses,
    passing,
    rate_misses,
)
from benchmarks.power.simulate import (
    KINDS,
    LIMITS,
    RATES,
    Intervals,
    Kind,
    Plan,
    false_alarms,
    rate_found,
    share_found,
    within_limits,
)
from benchmarks.report import MISSING, table, write_report
from benchmarks.sound.analysis import read_values
from tts_compress.artifact import write_text_atomically
from tts_compress.config import data_names, word_errors_file
from tts_compress.evaluation.gates import read_gates
from tts_compress.evaluation.intervals import paired_intervals
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.plan import ModelErrors, WordErrors, read_word_errors
from tts_compress.evaluation.stages import synthesize
from tts_compress.evaluation.store import Store, SynthesisJob, analyze, find_recognizer
from tts_compress.evaluation.subject import open_subject
from tts_compress.evaluation.suite import Suite, read_suite
from tts_compress.progress import Progress, Silent
from tts_compress.terminal import progress_bars, show


def measure(
    models: tuple[str, str],
    seeds: tuple[Sequence[int], Sequence[int]],
    suite: str,
    work: Path,
    options: EvaluationOptions,
) -> WordErrors:
    """Have two models speak a suite with other seeds, and count the recognizer's word errors.

    Finished pieces stay in the folder `work`: an interrupted run goes on from there.
    """
    chosen = read_suite(suite)
    if options.recognizer is not None:
        chosen = chosen.with_recognizer(options.recognizer)
    store = Store(work)
    counts = [
        _count(spec, chosen.with_seeds(tuple(numbers)), store, options)
        for spec, numbers in zip(models, seeds, strict=True)
    ]
    (reference, words, recognizer), (candidate, _, _) = counts
    return WordErrors(
        suite=chosen.name,
        recognizer=recognizer,
        normalizer=chosen.normalizer,
        words=words,
        reference=reference,
        candidate=candidate,
    )


def _count(
    spec: str, suite: Suite, store: Store, options: EvaluationOptions
) -> tuple[ModelErrors, tuple[int, ...], str]:
    """Return a model's errors, the words of each text, and the recognizer's description."""
    with TemporaryDirectory() as spare:
        subject = open_subject(spec, Path(spare), suite.prompt)
        jobs = [
            SynthesisJob(model=subject.fingerprint, text=item.text, seed=seed)
            for item in suite.utterances
            for seed in suite.seeds
        ]
        spoken = list(synthesize(store, subject, jobs, options, stage=f"synthesize {spec}"))
    audios = [(piece.audio, store.wav_path(piece)) for piece in spoken]
    recognizer = find_recognizer(suite.recognizer, suite.language, options)
    heard = analyze(
        store, recognizer, audios, options, total=len(audios), stage=f"recognize {spec}"
    )
    transcripts = [suite.transcript(item) for item in suite.utterances for _ in suite.seeds]
    edits = [
        count_edits(transcript, suite.normalize(heard[piece.audio]), "word")
        for transcript, piece in zip(transcripts, spoken, strict=True)
    ]
    step = len(suite.seeds)
    errors = [edit.errors for edit in edits]
    rows = tuple(tuple(errors[start : start + step]) for start in range(0, len(errors), step))
    made = ModelErrors(spec=spec, sha256=subject.identity().sha256, seeds=suite.seeds, errors=rows)
    return made, tuple(edit.tokens for edit in edits[::step]), recognizer.description


POWERS = (0.5, 0.8, 0.9)

_MORE_ALARMS = 4
"""Comparisons without damage, over those with: a share of 5 % needs more to be told from 7.5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One size of a suite; `power` and `rates` by the kind of damage."""

    texts: int
    seeds: int
    alarms: Mapping[str, float | None]
    power: Mapping[Kind, Mapping[float, float]]
    """Share of comparisons that show each planted rate."""

    rates: Mapping[Kind, Mapping[float, float | None]]
    """Rate that is shown with each power; None beyond the planted rates."""

    approximation: float
    """Difference that is shown with 80 % power by the normal approximation of `--plan`."""

    @property
    def holds(self) -> bool:
        """True if the false alarms are within the limits."""
        return within_limits(share for share in self.alarms.values() if share is not None)


def simulate(
    data: WordErrors,
    texts: Sequence[int],
    seeds: Sequence[int],
    comparisons: int,
    *,
    intervals: Intervals = paired_intervals,
    progress: Progress | None = None,
) -> list[Size]:
    """Return false alarms and power of every size that the data have seeds for."""
    progress = progress or Silent()
    spread = data.spread()
    plans = [
        Plan(count, number, comparisons)
        for number in seeds
        for count in texts
        if number <= len(data.candidate.seeds) and count <= len(data.words)
    ]
    sizes = []
    for index, plan in enumerate(plans):
        progress.advance("simulate", index, len(plans))
        power = {
            kind: {rate: share_found(data, plan, kind, rate, intervals) for rate in RATES}
            for kind in KINDS
        }
        rates = {
            kind: {share: rate_found({0.0: 0.025} | shares, share) for share in POWERS}
            for kind, shares in power.items()
        }
        quiet = Plan(plan.texts, plan.seeds, _MORE_ALARMS * comparisons)
        size = Size(
            texts=plan.texts,
            seeds=plan.seeds,
            alarms=false_alarms(data, quiet, intervals),
            power=power,
            rates=rates,
            approximation=spread.detectable(plan.texts, plan.seeds),
        )
        sizes.append(size)
    progress.advance("simulate", len(plans), len(plans))
    return sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rare:
    """Bounds and gates where losses are rare, and where nothing was lost."""

    misses: tuple[Miss, ...]
    gates: tuple[Passing, ...]
    rates: tuple[RateMiss, ...]

    @property
    def holds(self) -> bool:
        """True if bounds lie below the true loss as seldom as is accepted."""
        return all(row.bound <= MISSES for row in self.misses if row.demanded)


def simulate_rare(data: WordErrors, values: Path, progress: Progress) -> Rare:
    """Return how bounds, gates and exact intervals do at the sizes of the shipped suites."""
    shipped, sound = [read_gates(name) for name in data_names("eval/gates")], read_values(values)
    missed: list[Miss] = []
    passed: list[Passing] = []
    for index, plan in enumerate(PLANS):
        progress.advance("rare losses", index, len(PLANS))
        missed += misses(data, plan)
        passed += passing(data, sound, plan, shipped)
    progress.advance("rare losses", len(PLANS), len(PLANS))
    return Rare(
        misses=tuple(missed),
        gates=tuple(passed),
        rates=tuple(rate_misses(*size) for size in RATE_SIZES),
    )


def _line(row: Size) -> str:
    shares = [f"{name} {share:.1%}" for name, share in row.alarms.items() if share is not None]
    end = "" if row.holds else " (not within the limits)"
    return f"{row.texts} texts, {row.seeds} seeds: false alarms {', '.join(shares)}{end}"


def _markdown(sizes: Sequence[Size], rare: Rare, data: WordErrors, command: str) -> list[str]:
    alarms = [(f"{row.seeds}", f"{row.texts}", *map(_share, row.alarms.values())) for row in sizes]
    both = [((f"{row.seeds}", f"{row.texts}", kind), row, kind) for row in sizes for kind in KINDS]
    power = [
        (*head, *(f"{100 * share:.0f} %" for share in row.power[kind].values()))
        for head, row, kind in both
    ]
    smallest = [
        (*head, *map(_points, row.rates[kind].values()), _points(row.approximation))
        for head, row, kind in both
    ]
    head = ("seeds", "texts", "damage")
    lines = [
        "# What an evaluation can show",
        "",
        f"Word errors of `{data.reference.spec}` (seeds {_list(data.reference.seeds)}) and "
        f"`{data.candidate.spec}` (seeds {_list(data.candidate.seeds)}) on {len(data.words)} texts "
        f"of `{data.suite}`, heard by {data.recognizer}: `eval/reports/word-errors.json`. "
        "Comparisons are drawn from them, and judged by the interval of the reports.",
        "",
        "## False alarms",
        "",
        "Share of 95 % intervals without zero where nothing changed: the reference against itself "
        "with other seeds, and differences whose signs are drawn at random. "
        f"Accepted: {LIMITS} %.",
        "",
        *table(("seeds", "texts", "other seeds", "sign flips"), alarms, "r"),
    ]
    if any(share is None for row in sizes for share in row.alarms.values()):
        lines += ["", f"{MISSING}: not as many seeds were measured."]
    return [
        *lines,
        "",
        "## Damage found",
        "",
        "Word errors are added to the candidate's, by word (each word with the same chance) or "
        "clustered (few utterances, each with as many errors as misheard ones have). Share of "
        "comparisons whose whole interval is above zero:",
        "",
        *table((*head, *(f"+{100 * rate:g} points" for rate in RATES)), power, "rrl"),
        "",
        "## The smallest difference that is found",
        "",
        "In points of the word error rate, between the planted rates. The last column is what "
        "`tts-compress evaluate --plan` computes from the spread of the differences, for clustered "
        "errors; of few texts it asks too much.",
        "",
        *table(
            (*head, *(f"{100 * p:.0f} % power" for p in POWERS), "approximated, 80 %"),
            smallest,
            "rrl",
        ),
        "",
        *_rare_markdown(rare),
        f"Made by `{command}` (`make prove`).",
    ]


def _rare_markdown(rare: Rare) -> list[str]:
    """Return the tables of losses that are rare."""
    missed = [
        (
            f"{row.seeds}",
            f"{row.texts}",
            row.loss,
            f"{row.points:.1f}",
            *map(_share, (row.below, row.above, row.bound)),
            f"{row.median:.1f}",
        )
        for row in rare.misses
    ]
    passed = [
        (
            row.gates,
            f"`{row.metric}`",
            row.limit,
            f"{row.seeds}",
            f"{row.texts}",
            *map(_share, (row.nothing, row.uniform)),
        )
        for row in rare.gates
    ]
    rates = [
        (
            f"{row.seeds}",
            f"{row.texts}",
            _share(row.rate),
            *map(_share, (row.independent, row.together)),
        )
        for row in rare.rates
    ]
    return [
        "## Losses that are rare",
        "",
        "Utterances, or texts with all their seeds, lose every word that the reference was "
        "understood in; `none` and `5 % of words` are no such losses. Shares of comparisons whose "
        "interval lies above the true loss or below it (nominal: 2.5 %), and whose `bound` "
        f"does, which is to be at most {100 * MISSES:g} %. The interval is of what was seen; the "
        "bound allows for an utterance, or for a loss as large as the largest seen, that was not. "
        "Of 24 texts, a loss of 8 % of texts is unseen in 14 % of evaluations: no bound short of "
        "12 points covers that.",
        "",
        *table(
            (
                "seeds",
                "texts",
                "loss",
                "points",
                "interval above",
                "interval below",
                "bound below",
                "median bound, points",
            ),
            missed,
            "rrl",
        ),
        "",
        "## What the gates pass",
        "",
        "Share of comparisons that pass each shipped gate on words and on distortion, where "
        "nothing was lost and where each word is lost with a chance of 5 %. Distortion has values "
        "of 24 texts.",
        "",
        *table(
            ("gates", "metric", "limit", "seeds", "texts", "nothing lost", "5 points lost"),
            passed,
            "lllrr",
        ),
        "",
        "## Bounds of rates",
        "",
        "Share of exact bounds, one-sided at 95 %, that lie below the rate of an event: where each "
        "utterance has it by itself, and where all seeds of a text have it or none. Of the latter, "
        "no event at all looks like independent utterances without one.",
        "",
        *table(("seeds", "texts", "rate", "independent", "all seeds alike"), rates, "r"),
        "",
    ]


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _share(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:.1f} %"


def _points(rate: float | None) -> str:
    return f"> {100 * RATES[-1]:g}" if rate is None else f"{100 * rate:.1f}"


def _options(add: Add) -> None:
    add("--errors", type=Path, default=word_errors_file(), metavar="JSON", help="measured errors")
    sound = Path("eval/reports/sound-values.json")
    add("--values", type=Path, default=sound, metavar="JSON", help="measured distortion")
    add("--texts", type=int, nargs="+", default=[24, 50, 100, 200], help="(24 50 100 200)")
    measured = "of each text, as far as measured (1 2 3)"
    add("--seeds", type=int, nargs="+", default=[1, 2, 3], help=measured)
    add("--comparisons", type=int, default=1000, help="drawn for each share (%(default)s)")
    stem = Path("eval/reports/power")
    add("--report", type=Path, default=stem, metavar="STEM", help="of .json and .md (%(default)s)")
    first = "first measure the errors of these models, for an hour or so, into --errors"
    add("--measure", nargs=2, metavar=("REFERENCE", "CANDIDATE"), help=first)
    add("--suite", default="en-full", help="to measure on (%(default)s)")
    add("--reference-seeds", type=int, nargs="+", default=[0, 1, 2, 1000], metavar="SEED")
    add("--candidate-seeds", type=int, nargs="+", default=[0, 1, 2], metavar="SEED")
    add("--work", type=Path, default=Path("out/power"), metavar="DIR", help="of finished pieces")
    add("--recognizer", metavar="NAME[:MODEL]", help="of the words (the suite's)")
    add("--jobs", type=int, default=2, help="recognizers at a time (%(default)s)")


@command("benchmarks.power", _options, label="prove")
def main(options: Namespace) -> int:
    """False alarms of the word error rate's interval, and the damage that it shows."""
    with progress_bars() as progress:
        if options.measure:
            settings = EvaluationOptions(
                recognizer=options.recognizer, jobs=options.jobs, progress=progress
            )
            seeds = (options.reference_seeds, options.candidate_seeds)
            models = (options.measure[0], options.measure[1])
            errors = measure(models, seeds, options.suite, options.work, settings)
            write_text_atomically(options.errors, errors.model_dump_json() + "\n")
        data = read_word_errors(options.errors)
        sizes = simulate(data, options.texts, options.seeds, options.comparisons, progress=progress)
        rare = simulate_rare(data, options.values, progress)
    show(*map(_line, sizes))
    worst = max(row.bound for row in rare.misses if row.demanded)
    show(f"bounds below a rare loss: at most {worst:.1%}")
    command = (
        f"python -m benchmarks.power --comparisons {options.comparisons} "
        f"--texts {' '.join(map(str, options.texts))} --seeds {' '.join(map(str, options.seeds))}"
    )
    source = data.model_dump(mode="json", exclude={"words": True})
    for model in ("reference", "candidate"):
        del source[model]["errors"]
    # Neither file depends on the machine.
    document = {"command": command, "source": source, "sizes": [asdict(row) for row in sizes]}
    paths = write_report(
        options.report, document | asdict(rare), _markdown(sizes, rare, data, command)
    )
    show(*(f"written: {path}" for path in paths))
    return 0 if rare.holds and all(row.holds for row in sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
