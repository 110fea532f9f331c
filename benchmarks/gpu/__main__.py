"""`python -m benchmarks.gpu`: its options and its report."""

import re
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.command import Add, command, positive
from benchmarks.gpu.probe import CudaProbe
from benchmarks.gpu.run import CONTESTANTS, Choice, Measured, bench_network
from benchmarks.networks.network import Result
from benchmarks.report import table, write_report
from tts_compress.environment import describe_environment
from tts_compress.errors import EvaluationError, MissingExtraError, ModelError
from tts_compress.terminal import human_bytes, progress_bars, show

_NETWORKS = ("dit", "parler-decoder", "t2s-decoder", "sovits-decoder")
_HEAD = ("contestant", "median", "speed", "captured", "speed", "weights", "peak", "SNR")


def describe_result(device: dict[str, str], choice: Choice, result: Result) -> dict[str, Any]:
    """Return everything that was measured, and on what, as plain data."""
    return {
        "device": device,
        "environment": describe_environment(),
        "rounds": choice.rounds,
        "warm_ups": choice.warm_ups,
        "network": asdict(result),
    }


def file_stem(device: str, network: str) -> str:
    """Return the name of a network's report, without its ending."""
    return re.sub(r"[^a-z0-9]+", "-", f"gpu {device} {network}".lower()).strip("-")


def markdown(document: dict[str, Any], result: Result) -> list[str]:
    """Return the lines of a report with a table of the contestants."""
    device, packages = document["device"], document["environment"]["packages"]
    versions = [f"{name} {packages[name]}" for name in ("torch", "torchao") if name in packages]
    return [
        f"# {result.summary}, on {device['name']}",
        "",
        f"Compute capability {device['capability']}, {device['memory']}, CUDA {device['cuda']}, "
        f"{', '.join(versions)}. {result.parameters / 1e6:.0f} M random weights; medians of "
        f"{document['rounds']} runs in turns after {document['warm_ups']} warm-ups.",
        "",
        "`fp32` computes every product in FP32; all others use TF32 for what they leave in FP32. "
        "Captured are the kernels of a run as a CUDA graph, which Python does not start one by "
        "one. Speed is over `fp32`, by medians; captured, over `fp32` captured. Peak is the "
        "weights and what one run allocates. SNR is against `fp32`, of outputs of random weights: "
        "it shows that the same is computed, not how it sounds.",
        "",
        *table(_HEAD, map(_cells, result.contestants)),
    ]


def _cells(measured: Measured) -> list[str]:
    if measured.error is not None:
        reason = measured.error.replace("|", "\\|")
        return [measured.name, f"failed: {reason}", *[""] * (len(_HEAD) - 2)]
    assert measured.weight_bytes is not None
    assert measured.peak_bytes is not None
    return [
        measured.name,
        f"{measured.median_ms:.2f} ms",
        f"{measured.ratio_median:.2f}×",
        "" if measured.graph_ms is None else f"{measured.graph_ms:.2f} ms",
        "" if measured.graph_ratio is None else f"{measured.graph_ratio:.2f}×",
        human_bytes(measured.weight_bytes),
        human_bytes(measured.peak_bytes),
        "" if measured.snr_db is None else f"{measured.snr_db:.1f} dB",
    ]


def _options(add: Add) -> None:
    add("--networks", nargs="+", choices=_NETWORKS, help="instead of all that are installed")
    add("--contestants", nargs="+", choices=CONTESTANTS, metavar="NAME", help="instead of all")
    add("--eager", dest="compiled", action="store_false", help="leave out the compiled ones")
    add("--rounds", type=positive, default=50, help="timed runs of each (%(default)s)")
    add("--warm-ups", type=positive, default=10, help="runs before them (%(default)s)")
    add("--output", type=Path, default=Path("eval/reports"), help="folder of reports (%(default)s)")


@command("benchmarks.gpu", _options)
def main(options: Namespace) -> None:
    """Time whole networks on an NVIDIA GPU: FP32, 16 bits and 8 bits, in turns."""
    first = next(iter(CONTESTANTS))
    names = options.contestants or CONTESTANTS
    chosen = [n for n in names if options.compiled or not CONTESTANTS[n].compiled]
    choice = Choice(
        contestants=tuple(dict.fromkeys([first, *chosen])),
        rounds=options.rounds,
        warm_ups=options.warm_ups,
    )
    probe = CudaProbe()
    device, written = probe.describe(), False
    with progress_bars() as progress:
        for name in options.networks or _NETWORKS:
            path = options.output / file_stem(device["name"], name)
            try:
                for result in bench_network(name, choice, probe, progress.advance):
                    document = describe_result(device, choice, result)
                    written = bool(write_report(path, document, markdown(document, result)))
            except (MissingExtraError, ModelError) as error:  # or there is no clone
                if options.networks:
                    raise
                show(f"{name}: skipped: {error}")
            else:
                print(path.with_name(f"{path.name}.md").read_text("utf-8"))
    if not written:
        raise EvaluationError(
            "no network's package is installed; install the extra f5 or parler, or name a clone of "
            "GPT-SoVITS"
        )


if __name__ == "__main__":
    sys.exit(main())
