"""Making every contestant of a network, running them in turns, and loading what was saved."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.networks.architectures import find_network
from benchmarks.networks.contestants import OPENED, make_peer, make_scheme
from benchmarks.turns import take_turns
from tts_compress.terminal import progress_bars
from tts_compress.torch.layers.checkpoint import stored_bytes, write_root

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from benchmarks.networks.network import Network
    from tts_compress.artifact import LayerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The contestants that are run, and how often."""

    threads: tuple[int, ...]
    rounds: int
    peers: tuple[str, ...]
    schemes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times of one call at one number of threads."""

    threads: int
    min_ms: float
    median_ms: float
    ratio_min: float
    """FP32's minimum over this one's; higher is better."""

    ratio_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A peer, or a scheme of ours."""

    name: str
    timings: tuple[Timing, ...] = ()
    snr_db: float | None = None
    """SNR of its output against FP32's; weights are random, so only to see that it computes the
    same."""

    file_bytes: int | None = None
    """Size of the saved weights; None for peers, which save none."""

    size_ratio: float | None = None
    load_peak_ratio: float | None = None
    """Peak memory of a fresh process that loads them, over the file's bytes."""

    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All contestants of a network; the first is FP32."""

    network: str
    summary: str
    parameters: int
    contestants: tuple[Contestant, ...]


def bench_network(name: str, choice: Choice) -> Result:
    """Build a network and measure every contestant on it.

    Raises:
        MissingExtraError: Its package is not installed.
        ModelError: It runs from a clone, and none is named.
    """
    network = find_network(name)
    root = network.root()
    runs, found = _make(network, root, choice)
    with torch.inference_mode(), progress_bars() as progress:
        outputs = {key: run().float() for key, run in runs.items()}
        times = {}
        for threads in choice.threads:
            torch.set_num_threads(threads)
            times[threads] = take_turns(
                runs,
                rounds=choice.rounds,
                warm_ups=1,
                tell=partial(progress.advance, f"time {name}"),
            )
    contestants = []
    for key in [*runs, *(k for k in found if k not in runs)]:
        own = asdict(found[key]) if key in found else {"name": key}
        if key in runs:
            own |= {
                "timings": tuple(_timing(t, times[t][key], times[t]["fp32"]) for t in times),
                "snr_db": _snr(outputs["fp32"], outputs[key]),
            }
        contestants.append(Contestant(**own))
    return Result(
        network=name,
        summary=network.summary,
        parameters=sum(p.numel() for p in root.parameters()),
        contestants=tuple(contestants),
    )


Runs = dict[str, "Callable[[], torch.Tensor]"]


def _make(network: Network, root: nn.Module, choice: Choice) -> tuple[Runs, dict[str, Contestant]]:
    """Return the function that runs each contestant, and its sizes or its error."""
    runs: Runs = {}
    found: dict[str, Contestant] = {}
    with torch.inference_mode(), TemporaryDirectory() as folder:
        for name in choice.peers:
            if name == OPENED and network.official is None:
                continue  # it is FP32
            try:
                runs[name] = make_peer(network, root, name)
                runs[name]()
            except Exception as error:  # a peer may fail in any way
                runs.pop(name, None)
                found[name] = Contestant(name=name, error=_first_line(error))
        for scheme in choice.schemes:
            done = make_scheme(network, root, scheme)
            path = Path(folder) / "weights.safetensors"
            write_root(done.root, path, done.layers)
            size = path.stat().st_size
            found[scheme] = Contestant(
                name=scheme,
                file_bytes=size,
                size_ratio=stored_bytes(root) / size,
                load_peak_ratio=_load_peak(network.name, path, done.layers) / size,
            )
            path.unlink()
            runs[scheme] = network.call(done.root)
    return runs, found


def _load_peak(network: str, path: Path, layers: Sequence[LayerRecord]) -> int:
    """Return the bytes a fresh process grows by at most while it loads saved weights."""
    listed = path.with_suffix(".json")
    listed.write_text(json.dumps([asdict(layer) for layer in layers]), encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.networks.load", network, str(path), str(listed)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return int(run.stdout.split()[-1])


def _timing(threads: int, own: list[float], reference: list[float]) -> Timing:
    return Timing(
        threads=threads,
        min_ms=min(own),
        median_ms=float(np.median(own)),
        ratio_min=min(reference) / min(own),
        ratio_median=float(np.median(reference) / np.median(own)),
    )


def _snr(reference: torch.Tensor, candidate: torch.Tensor) -> float | None:
    error = (reference - candidate).double().square().mean()
    if not error or not torch.isfinite(error):
        return None
    return float(10 * torch.log10(reference.double().square().mean() / error))


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:200]
