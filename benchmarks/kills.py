"""Kill commands at random moments, and run them again: nothing half, and the same results.

What lies in the output after SIGKILL must be whole or absent, the processes gone, and the second
run's result that of an undisturbed one: the same bytes, the same report but for times.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
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
_FILES = {
    "set.toml": f"""
version = 1
name = "few"
language = "en-us"
texts = {json.dumps(_TEXTS)}
{_CARD}""",
    "suite.toml": f"""
version = 1
name = "few"
language = "en-us"
recognizer = "pocketsphinx"
normalizer = "en-v1"
seeds = [0]
utterances = [{{text = "Open the door."}}, {{text = "A cat sat down"}}]
{_CARD}""",
    "plan.toml": """
version = 1
voices = ["demo"]
schemes = ["fp16"]
suite = "suite.toml"
gates = []
output = "out"
[settings]
timing_runs = 1
timing_texts = 1
""",
}


def _artifact(out: Path) -> Any:
    if not out.exists():
        return None
    read_manifest(out)  # checks every file
    return {str(path.relative_to(out)): sha256_of(path) for path in sorted(out.rglob("*"))}


def _report(out: Path) -> Any:
    if not (out / "report.json").exists():
        return None
    for name in ("report.md", "report.html"):
        assert (out / name).stat().st_size, name
    return read_report(out).model_dump(mode="json", exclude=TIMED | {"environment"})


def _sweep(out: Path) -> Any:
    if not (out / "sweep.json").exists():
        return None
    json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    return [_report(path) for path in sorted(out.glob("reports/*/*"))]


COMMANDS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    # What `good` chooses depends on times that are measured, so that two whole runs may differ.
    "quantize": (
        "quantize demo --calibration set.toml --output out --no-time --quality fast",
        _artifact,
    ),
    "evaluate": ("evaluate demo small --suite suite.toml --output out", _report),
    "qat": ("qat demo --texts set.toml --output out --steps 10", _artifact),
    "sweep": ("sweep plan.toml --workers 2", _sweep),
}
"""Command lines, and what returns of their output what must be the same every time: None where
there is nothing yet; it fails on what is half written. The second evaluates what the first made."""


class Place:
    """A new folder with everything that a command needs, and nothing of others."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, (self._words, self._result) = folder, COMMANDS[name]
        for path in (folder, folder / "tmp", folder / "cache"):
            path.mkdir()
        for file, content in _FILES.items():
            (folder / file).write_text(content, encoding="utf-8")
        (folder / "small").symlink_to(folder.with_name("quantize") / "out")

    def start(self) -> "subprocess.Popen[str]":
        """Start the command, in a session of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "tts_compress.cli", *self._words.split()],
            cwd=self.folder,
            env=os.environ
            | {"TMPDIR": str(self.folder / "tmp"), "XDG_CACHE_HOME": str(self.folder / "cache")}
            | {"PYTHONPATH": str(Path(__file__).parents[1])},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self) -> float:
        """Run the command to its end; return the seconds."""
        start = time.monotonic()
        process = self.start()
        _, said = process.communicate(timeout=3600)
        assert process.returncode == 0, f"exit code {process.returncode}: {said}"
        return time.monotonic() - start

    def result(self) -> Any:
        """Return what the command has made."""
        return self._result(self.folder / "out")

    def leftovers(self) -> list[str]:
        """Return the temporary folders, which finished commands must not leave."""
        # torch keeps a folder for all processes of a user.
        paths = [p for p in (self.folder / "tmp").iterdir() if "torchinductor_" not in p.name]
        paths += self.folder.rglob(".tts-compress-temporary-*")
        return [str(path.relative_to(self.folder)) for path in paths]


def _kill_and_resume(place: Place, after_s: float, expected: object) -> str:
    """Kill a command after some seconds, and run it again; return how far it had come."""
    process = place.start()
    with suppress(subprocess.TimeoutExpired):
        process.wait(after_s)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5.0  # of a busy machine
    while alive := [*_session(process.pid)]:
        assert time.monotonic() < deadline, f"processes outlived it: {alive}"
        time.sleep(0.01)
    remains = place.result()
    assert remains in (None, expected), "what it left is neither nothing nor the whole"
    if remains is not None:
        return "done"
    place.finish()
    assert place.result() == expected, "the second run ends with another result"
    assert not place.leftovers(), place.leftovers()
    return "resumed"


def _session(leader: int) -> Iterator[str]:
    command = [shutil.which("ps") or "ps", "-eo", "pid=,sid=,stat=,args="]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        _, session, state, _ = line.split(None, 3)
        if int(session) == leader and not state.startswith("Z"):
            yield line.strip()


def _run(moments: int, seed: int, folder: Path) -> int:
    """Kill each command at its share of the moments; return the number of failures."""
    failures, chance = 0, np.random.default_rng(seed)
    for index, name in enumerate(COMMANDS):
        whole = Place(folder / name, name)
        seconds, expected = whole.finish(), whole.result()
        assert expected is not None, f"{name} made nothing"
        print(f"{name}: {seconds:.1f} s undisturbed; leftovers: {whole.leftovers() or 'none'}")
        for number in range(index, moments, len(COMMANDS)):
            after_s = chance.uniform(0, seconds)
            there = Place(folder / f"{name}-{number}", name)
            try:
                how = _kill_and_resume(there, after_s, expected)
            except AssertionError as error:
                failures += 1
                how = f"FAILED: {error}"
            print(f"{name}: killed after {after_s:.2f} s: {how}", flush=True)
            shutil.rmtree(there.folder, ignore_errors=True)
    return failures


def _options(add: Add) -> None:
    add("--moments", type=int, default=30)
    add("--seed", type=int, default=0)


@command("benchmarks.kills", _options, label="kills")
def main(options: Namespace) -> int:
    """Kill commands at random moments, and run them again."""
    with TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as folder:
        failures = _run(options.moments, options.seed, Path(folder))
    print(f"{options.moments} kills, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
