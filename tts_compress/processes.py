"""Child processes that respond to JSON lines, and end with the process that started them.

A child reads one JSON request a line from standard input, and responds to each with one JSON line:
`{"ok": …}` or `{"error": {"kind": …, "message": …}}`. The first line it writes states that it is
ready. It ends when its input does, or at once when its parent ends, however that was killed.
"""

import json
import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread, Timer
from time import monotonic
from typing import IO, Any, TypeAlias

from tts_compress.errors import TTSCompressError

Answer: TypeAlias = dict[str, Any]

_PARENT = "TTS_COMPRESS_PARENT"
"""Variable with the file descriptor of a pipe to which the parent alone has the other end."""


class ChildEndedError(Exception):
    """A child ended, or was ended because it did not respond in time."""

    def __init__(self, code: int, *, late: bool) -> None:
        self.code = code
        self.late = late
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        super().__init__(how)


class Child:
    """A child process and the conversation with it; not for several threads at a time.

    Args:
        command: The program, which calls `serve`, and its arguments.
        environment: Its variables; by default this process's.
        stderr: File that takes what it prints to standard error; None drops that.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        stderr: IO[bytes] | None = None,
    ) -> None:
        variables, passed = dict(os.environ if environment is None else environment), []
        if os.name == "posix":
            passed = [*os.pipe()]
            variables[_PARENT] = str(passed[0])
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if stderr is None else stderr,
                env=variables,
                encoding="utf-8",
                pass_fds=passed[:1],
            )
        except BaseException:
            for descriptor in passed:
                os.close(descriptor)
            raise
        for descriptor in passed[:1]:
            _kill_when_closed(descriptor, self._process.pid)  # also while it still imports
            os.close(descriptor)
        # Also when this object is forgotten, or Python ends.
        self._end = weakref.finalize(self, _end, self._process, passed[1:], os.getpid())

    def ask(self, request: Mapping[str, object] | None, timeout_s: float) -> Answer:
        """Return the response to a request; for None, the first line: that it is ready."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if request is not None:
            with suppress(OSError):  # it ended, which reading tells, too
                self._process.stdin.write(json.dumps(request, default=str) + "\n")
                self._process.stdin.flush()
        start = monotonic()
        limit = Timer(timeout_s, self._process.kill)
        limit.daemon = True
        limit.start()
        try:
            line = self._process.stdout.readline()  # returns when the process ends at the latest
        finally:
            limit.cancel()
        if not line:
            late = monotonic() - start >= timeout_s
            raise ChildEndedError(self._code(), late=late)
        answer: Answer = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._end()

    def _code(self) -> int:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it only closed its end
            self._process.kill()
            return self._process.wait()


def _end(process: "subprocess.Popen[str]", pipes: Sequence[int], owner: int) -> None:
    for descriptor in pipes:
        os.close(descriptor)
    if owner == os.getpid():  # a fork ends nothing of its parent's
        with suppress(OSError), process:  # OSError: a request that a dead child never read
            process.kill()


def serve(open_host: Callable[[], object]) -> None:
    """Respond to requests on standard input by an object's methods, which they name in `do`.

    Args:
        open_host: Returns the object; the first response says whether that worked.
    """
    end_with_parent()
    # An interrupt at the terminal reaches all processes of a command; the parent ends this one.
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for responses alone; what libraries print goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def reply(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        host = open_host()
    except Exception as error:
        reply(_describe(error))
        return
    reply({"ok": {}})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply({"ok": getattr(host, request.pop("do"))(**request)})
        except Exception as error:
            reply(_describe(error))


def end_with_parent() -> None:
    """Have this process killed as soon as the one that started it as a `Child` ends."""
    stated = os.environ.pop(_PARENT, "")
    if not stated:
        return
    pipe = int(stated)
    os.set_inheritable(pipe, False)
    if _kill_when_closed(pipe, os.getpid()):
        if select.select([pipe], [], [], 0)[0]:  # it ended before
            os._exit(1)
        return

    def wait() -> None:
        os.read(pipe, 1)  # nothing is ever written: it returns when the other end is closed
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def peak_bytes() -> int:
    """Return the largest resident memory of this process so far; 0 where it cannot be asked for."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, kibibytes elsewhere; on Linux it begins with that of the process that started
    # this one.
    return status_bytes("VmHWM") or (peak if sys.platform == "darwin" else peak * 1024)


def status_bytes(field: str) -> int:
    """Return a field of Linux's own account of this process; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(values[0]) * 1024 if values else 0


def _kill_when_closed(pipe: int, process: int) -> bool:
    """Have the kernel kill a process when the other end of a pipe is closed; False if it cannot.

    PR_SET_PDEATHSIG would kill it when the *thread* ends that started it.
    """
    if sys.platform != "linux":
        return False
    import fcntl

    fcntl.fcntl(pipe, fcntl.F_SETOWN, process)
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    return True


def _describe(error: Exception) -> Answer:
    kind, message = type(error).__name__, str(error)
    if not isinstance(error, TTSCompressError):
        kind, message = "unknown", f"{kind}: {message}"
    return {"error": {"kind": kind, "message": message}}
