"""Cases in processes of their own, which are watched for hangs, signals and memory."""

import os
import random
import resource
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.fuzz import files, graphs, modules, operators, records, shell, voices
from benchmarks.fuzz.mutate import Kind
from tts_compress.errors import TTSCompressError
from tts_compress.processes import Answer, Child, ChildEndedError, peak_bytes, serve
from tts_compress.terminal import tell

MOST_BYTES = 2 * 10**9

_ADDRESSES = 16 << 30
"""Addresses that a process may reserve, so that a case that wants all memory ends by itself."""

_TIMEOUT_S = 120.0
"""Longest case; a machine that is busy with other things is no hang."""

_UNEXPECTED = "please report"
"""Part of an error that says that the fault is not the user's."""


KINDS: Mapping[str, Kind] = {
    name: kind
    for module in (graphs, operators, modules, voices, records, shell, files)
    for name, kind in module.KINDS.items()
}


class Failure(NamedTuple):
    """A case that did not end as it should."""

    seed: int
    kind: str
    problem: str
    """Its last line of a traceback, `hang`, or the signal."""


@dataclass(slots=True)
class Outcome:
    """Results of all cases."""

    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    peak_bytes: int = 0


def kind_of(seed: int) -> str:
    """Return the kind of a case."""
    shares = [kind.share for kind in KINDS.values()]
    return random.Random(seed).choices(list(KINDS), shares)[0]  # noqa: S311


def run_case(seed: int, kind: str, folder: Path) -> bool:
    """Write and read a case; return True if an error of ours blamed the input."""
    dice = random.Random(seed)  # noqa: S311
    case = KINDS[kind].case(folder, dice)
    next(case)
    try:
        next(case, None)
    except TTSCompressError as error:
        if _UNEXPECTED in str(error):
            raise
        tell(str(error))
        return True
    return False


def fuzz(seeds: Sequence[int], kinds: Sequence[str] = (), *, jobs: int = 2) -> Outcome:
    """Run a case for each seed, of the kinds that `kind_of` gives by default."""
    outcome = Outcome()
    kinds = kinds or [kind_of(seed) for seed in seeds]
    idle: SimpleQueue[_Watched] = SimpleQueue()

    def run(seed: int, kind: str) -> Answer:
        watched = idle.get()
        try:
            return watched.run(seed, kind)
        finally:
            idle.put(watched)

    with TemporaryDirectory(prefix="fuzz-") as folder, ThreadPoolExecutor(jobs) as pool:
        for _ in range(jobs):
            idle.put(_Watched(folder))
        for seed, kind, result in zip(seeds, kinds, pool.map(run, seeds, kinds), strict=True):
            outcome.cases[kind] += 1
            outcome.refused[kind] += result["refused"]
            outcome.peak_bytes = max(outcome.peak_bytes, result["peak_bytes"])
            problem = result["problem"]
            if problem is None and result["peak_bytes"] > MOST_BYTES:
                problem = f"{result['peak_bytes'] / 1e9:.2f} GB"
            if problem is not None:
                outcome.failures.append(Failure(seed, kind, problem))
        for _ in range(jobs):
            idle.get().close()
    return outcome


class _Watched:
    """A process that runs one case after the other, with its temporary files in a folder."""

    def __init__(self, folder: str) -> None:
        self._command = [sys.executable, "-m", "benchmarks.fuzz.run", folder]
        self._child: Child | None = None

    def run(self, seed: int, kind: str) -> Answer:
        """Return the result of a case, or what ended the process."""
        try:
            if self._child is None:
                self._child = Child(self._command)
                self._child.ask(None, _TIMEOUT_S)
            request = {"do": "run", "seed": seed, "kind": kind}
            answer: Answer = self._child.ask(request, _TIMEOUT_S)["ok"]
        except ChildEndedError as error:
            self.close()
            problem = "hang" if error.late else f"ended with {error.code}"
            return {"refused": False, "problem": problem, "peak_bytes": 0}
        return answer

    def close(self) -> None:
        """End the process; the next case starts another one."""
        if self._child is not None:
            self._child.close()
        self._child = None


class _Host:
    """Runs cases in this process, without a word to the terminal."""

    def __init__(self, folder: str) -> None:
        tempfile.tempdir = os.environ["TMPDIR"] = folder
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        warnings.simplefilter("ignore")

    def run(self, seed: int, kind: str) -> Answer:
        """Run a case; return what went wrong, if anything did, and the peak of memory."""
        refused, problem = False, None
        with suppress(OSError):  # the kernel measures the peak anew, where it allows that
            Path("/proc/self/clear_refs").write_text("5", "ascii")
        with TemporaryDirectory(prefix="case-") as place:
            try:
                refused = run_case(seed, kind, Path(place))
            except BaseException as error:
                frames = traceback.extract_tb(error.__traceback__)
                ours = [f for f in frames if "tts_compress" in f.filename] or frames
                line = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
                problem = f"{type(error).__name__} at {line}: {str(error)[:150]!r}"
        return {"refused": refused, "problem": problem, "peak_bytes": peak_bytes()}


if __name__ == "__main__":
    serve(partial(_Host, sys.argv[1]))
