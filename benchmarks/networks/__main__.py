"""Command line: ``python -m benchmarks.networks``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.networks.architectures import NETWORKS
from benchmarks.networks.contestants import COMPILED, PEERS
from benchmarks.networks.run import Choice, bench_network
from benchmarks.networks.table import print_table
from tts_compress.artifact import write_text_atomically
from tts_compress.environment import describe_environment
from tts_compress.errors import MissingExtraError, ModelError, TTSCompressError
from tts_compress.terminal import show

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMES = ("int8", "int8-weight-only", "int4-weight-only", "module:int4-weight-only", "bf16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 2 is usage or bad input."""
    options = _parser().parse_args(arguments)
    peers = [name for name in PEERS if options.compiled or name not in COMPILED]
    choice = Choice(
        threads=tuple(options.threads),
        rounds=options.rounds,
        peers=tuple(peers if options.peers is None else ["fp32", *options.peers]),
        schemes=tuple(options.schemes),
    )
    results = []
    try:
        for name in options.networks or NETWORKS:
            try:
                result = bench_network(name, choice)
            except (MissingExtraError, ModelError) as error:
                if options.networks:
                    raise
                show(f"{name}: skipped: {error}")
                continue
            print_table(result)
            results.append(result)
    except TTSCompressError as error:
        print(f"bench: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    document = {
        "environment": describe_environment(),
        "networks": [asdict(result) for result in results],
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(options.output, json.dumps(document, indent=2) + "\n")
    show(f"written: {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks",
        description="Time whole networks in torch: FP32, peers and schemes, in turns.",
    )
    add = parser.add_argument
    add("--networks", nargs="+", choices=NETWORKS, help="those that can be built here")
    add("--schemes", nargs="*", choices=_SCHEMES, default=_SCHEMES, metavar="SCHEME")
    add("--peers", nargs="*", choices=PEERS, metavar="PEER", help="instead of all")
    add("--compiled", action="store_true", help=f"also {' and '.join(COMPILED)}: minutes")
    add("--threads", nargs="+", type=int, default=[1, 2], help="of each run (1 2)")
    add("--rounds", type=int, default=8, help="timed runs of each (%(default)s)")
    add("--output", type=Path, default=Path("out/bench/networks.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
