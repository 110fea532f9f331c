"""Child processes: conversation, and an end together with the parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tts_compress.processes import Child, ChildEndedError, peak_bytes

_CHILD = """
import os, signal, sys
from tts_compress.processes import serve

class Host:
    def add(self, a, b):
        return {"sum": a + b}
    def fail(self):
        raise ValueError("no")
    def work(self):
        sum(range(10**10))  # one call in C: no other thread of Python runs
    def die(self):
        os.kill(os.getpid(), signal.SIGSEGV)
    def interrupt(self):
        os.kill(os.getpid(), signal.SIGINT)
        return {}

serve(Host)
"""
_COMMAND = (sys.executable, "-c", _CHILD)


def test_a_child_responds_to_each_request() -> None:
    child = Child(_COMMAND)
    assert child.ask(None, 60) == {"ok": {}}
    assert child.ask({"do": "add", "a": 1, "b": 2}, 60) == {"ok": {"sum": 3}}
    problem = {"kind": "unknown", "message": "ValueError: no"}
    assert child.ask({"do": "fail"}, 60) == {"error": problem}
    assert child.ask({"do": "interrupt"}, 60) == {"ok": {}}  # the parent decides
    child.close()


@pytest.mark.parametrize(
    ("do", "timeout_s", "code", "late"),
    [("die", 60, -signal.SIGSEGV, False), ("work", 0.2, -signal.SIGKILL, True)],
)
def test_the_end_of_a_child_tells_how(do: str, timeout_s: float, code: int, late: bool) -> None:
    child = Child(_COMMAND)
    child.ask(None, 60)
    with pytest.raises(ChildEndedError, match="was killed by signal") as ended:
        child.ask({"do": do}, timeout_s)
    assert (ended.value.code, ended.value.late) == (code, late)
    child.close()


def test_memory_is_unknown_on_a_system_without_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where an evaluation ended with `No module named 'resource'`."""
    assert peak_bytes() > 10_000_000
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_bytes() == 0


def test_a_child_ends_at_once_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Also in the middle of work, and when the thread that started it has ended long before."""
    number = tmp_path / "child"
    program = f"""
        import threading
        from pathlib import Path
        from tts_compress.processes import Child
        made = []
        thread = threading.Thread(target=lambda: made.append(Child({_COMMAND!r})))
        thread.start(), thread.join()
        made[0].ask(None, 60)
        Path({str(number)!r}).write_text(str(made[0]._process.pid))
        made[0].ask({{"do": "work"}}, 600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", "\n".join(map(str.strip, program.split("\n")))]
    )
    deadline = time.monotonic() + 60
    while not (number.exists() and number.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int(number.read_text())
    time.sleep(0.1)
    assert _runs(child)
    parent.kill()
    parent.wait()
    while _runs(child):  # otherwise it would work for minutes
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread of the child does it")
def test_a_child_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    """A host of a sweep imports for seconds before it listens to anything."""
    number = tmp_path / "child"
    program = f"""
import os, signal, sys
from pathlib import Path
from tts_compress.processes import Child
child = Child([sys.executable, "-c", "import time; time.sleep(600)"])
Path({str(number)!r}).write_text(str(child._process.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False)
    deadline = time.monotonic() + 60
    while _runs(int(number.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")
    return not (state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z")
