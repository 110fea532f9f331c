"""The files that compete, each made once in a fresh process and kept."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tts_compress
from benchmarks.results import MakingCost
from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.config import data_file
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
    cost: MakingCost | None = None
    error: str | None = None


def make_contestant(
    kind: Literal["peer", "scheme"], name: str, voice: Path, work: Path, progress: Progress
) -> Contestant:
    """Return a contestant, from `work` if everything it depends on is as it was."""
    folder = work / f"{kind}-{name}-{_key(kind, name, voice)}"
    path = folder / "files" / voice.name
    if not (folder / _COST).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        answer = _run([kind, name, str(voice), str(path)], progress)
        if "error" in answer:
            return Contestant(kind=kind, name=name, path=path, error=answer["error"])
        write_text_atomically(folder / _COST, json.dumps(answer))
    cost = MakingCost(**json.loads((folder / _COST).read_text(encoding="utf-8")))
    return Contestant(kind=kind, name=name, path=path, cost=cost)


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


def _key(kind: str, name: str, voice: Path) -> str:
    """Return a digest of everything the file depends on: voice, versions, and the code."""
    packages = [version(package) for package in ("tts-compress", "onnx", "onnxruntime", "numpy")]
    digest = hashlib.sha256(repr([sha256_of(voice), kind, name, packages]).encode())
    library = Path(tts_compress.__file__).parent
    made_by = [Path(__file__).with_name("peers.py")]
    if kind == "scheme":
        digest.update(repr(describe_processor().features).encode())
        made_by = [data_file("calib/recipes", "piper"), data_file("calib/sets", "en")]
        for layer in ("compression", "models", "numerics", "onnx", "qat", "recipes"):
            made_by += sorted((library / layer).rglob("*.py"))
    for file in made_by:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
