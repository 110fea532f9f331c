"""`python -m benchmarks.networks`: every contestant of every network, in turns."""

import sys
from argparse import Namespace
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from benchmarks.command import Add, command
from benchmarks.contestants import in_process
from benchmarks.networks.contestants import COMPILED, OPENED, PEERS, make_peer, make_scheme
from benchmarks.networks.load import load_peak
from benchmarks.networks.network import NETWORKS, Network, Result, Step, failure, result_of, snr_db
from benchmarks.report import print_report, render
from benchmarks.timing import clocked, speed, take_turns
from tts_compress.environment import describe_environment
from tts_compress.errors import MissingExtraError, ModelError
from tts_compress.terminal import human_bytes, progress_bars, show
from tts_compress.torch.layers.checkpoint import stored_bytes, write_root

_SCHEMES = ("int8", "int8-weight-only", "int4-weight-only", "module:int4-weight-only", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The contestants that are run, and how often."""

    threads: tuple[int, ...]
    rounds: int
    peers: tuple[str, ...]
    schemes: tuple[str, ...]


def bench_network(name: str, choice: Choice) -> Result:
    """Build a network and measure every contestant on it.

    Weights are random: `snr_db`, of outputs against FP32's, only shows that the same is computed.
    `load_peak_ratio` is the peak memory of a fresh process that loads a file, over its bytes.
    """
    network = NETWORKS[name]()
    root = network.root()
    runs, sizes = _make(network, root, choice)
    with torch.inference_mode(), progress_bars() as progress:
        outputs = {key: run().float() for key, run in runs.items()}
        timed = {key: clocked(run) for key, run in runs.items()}
        tell = partial(progress.advance, f"time {name}")
        times = {}
        for threads in choice.threads:
            torch.set_num_threads(threads)
            times[threads] = take_turns(timed, rounds=choice.rounds, warm_ups=1, tell=tell)
    contestants = []
    for key in [*runs, *(k for k in sizes if k not in runs)]:
        own = {"name": key} | sizes.get(key, {})
        if key in runs:
            own["timings"] = [
                {"threads": threads} | asdict(speed(of[key], of["fp32"]))
                for threads, of in times.items()
            ]
            own["snr_db"] = snr_db(outputs["fp32"], outputs[key])
        contestants.append(own)
    return result_of(network, root, contestants)


def _make(
    network: Network, root: nn.Module, choice: Choice
) -> tuple[dict[str, Step], dict[str, dict[str, Any]]]:
    runs: dict[str, Step] = {}
    sizes: dict[str, dict[str, Any]] = {}
    with torch.inference_mode(), TemporaryDirectory() as folder:
        for name in choice.peers:
            if name == OPENED and network.official is None:
                continue  # it is FP32
            try:
                runs[name] = make_peer(network, root, name)
                runs[name]()
            except Exception as error:  # a peer may fail in any way
                runs.pop(name, None)
                sizes[name] = {"error": failure(error)}
        for scheme in choice.schemes:
            done = make_scheme(network, root, scheme)
            path = Path(folder) / "weights.safetensors"
            write_root(done.root, path, done.layers)
            size = path.stat().st_size
            sizes[scheme] = {
                "file_bytes": size,
                "size_ratio": stored_bytes(root) / size,
                "load_peak_ratio": in_process(load_peak, network.name, path, done.layers) / size,
            }
            path.unlink()
            runs[scheme] = network.call(done.root)
    return runs, sizes


def _options(add: Add) -> None:
    add("--networks", nargs="+", choices=NETWORKS, help="those that can be built here")
    add("--schemes", nargs="*", choices=_SCHEMES, default=_SCHEMES, metavar="SCHEME")
    add("--peers", nargs="*", choices=PEERS, metavar="PEER", help="instead of all")
    add("--compiled", action="store_true", help=f"also {' and '.join(COMPILED)}: minutes")
    add("--threads", nargs="+", type=int, default=[1, 2], help="of each run (1 2)")
    add("--rounds", type=int, default=8, help="timed runs of each (%(default)s)")
    add("--output", type=Path, default=Path("out/bench/networks.json"))


@command("benchmarks.networks", _options)
def main(options: Namespace) -> None:
    """Time whole networks in torch: FP32, peers and schemes, in turns."""
    peers = [name for name in PEERS if options.compiled or name not in COMPILED]
    choice = Choice(
        threads=tuple(options.threads),
        rounds=options.rounds,
        peers=tuple(peers if options.peers is None else ["fp32", *options.peers]),
        schemes=tuple(options.schemes),
    )
    results = []
    for name in options.networks or NETWORKS:
        try:
            results.append(bench_network(name, choice))
        except (MissingExtraError, ModelError) as error:
            if options.networks:
                raise
            show(f"{name}: skipped: {error}")
    networks = [asdict(result) for result in results]
    document = {"environment": describe_environment(), "networks": networks}
    template = Path(__file__).with_name("report.md")
    lines = render(template, {"results": results}, {"human": human_bytes})
    print_report(options.output.with_suffix(""), document, lines)


if __name__ == "__main__":
    sys.exit(main())
