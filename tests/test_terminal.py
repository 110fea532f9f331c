"""Progress on a terminal, and where there is none."""

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tts_compress import progress
from tts_compress.progress import Silent, Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def test_lines_come_every_half_minute_and_at_the_end_of_a_stage(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ten steps of 25 seconds each, the first three of which were done before."""
    lines = progress.Lines()
    for done in range(3, 11):
        lines.advance("recognize", done, 10)
        clock[0] += 25.0
    lines.advance("recognize", 10, 10)  # said twice by some stages
    assert capsys.readouterr().err.splitlines() == [
        "recognize: 5 of 10, 0:02:05 left",
        "recognize: 7 of 10, 0:01:15 left",
        "recognize: 9 of 10, 0:00:25 left",
        "recognize: 10 of 10 in 0:02:55",
    ]


def test_a_caller_of_the_library_sees_lines_where_somebody_looks_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    assert isinstance(progress.default_progress(), Silent)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress.default_progress(), progress.Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    monkeypatch.setitem(sys.modules, "ipykernel", progress)
    assert isinstance(progress.default_progress(), progress.Lines)


def test_a_quick_stage_is_one_line_and_nothing_to_do_is_none(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """So bad input is one line: the error."""
    lines = progress.Lines()
    lines.advance("open", 0, 2)
    assert not capsys.readouterr().err
    clock[0] = 1.0
    lines.advance("open", 2, 2)
    lines.advance("recognize", 4, 4)
    lines.message("a note")
    assert capsys.readouterr().err == "open: 2 of 2 in 0:00:01\na note\n"


def test_a_status_is_on_the_next_line_of_its_stage(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = progress.Lines()
    lines.advance("train", 0, 9)
    lines.status("train", "loss 0.5")
    clock[0] = 31.0
    lines.advance("train", 0, 9)
    assert capsys.readouterr().err == "train: 0 of 9, loss 0.5\n"


def test_time_of_a_stage_is_from_its_first_report_to_its_last(clock: list[float]) -> None:
    """Stages may overlap; what was done before does not count."""
    watch = Stopwatch(Silent())
    for stage, done in (("a", 0), ("b", 2), ("a", 1), ("b", 3), ("b", 9)):
        watch.advance(stage, done, 9)
        clock[0] += 1.0
    assert watch.stages == {"a": (2.0, 1), "b": (3.0, 7)}


def _output_on_a_terminal(command: list[str], folder: Path) -> bytes:
    outer, inner = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdout=inner, stderr=inner, stdin=inner, cwd=folder, env=environment
    ):
        os.close(inner)
        found = b""
        try:
            while read := os.read(outer, 1024):
                found += read
        except OSError:  # the other end was closed
            pass
    os.close(outer)
    return found


def test_the_first_bar_comes_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """On a terminal; how long that takes is the machine's."""
    script = """
        import sys
        from tts_compress import terminal
        from tts_compress.cli import main
        advance = terminal.Bars.advance
        def first(bars, *step):
            advance(bars, *step)
            loaded = {"numpy", "onnxruntime", "pydantic", "jinja2"} & sys.modules.keys()
            raise SystemExit(f"at {step} with {sorted(loaded)}")
        terminal.Bars.advance = first
        main(["evaluate", "a", "b", "--output", "o"])
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    said = _output_on_a_terminal(command, tmp_path).decode()
    assert "at ('open', 0, 3) with []" in said
    assert "open" in said.partition("at (")[0]
