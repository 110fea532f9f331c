"""Cases in processes of their own, which are watched for hangs, signals and memory."""

import multiprocessing
import os
import random
import resource
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

MOST_BYTES = 2 * 10**9
"""Memory that a process may take."""

_ADDRESSES = 16 << 30
"""Addresses that a process may reserve, so that a case that wants all memory ends by itself."""

_TIMEOUT_S = 120.0
"""Longest case; a machine that is busy with other things is no hang."""


_UNEXPECTED = "please report"
"""Part of an error that says that the fault is not the user's."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that did not end as it should."""

    seed: int
    kind: str
    problem: str
    """Its last line of a traceback, `hang`, or the signal."""


@dataclass(slots=True)
class Outcome:
    """Results of all cases."""

    cases: Counter[str] = field(default_factory=Counter)
    """Cases by kind."""

    refused: Counter[str] = field(default_factory=Counter)
    """Those that ended in an error of ours."""

    failures: list[Failure] = field(default_factory=list)
    peak_bytes: int = 0
    """Largest resident memory of any process."""

    seconds: float = 0.0


def kind_of(seed: int) -> str:
    """Return the kind of a case."""
    from benchmarks.fuzz.targets import KINDS

    shares = [kind.share for kind in KINDS.values()]
    return random.Random(seed).choices(list(KINDS), shares)[0]  # noqa: S311


def run_case(seed: int, kind: str, folder: Path) -> bool:
    """Write and read a case; the same seed gives the same case.

    Returns:
        True if it was refused by an error of ours that blames the input.

    Raises:
        Exception: Anything else, which is a failure.
    """
    from benchmarks.fuzz.targets import KINDS
    from tts_compress.errors import TTSCompressError
    from tts_compress.terminal import tell

    dice = random.Random(seed)  # noqa: S311
    KINDS[kind].write(folder, dice)
    try:
        KINDS[kind].read(folder, dice)
    except TTSCompressError as error:
        if _UNEXPECTED in str(error):
            raise
        tell(str(error))
        return True
    return False


def fuzz(seeds: Sequence[int], kinds: Sequence[str] = (), *, jobs: int = 2) -> Outcome:
    """Run cases and return their results.

    Args:
        seeds: One number for each case.
        kinds: The kind of each; by default the one that `kind_of` gives.
        jobs: Processes at a time.
    """
    begun, outcome = time.monotonic(), Outcome()
    cases = iter(zip(seeds, kinds or map(kind_of, seeds), strict=True))
    with TemporaryDirectory(prefix="fuzz-") as folder:
        workers = [_Worker(folder) for _ in range(min(jobs, len(seeds)))]
        try:
            while running := _busy(workers, cases, outcome):
                for worker in _finished(running):
                    worker.end(outcome)
        finally:
            for worker in workers:
                worker.close()
    outcome.seconds = time.monotonic() - begun
    return outcome


def _busy(
    workers: list["_Worker"], cases: Iterator[tuple[int, str]], outcome: Outcome
) -> list["_Worker"]:
    """Give a case to each idle worker while there are some; return those that have one."""
    for worker in workers:
        if not worker.case and (case := next(cases, None)) is not None:
            worker.begin(case)
            outcome.cases[case[1]] += 1
    return [worker for worker in workers if worker.case]


class _Worker:
    """A process that runs one case after the other, with its temporary files in a folder."""

    def __init__(self, folder: str) -> None:
        self.case: tuple[int, str] | None = None
        self._folder = folder
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._folder), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, case: tuple[int, str]) -> None:
        """Send a case."""
        self.case, self.since = case, time.monotonic()
        with suppress(OSError):  # it died; `end` tells
            self.pipe.send(case)

    @property
    def is_late(self) -> bool:
        """True if the case takes too long."""
        return time.monotonic() - self.since > _TIMEOUT_S

    def end(self, outcome: Outcome) -> None:
        """Take the result of the case, or what ended the process."""
        assert self.case is not None
        seed, kind = self.case
        self.case = None
        try:
            if not self.pipe.poll():
                raise EOFError
            refused, problem, peak = self.pipe.recv()
        except (EOFError, OSError):
            late = self._process.is_alive() and self.is_late
            if late:
                self._process.kill()
            self._process.join()
            problem = "hang" if late else f"ended with {self._process.exitcode}"
            outcome.failures.append(Failure(seed, kind, problem))
            self.pipe.close()
            self._start()
            return
        outcome.peak_bytes = max(outcome.peak_bytes, peak)
        outcome.refused[kind] += refused
        if problem is None and peak > MOST_BYTES:
            problem = f"{peak / 1e9:.2f} GB"
        if problem is not None:
            outcome.failures.append(Failure(seed, kind, problem))

    def close(self) -> None:
        """End the process."""
        with suppress(OSError):
            self.pipe.send(None)
        self._process.join(5)
        self._process.kill()


def _finished(workers: list[_Worker]) -> Iterator[_Worker]:
    """Yield workers that answered, ended or are late, once there are some."""
    pipes: dict[Any, _Worker] = {worker.pipe: worker for worker in workers}
    while pipes:
        ready = [pipes[pipe] for pipe in wait(list(pipes), timeout=0.5)]
        ready += [worker for worker in workers if worker.is_late and worker not in ready]
        if ready:
            yield from ready
            return


def _serve(pipe: "Connection[Any, Any]", folder: str) -> None:
    """Run the cases that come through a pipe, without a word to the terminal."""
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    warnings.simplefilter("ignore")
    while (case := pipe.recv()) is not None:
        refused, problem = False, None
        _reset_peak()
        with TemporaryDirectory(prefix="case-") as place:
            try:
                refused = run_case(case[0], case[1], Path(place))
            except BaseException as error:
                frames = traceback.extract_tb(error.__traceback__)
                ours = [f for f in frames if "tts_compress" in f.filename] or frames
                line = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
                problem = f"{type(error).__name__} at {line}: {str(error)[:150]!r}"
        pipe.send((refused, problem, _peak_bytes()))


def _reset_peak() -> None:
    """Let the kernel measure the peak anew, where it allows that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def _peak_bytes() -> int:
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
