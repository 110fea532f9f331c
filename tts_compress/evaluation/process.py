"""Worker processes of evaluations and sweeps."""

import os
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Any, Literal, Protocol

from tts_compress.errors import EvaluationError, MissingExtraError, TextError, TTSCompressError
from tts_compress.processes import Child, ChildEndedError

# Every numerical library has its own idea of how many threads to start.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# Huge pages: PocketSphinx reads its lexical tree and language model in no order, and takes 0.86 of
# the processor time (three turns of twelve audios). Other C libraries than glibc ignore this.
_OF_RECOGNIZERS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

_ERRORS: Mapping[str, type[TTSCompressError]] = {
    "TextError": TextError,
    "MissingExtraError": MissingExtraError,
}
"""Errors of a worker that keep their kind."""


def _environment(kind: str, threads: int) -> dict[str, str]:
    """Return the variables a worker gets."""
    variables = dict(os.environ) | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    if kind == "recognizer":
        variables = _OF_RECOGNIZERS | variables
    # F5-TTS writes the seed of each text there, which may be too large for Python to start with.
    variables.pop("PYTHONHASHSEED", None)
    return variables


class WorkerSettings(Protocol):
    """Settings of worker processes, as `EvaluationOptions` has them."""

    @property
    def worker(self) -> tuple[str, ...]:
        """The program and its first arguments."""

    @property
    def threads(self) -> int:
        """Threads of each numerical library."""

    @property
    def timeout_s(self) -> float:
        """Longest time for an answer."""


class Worker:
    """A process that runs one model, graph or recognizer; a context manager.

    Args:
        kind: Kind of its content.
        name: A model spec, a graph's file, a recognizer's name and model, or the name of a
            measure or of a sweep.
        options: Settings of the process.
        shown: Name in messages; by default `name`.
        setting: Language of the texts for a recognizer; as JSON where a model computes, and the
            settings of a measure.

    Raises:
        EvaluationError: It did not start, died, or did not respond in time.
    """

    def __init__(
        self,
        kind: Literal["model", "graph", "recognizer", "measure", "sweep"],
        name: str,
        options: WorkerSettings,
        *,
        shown: str | None = None,
        setting: str | None = None,
    ) -> None:
        self._title = f"{kind} '{shown or name}'"
        self._timeout_s = options.timeout_s
        # A file takes any amount of chatter; a pipe nobody reads would block the worker.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        command = [*options.worker, kind, name, *([] if setting is None else [setting])]
        try:
            self._process = Child(command, _environment(kind, options.threads), self._stderr)
        except OSError as error:
            self._stderr.close()
            raise EvaluationError(f"cannot start a worker for {self._title}: {error}") from error
        try:
            self._answer("load", None)
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Return the worker's response to a request; paths are given as text.

        Raises:
            TextError: A text cannot be spoken.
            EvaluationError: The request failed, or the worker died or did not respond in time.
        """
        return self._answer(do, {"do": do, **arguments})

    def close(self) -> None:
        """End the process."""
        self._process.close()
        self._stderr.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, do: str, request: Mapping[str, object] | None) -> dict[str, Any]:
        try:
            answer = self._process.ask(request, self._timeout_s)
        except ChildEndedError as ended:
            raise self._died(do, ended) from None
        if error := answer.get("error"):
            kind = _ERRORS.get(error["kind"], EvaluationError)
            # Not the constructor, which may take other arguments than a message.
            raise kind.__new__(kind, f"{self._title}: {error['message']}")
        content: dict[str, Any] = answer["ok"]
        return content

    def _died(self, do: str, ended: ChildEndedError) -> EvaluationError:
        if ended.late:
            message = f"{self._title} did not answer '{do}' within {self._timeout_s:g} s"
            return EvaluationError(f"{message}; it was stopped")
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return EvaluationError(
            f"the process of {self._title} {ended} during '{do}'; it said: {last}"
        )


def borrow(
    kept: "KeptWorkers | None", key: Hashable, start: Callable[[], Worker]
) -> AbstractContextManager[Worker]:
    """Give a process of some content: a kept one, or a new one that ends with the block."""
    return start() if kept is None else kept.borrow(key, start)


class KeptWorkers:
    """Processes that stay open when their user is done with them; a context manager.

    Args:
        most: Number of idle ones that stay; the one that was used longest ago is ended first.
    """

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._idle: list[tuple[Hashable, Worker]] = []
        self._lock = Lock()

    @contextmanager
    def borrow(self, key: Hashable, start: Callable[[], Worker]) -> Iterator[Worker]:
        """Give an idle process of this content, or a new one; after an error it is ended."""
        with self._lock:
            idle = next((kept for kept in self._idle if kept[0] == key), None)
            if idle is not None:
                self._idle.remove(idle)
        worker = start() if idle is None else idle[1]
        try:
            yield worker
        except BaseException:
            worker.close()
            raise
        with self._lock:
            self._idle.append((key, worker))
            dropped, self._idle = self._idle[: -self._most], self._idle[-self._most :]
        for _, old in dropped:
            old.close()

    def close(self) -> None:
        """End the idle ones."""
        with self._lock:
            dropped, self._idle = self._idle, []
        for _, old in dropped:
            old.close()

    def __enter__(self) -> "KeptWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
