"""The files that compete, each made once in a fresh process and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tts_compress
from benchmarks.results import MakingCost
from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.config import data_file, data_names
from tts_compress.environment import describe_processor

if TYPE_CHECKING:
    from tts_compress.progress import Progress

PEERS = ("dynamic-quint8", "dynamic-default", "static", "static-conv", "fp16")
"""Keys of `peers.PEER_CALLS`, which loads slowly."""

_COST = "cost.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One file, or why there is none."""

    kind: Literal["reference", "peer", "scheme"]
    name: str
    path: Path
    """The graph that tokens go into; the others of a chain lie beside it."""

    graphs: tuple[str, ...]
    """Names of all of its graphs."""

    kept: Path | None = None
    """Folder of what is remembered of it; None of FP32."""

    cost: MakingCost | None = None
    error: str | None = None

    def size_bytes(self) -> int:
        """Return the bytes of its graphs."""
        return sum(self.path.with_name(name).stat().st_size for name in self.graphs)


def make_contestant(
    kind: Literal["peer", "scheme"],
    name: str,
    files: tuple[Path, ...],
    work: Path,
    progress: Progress,
    calibration: Path | None = None,
) -> Contestant:
    """Return a contestant, from `work` if everything it depends on is as it was.

    Args:
        kind: Kind of its maker.
        name: Its maker; of a scheme that is compressed to a quality, `int8@good`.
        files: The graphs of the voice in FP32, that which tokens go into first.
        work: Folder of files that are kept.
        progress: Told of its stages.
        calibration: The inputs of a bare graph.
    """
    given = () if calibration is None else (calibration,)
    folder = work / f"{kind}-{name}-{_key(kind, name, (*files, *given))}"
    voice, output = files[0], folder / "files"
    contestant = Contestant(
        kind=kind,
        name=name,
        path=output / voice.name,
        graphs=tuple(file.name for file in files),
        kept=folder,
    )
    if not (folder / _COST).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        answer = _run([kind, name, str(voice), str(output), *map(str, given)], progress)
        if "error" in answer:
            return replace(contestant, error=answer["error"])
        write_text_atomically(folder / _COST, json.dumps(answer))
    cost = MakingCost(**json.loads((folder / _COST).read_text(encoding="utf-8")))
    # Some systems have a folder for their graphs.
    [path] = output.rglob(voice.name)
    return replace(contestant, path=path, cost=cost)


def _run(arguments: list[str], progress: Progress) -> dict[str, Any]:
    """Run the process that makes a file and return its last line of output."""
    command = [sys.executable, "-m", "benchmarks.make", *arguments]
    answer: dict[str, Any] = {"error": "its process died"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # chatter of a library
            found: dict[str, Any] = json.loads(line)
            if "stage" in found:
                progress.advance(f"  {found['stage']}", found["done"], found["total"])
            else:
                answer = found
    return answer


def _key(kind: str, name: str, files: tuple[Path, ...]) -> str:
    """Return a digest of everything the file depends on: voice, versions, and the code."""
    packages = [version(package) for package in ("tts-compress", "onnx", "onnxruntime", "numpy")]
    digest = hashlib.sha256(repr([*map(sha256_of, files), kind, name, packages]).encode())
    library = Path(tts_compress.__file__).parent
    made_by = [Path(__file__).with_name("peers.py")]
    if kind == "scheme":
        digest.update(repr(describe_processor().features).encode())
        folders = ("calib/recipes", "calib/sets")
        made_by = [data_file(kind, each) for kind in folders for each in data_names(kind)]
        for layer in ("compression", "models", "numerics", "onnx", "qat", "recipes"):
            made_by += sorted((library / layer).rglob("*.py"))
    for file in made_by:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
