"""Kill commands at random moments, and run them again: nothing half, and the same results.

    python -m benchmarks.kills --moments 30 --seed 0

Each command runs once undisturbed. Then it is killed (SIGKILL) at moments drawn over that time, and
run again to its end. What lies in its output after the kill must be whole or absent, its processes
must be gone, and the second run's result must be the undisturbed one's: the same bytes of an
artifact, the same report but for times.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.command import Add, command
from tests.measures import TIMED
from tts_compress.artifact import read_manifest, sha256_of
from tts_compress.evaluation.result import read_report

_CARD = '[card]\nsummary = "s"\nsource = "s"\nlicence = "s"\ncomposition = "s"\n'
_TEXTS = ("The small boat drifted slowly.", "Nobody answered the door.", "Rain fell all night.")
_SET = f'version = 1\nname = "few"\nlanguage = "en-us"\ntexts = {json.dumps(_TEXTS)}\n{_CARD}'
_SUITE = f"""
version = 1
name = "few"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [0]
utterances = [{{text = "Open the door."}}, {{text = "A cat sat down"}}]
{_CARD}"""
_PLAN = """
version = 1
voices = ["demo"]
schemes = ["fp16"]
suite = "suite.toml"
gates = []
output = "out"
[settings]
timing_runs = 1
timing_texts = 1
"""
_TORCHS = "torchinductor_"
"""torch keeps a folder of this name for all processes of a user."""

_TIMES = TIMED | {"environment"}


@dataclass(frozen=True, slots=True)
class Program:
    """A command line, run in a folder of its own, and its result."""

    arguments: tuple[str, ...]
    result: Callable[[Path], Any]
    """Returns what must be the same every time; fails on what is half written."""


def _artifact(folder: Path) -> dict[str, str] | None:
    place = folder / "out"
    if not place.exists():
        return None
    read_manifest(place)  # checks every file
    return {str(path.relative_to(place)): sha256_of(path) for path in sorted(place.rglob("*"))}


def _report(folder: Path) -> dict[str, Any] | None:
    if not (folder / "out" / "report.json").exists():
        return None
    for name in ("report.md", "report.html"):
        assert (folder / "out" / name).stat().st_size, name
    return read_report(folder / "out").model_dump(mode="json", exclude=_TIMES)


def _sweep(folder: Path) -> list[dict[str, Any]] | None:
    if not (folder / "out" / "sweep.json").exists():
        return None
    json.loads((folder / "out" / "sweep.json").read_text(encoding="utf-8"))
    documents = [read_report(path) for path in sorted(folder.glob("out/reports/*/*"))]
    return [report.model_dump(mode="json", exclude=_TIMES) for report in documents]


COMMANDS = {
    # What `good` chooses depends on times that are measured, so that two whole runs may differ.
    "quantize": Program(
        (
            *("quantize", "demo", "--calibration", "set.toml", "--output", "out", "--no-time"),
            *("--quality", "fast"),
        ),
        _artifact,
    ),
    "evaluate": Program(
        ("evaluate", "demo", "small", "--suite", "suite.toml", "--output", "out"), _report
    ),
    "qat": Program(
        ("qat", "demo", "--texts", "set.toml", "--output", "out", "--steps", "10"), _artifact
    ),
    "sweep": Program(("sweep", "plan.toml", "--workers", "2"), _sweep),
}


class Place:
    """A new folder with everything that a command needs, and nothing of others."""

    def __init__(self, folder: Path, small: Path | None = None) -> None:
        self.folder = folder
        self._own = [folder / name for name in ("tmp", "cache")]
        for path in (folder, *self._own):
            path.mkdir()
        for name, content in (("set", _SET), ("suite", _SUITE), ("plan", _PLAN)):
            (folder / f"{name}.toml").write_text(content, encoding="utf-8")
        if small is not None:
            (folder / "small").symlink_to(small)

    def start(self, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
        """Start a command, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "tts_compress.cli", *arguments],
            cwd=self.folder,
            env=os.environ
            | {"TMPDIR": str(self._own[0]), "XDG_CACHE_HOME": str(self._own[1])}
            | {"PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, arguments: tuple[str, ...]) -> float:
        """Run a command to its end; return the seconds."""
        start = time.monotonic()
        process = self.start(arguments)
        _, said = process.communicate(timeout=3600)
        assert process.returncode == 0, f"{arguments}: exit code {process.returncode}: {said}"
        return time.monotonic() - start

    def leftovers(self) -> list[str]:
        """Return the temporary folders, which finished commands must not leave."""
        paths = [p for p in self._own[0].iterdir() if not p.name.startswith(_TORCHS)]
        paths += self.folder.rglob(".tts-compress-temporary-*")
        return [str(path.relative_to(self.folder)) for path in paths]


def kill_and_resume(place: Place, command: Program, after_s: float, expected: object) -> str:
    """Kill a command after some seconds, and run it again; return how far it had come."""
    process = place.start(command.arguments)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    os.kill(process.pid, signal.SIGKILL) if process.poll() is None else None
    process.communicate()
    deadline = time.monotonic() + 5.0  # of a busy machine
    while alive := [*_session(process.pid)]:
        assert time.monotonic() < deadline, f"processes outlived it: {alive}"
        time.sleep(0.01)
    remains = command.result(place.folder)
    assert remains in (None, expected), "what it left is neither nothing nor the whole"
    if remains is not None:
        return "done"
    place.finish(command.arguments)
    assert command.result(place.folder) == expected, "the second run ends with another result"
    assert not place.leftovers(), place.leftovers()
    return "resumed"


def _session(leader: int) -> Iterator[str]:
    """Yield the processes of a session that still run."""
    command = [shutil.which("ps") or "ps", "-eo", "pid=,sid=,stat=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        _, session, state, _ = line.split(None, 3)
        if int(session) == leader and not state.startswith("Z"):
            yield line.strip()


def run(names: list[str], moments: int, seed: int, folder: Path) -> int:
    """Kill each command at its share of the moments; return the number of failures."""
    failures = 0
    chance = np.random.default_rng(seed)
    small = None
    if "evaluate" in names:
        first = Place(folder / "small")
        first.finish(COMMANDS["quantize"].arguments)
        small = first.folder / "out"
    for index, name in enumerate(names):
        command = COMMANDS[name]
        whole = Place(folder / name, small)
        seconds = whole.finish(command.arguments)
        expected = command.result(whole.folder)
        assert expected is not None, f"{name} made nothing"
        print(f"{name}: {seconds:.1f} s undisturbed; leftovers: {whole.leftovers() or 'none'}")
        for number in range(moments // len(names) + (index < moments % len(names))):
            after_s = chance.uniform(0, seconds)
            there = Place(folder / f"{name}-{number}", small)
            try:
                how = kill_and_resume(there, command, after_s, expected)
            except AssertionError as error:
                failures += 1
                how = f"FAILED: {error}"
            print(f"{name}: killed after {after_s:.2f} s: {how}", flush=True)
            shutil.rmtree(there.folder, ignore_errors=True)
    return failures


def _options(add: Add) -> None:
    add("--moments", type=int, default=30)
    add("--seed", type=int, default=0)
    add("--commands", nargs="+", choices=[*COMMANDS], default=[*COMMANDS])


@command("benchmarks.kills", _options, label="kills")
def main(options: Namespace) -> int:
    """Kill commands at random moments, and run them again."""
    with TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        failures = run(options.commands, options.moments, options.seed, Path(folder))
    print(f"{options.moments} kills, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
