"""Commands in processes of their own, with odd locales and streams."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz.files import REPORT
from benchmarks.fuzz.graphs import bare_graph
from benchmarks.fuzz.mutate import Kind

_COMMANDS: tuple[tuple[int, tuple[str, ...]], ...] = (
    (0, ("schemes",)),
    (0, ("--help",)),
    (0, ("gate", str(REPORT))),
    (0, ("gate", str(REPORT), "--json")),
    (1, ("gate", str(REPORT), "--gates", "hard.toml")),
    (0, ("inspect", "onnx:größe.onnx")),
    (0, ("quantize", "onnx:größe.onnx", "--scheme", "int8-weight-only", "--output", "out")),
    (2, ("inspect", "nöthing → \x1b[2J.onnx")),
    (2, ("quantise",)),
)
"""Exit codes, and commands that take no longer than their imports."""

_HARD = """version = 1
name = "hard"
summary = "more than anything can be"
[[gate]]
metric = "size.ratio"
limit = 100
direction = "at-least"
kind = "absolute"
"""

_VARIABLES: dict[str, tuple[str, ...]] = {
    "PYTHONIOENCODING": ("ascii", "cp1252", "latin-1", "cp437", "utf-8", "ascii:strict", "utf-16"),
    "LC_ALL": ("C", "POSIX", "C.UTF-8", "de_DE.ISO-8859-1", "", "nowhere"),
    "PYTHONUTF8": ("0", "1"),
    "PYTHONCOERCECLOCALE": ("0", "1"),
    "COLUMNS": ("0", "1", "abc", "-5", "9999"),
    "TERM": ("dumb", "", "xterm-256color", "\x1b"),
    "HOME": ("/nonexistent", "relative"),
    "GITHUB_ACTIONS": ("true",),
}

_STREAMS = (
    *(">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&1 >&-"),
    *(">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full", "| true"),
)

_TIMEOUT_S = 100


class EndError(Exception):
    """A command that did not end as it should."""


def _write(folder: Path) -> None:
    (folder / "größe.onnx").write_bytes(bare_graph().SerializeToString())
    (folder / "hard.toml").write_text(_HARD, "utf-8")


def _in_locale(folder: Path, dice: random.Random) -> Iterator[None]:
    """Run a command in an odd environment, which changes neither its end nor its work."""
    _write(folder)
    yield
    code, command = dice.choice(_COMMANDS)
    names = dice.sample(sorted(_VARIABLES), dice.choice((1, 1, 2, 4)))
    odd = {name: dice.choice(_VARIABLES[name]) for name in names}
    # Where a locale has no such letters, manifests cannot hold the name.
    _run(folder, command, {code, 2} if "onnx:größe.onnx" in command else {code}, "", odd)


def _with_streams(folder: Path, dice: random.Random) -> Iterator[None]:
    """Run a command whose streams are closed or full: it may say nothing, but does its work."""
    _write(folder)
    yield
    code, command = dice.choice(_COMMANDS)
    streams = dice.choice(_STREAMS)
    # A pipe nobody reads, or a full disk, is told by the code; a pipe's is that of its reader.
    _run(folder, command, {code, 2, 141} | ({0} if "|" in streams else set()), streams, {})


def _run(
    folder: Path, command: tuple[str, ...], good: set[int], streams: str, odd: dict[str, str]
) -> None:
    script = f'"$@" {streams}'
    process = [sys.executable, "-m", "tts_compress", *command]
    root = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [*("/bin/sh", "-c", script, "sh"), *process],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": root, "XDG_CACHE_HOME": str(folder / "cache"), **odd},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    error = ended.stderr.decode("utf-8", "replace")
    said = f"{streams} {odd} {command}: {ended.returncode}, {error[-200:]!r}"
    if ended.returncode not in good or "Traceback" in error or "Exception ignored" in error:
        raise EndError(said)
    is_done = (folder / "out" / "manifest.json").is_file()
    if command[0] == "quantize" and ended.returncode == 0 and not is_done:
        raise EndError(f"nothing was written, but {said}")


KINDS = {"locale": Kind(0.5, _in_locale), "stream": Kind(0.5, _with_streams)}
