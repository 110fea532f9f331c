"""The files that compete, each made once in a fresh process, and kept."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeVar

import tts_compress
from tts_compress.artifact import sha256_of, write_text_atomically
from tts_compress.config import data_file, data_names
from tts_compress.environment import describe_processor
from tts_compress.errors import TTSCompressError, first_line
from tts_compress.processes import peak_bytes

PEERS = ("dynamic-quint8", "dynamic-default", "static", "static-conv", "fp16")
"""Keys of `peers.PEER_CALLS`, which loads slowly."""

_Result = TypeVar("_Result")

_COST = "made.json"

_CORES = 2
"""A process that makes a file is confined to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakingCost:
    """Cost of making a file in a fresh process."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One file, or why there is none."""

    kind: Literal["reference", "peer", "scheme"]
    name: str
    path: Path
    """The graph that tokens go into; the others of a chain lie beside it."""

    graphs: tuple[str, ...]
    cost: MakingCost | None = None
    error: str | None = None

    def size_bytes(self) -> int:
        """Return the bytes of its graphs."""
        return sum(self.path.with_name(name).stat().st_size for name in self.graphs)


def fp32_contestant(files: tuple[Path, ...]) -> Contestant:
    """Return the voice itself, whose first graph is that which tokens go into."""
    names = tuple(file.name for file in files)
    return Contestant(kind="reference", name="fp32", path=files[0], graphs=names)


def make_contestant(
    kind: Literal["peer", "scheme"],
    name: str,
    files: tuple[Path, ...],
    work: Path,
    calibration: Path | None = None,
) -> Contestant:
    """Return a contestant, which is made again if what it depends on changed."""
    inputs = () if calibration is None else (calibration,)
    folder = work / f"{kind}-{name}-{_key(kind, name, (*files, *inputs))}"
    voice, output = files[0], folder / "files"
    graphs = tuple(file.name for file in files)
    contestant = Contestant(kind=kind, name=name, path=output / voice.name, graphs=graphs)
    if not (folder / _COST).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            cost = in_process(_make, kind, name, voice, output, calibration)
        except Exception as error:  # the process may die, and a peer fail in any way
            ours = isinstance(error, TTSCompressError)
            reason = ("" if ours else f"{type(error).__name__}: ") + first_line(error)
            return replace(contestant, error=reason)
        write_text_atomically(folder / _COST, json.dumps(asdict(cost)))
    cost = MakingCost(**json.loads((folder / _COST).read_text(encoding="utf-8")))
    # Some systems have a folder for their graphs.
    [path] = output.rglob(voice.name)
    return replace(contestant, path=path, cost=cost)


def in_process(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return what a function returns in a fresh process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _make(kind: str, name: str, voice: Path, output: Path, calibration: Path | None) -> MakingCost:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_CORES])
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # tools are talkative
        os.dup2(nothing, stream)
    start = perf_counter()
    if kind == "peer":
        from benchmarks.peers import make_peer

        make_peer(name, voice, output, calibration)
    else:
        from tts_compress.compression import compress
        from tts_compress.recipes.recipe import find_recipe

        scheme, _, quality = name.partition("@")
        model = f"onnx:{voice}" if calibration else voice
        used = calibration if calibration and find_recipe("onnx", scheme).calibration else None
        compress(model, scheme, calibration=used, quality=quality or None).save(output)
    return MakingCost(seconds=perf_counter() - start, peak_bytes=peak_bytes())


def _key(kind: str, name: str, files: tuple[Path, ...]) -> str:
    """Return a digest of everything the file depends on: voice, versions, and the code."""
    packages = [version(package) for package in ("tts-compress", "onnx", "onnxruntime", "numpy")]
    digest = hashlib.sha256(repr([*map(sha256_of, files), kind, name, packages]).encode())
    made_by = [Path(__file__).with_name("peers.py")]
    if kind == "scheme":
        digest.update(repr(describe_processor().features).encode())
        folders = ("calib/recipes", "calib/sets")
        made_by = [data_file(kind, each) for kind in folders for each in data_names(kind)]
        made_by += sorted(Path(tts_compress.__file__).parent.rglob("*.py"))
    for file in made_by:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
