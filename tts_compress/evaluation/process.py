"""A worker process and the conversation with it: one JSON line each way."""

import json
import os
import queue
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import Any, Literal

from tts_compress.errors import EvaluationError, MissingExtraError, TextError, TTSCompressError

WORKER = (sys.executable, "-P", "-m", "tts_compress.evaluation.worker")
"""Without the current directory on the path: a file there must not stand in for a package."""

# Every numerical library has its own idea of how many threads to start.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Settings of worker processes."""

    threads: int = 1
    timeout_s: float = 600.0
    """Limit for one response, and for loading a model."""

    command: tuple[str, ...] = WORKER
    """The program; another environment's Python runs a system whose packages clash with ours."""


def _environment(threads: int) -> dict[str, str]:
    """Return the variables a worker gets."""
    found = dict(os.environ) | dict.fromkeys(_THREAD_VARIABLES, str(threads))
    # F5-TTS writes the seed of each text there, which may be too large for Python to start with.
    found.pop("PYTHONHASHSEED", None)
    return found


class Worker:
    """A process that runs one model or one recognizer; a context manager.

    Args:
        kind: Kind of its content.
        name: A model spec or a recognizer's name.
        options: Settings of the process.
        shown: Name in messages; by default `name`.

    Raises:
        EvaluationError: It did not start, died, or did not respond in time.
    """

    def __init__(
        self,
        kind: Literal["model", "recognizer"],
        name: str,
        options: WorkerOptions,
        *,
        shown: str | None = None,
    ) -> None:
        self._title = f"{kind} '{shown or name}'"
        self._timeout_s = options.timeout_s
        # A file takes any amount of chatter; a pipe nobody reads would block the worker.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        try:
            self._process = subprocess.Popen(
                [*options.command, kind, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                env=_environment(options.threads),
                encoding="utf-8",
            )
        except OSError as error:
            self._stderr.close()
            raise EvaluationError(f"cannot start a worker for {self._title}: {error}") from error
        Thread(target=self._read, daemon=True).start()
        try:
            self._answer("load")
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Return the worker's response to a request.

        Raises:
            TextError: A text cannot be spoken.
            EvaluationError: The request failed, or the worker died or did not respond in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._died(do) from None
        return self._answer(do)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        # The reader is at the end of its pipe now, so nobody uses it while it is closed.
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue  # a request that a dead worker never read

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        """Pass lines on as they come; None at the end. Runs in a thread of its own."""
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line)
        finally:
            self._lines.put(None)

    def _answer(self, do: str) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=self._timeout_s)
        except queue.Empty:
            self._process.kill()
            message = f"{self._title} did not answer '{do}' within {self._timeout_s:g} s"
            raise EvaluationError(f"{message}; it was stopped") from None
        if line is None:
            raise self._died(do)
        answer = json.loads(line)
        if "error" in answer:
            raise _as_error(answer["error"], self._title)
        found: dict[str, Any] = answer["ok"]
        return found

    def _died(self, do: str) -> EvaluationError:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it only closed its end
            self._process.kill()
            code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return EvaluationError(f"the process of {self._title} {how} during '{do}'; it said: {last}")


def _as_error(error: dict[str, str], title: str) -> TTSCompressError:
    message = f"{title}: {error['message']}"
    if error["kind"] == "MissingExtraError":
        # Its constructor takes other arguments than a message.
        missing = MissingExtraError.__new__(MissingExtraError)
        Exception.__init__(missing, message)
        return missing
    return TextError(message) if error["kind"] == "TextError" else EvaluationError(message)
