"""Ends of the program: signals, closed pipes, and errors that nobody expected."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tts_compress.cli import evaluate, main, quantize, schemes, sweep
from tts_compress.cli.command import Output

_Run = Callable[[Callable[[], object]], int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[_Run]:
    """Return a function that runs the program with a command's work replaced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Tests that a shell started in the background ignore SIGINT, and so would the program.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def run_with(work: Callable[[], object]) -> int:
        def run_command(options: object) -> Output:
            del options
            work()
            return Output({}, [])

        monkeypatch.setattr(schemes, "run", run_command)
        return main(["schemes"])

    yield run_with
    signal.signal(signal.SIGINT, before)


def test_an_ignored_interrupt_stays_ignored(run: _Run) -> None:
    """As of a job in the background: the keys are meant for the one in front."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert run(lambda: os.kill(os.getpid(), signal.SIGINT)) == 0


def _divide() -> None:
    _ = 1 // 0


def test_an_internal_error_is_one_line_that_asks_for_a_report(
    run: _Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It was exit code 1, that of a gate that failed, after a traceback."""
    assert run(_divide) == 70
    [line] = capsys.readouterr().err.splitlines()
    assert "internal error: ZeroDivisionError: integer division" in line
    [kept] = (tmp_path / "tts-compress" / "errors").iterdir()
    assert str(kept) in line
    assert "/issues" in line
    assert "in _divide" in kept.read_text(encoding="utf-8")


def test_a_variable_prints_the_traceback(
    run: _Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTS_COMPRESS_DEBUG", "1")
    assert run(_divide) == 70
    assert "in _divide" in capsys.readouterr().err


def test_an_error_that_cannot_be_kept_says_how_to_see_it(
    run: _Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tts-compress").touch()
    assert run(_divide) == 70
    assert "TTS_COMPRESS_DEBUG=1" in capsys.readouterr().err


def _no_space() -> None:
    raise OSError(28, os.strerror(28), "x.wav")


def _no_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("work", "code", "says"),
    [
        (_no_space, 2, "No space left on device: 'x.wav'"),
        (_no_memory, 70, "not enough memory"),
        (lambda: os.kill(os.getpid(), signal.SIGINT), 130, "interrupted; a new run begins from"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), 143, "terminated; a new run begins from"),
    ],
)
def test_other_ends_are_one_line_too(
    run: _Run,
    capsys: pytest.CaptureFixture[str],
    work: Callable[[], object],
    code: int,
    says: str,
) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert run(work) == code
    [line] = capsys.readouterr().err.splitlines()
    assert says in line
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("argument", ["schemes", "--help"])
def test_output_that_nobody_reads_is_no_error(argument: str) -> None:
    """As of `tts-compress schemes | head -1`; rich made it exit code 1."""
    command = [sys.executable, "-m", "tts_compress.cli", argument]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
    assert program.returncode == 0


@pytest.mark.parametrize(
    ("module", "arguments", "says"),
    [
        (quantize, ["quantize", "demo", "--output", "out"], "a new run begins from the start"),
        (evaluate, ["evaluate", "a", "b", "--output", "out"], "run it again to go on"),
        (sweep, ["sweep", "plan.toml"], "run it again to go on"),
    ],
)
def test_only_what_goes_on_says_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    module: ModuleType,
    arguments: list[str],
    says: str,
) -> None:
    """`quantize` begins from zero, and said "run it again to go on" like the others."""

    def interrupted(_: object) -> Output:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run", interrupted)
    assert main(arguments) == 130
    assert capsys.readouterr().err == f"tts-compress: interrupted; {says}\n"


_STEPS = """
import sys
from tts_compress.cli import main, schemes
from tts_compress.cli.command import Output
schemes.run = lambda _: Output({"limit": "\u2265 20 \xe9 \U0001f600"}, ["limit \u2265 20"])
sys.exit(main(sys.argv[1:]))
"""
"""The program, with a command whose result has characters that few encodings have."""


def _run_steps(redirections: str, *arguments: str, encoding: str = "utf-8") -> tuple[int, str, str]:
    command = f'exec "$0" -c "$STEPS" "$@" {redirections}'
    done = subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, *arguments],
        env=os.environ | {"STEPS": _STEPS, "PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_encoding_that_lacks_a_character_fails_nothing() -> None:
    """A gate that passed failed the build where standard output was no UTF-8, as in Windows' pipes.

    It was an internal error, when the work was done.
    """
    assert _run_steps("", "schemes", encoding="cp1252") == (0, "limit \\u2265 20\n", "")
    code, printed, _ = _run_steps("", "schemes", "--json", encoding="ascii")
    assert code == 0
    assert json.loads(printed) == {"limit": "\u2265 20 \xe9 \U0001f600"}


@pytest.mark.slow
def test_closed_streams_are_no_error() -> None:
    """Without standard output it was an AttributeError; without standard error, errors went to it.

    With all three closed files of the work got their numbers, and `synthesize` wrote none.
    """
    assert _run_steps(">&-", "schemes") == (0, "", "")
    assert _run_steps("2>&-", "gate", "/nowhere") == (2, "", "")
    assert _run_steps("<&- >&- 2>&-", "schemes") == (0, "", "")
