"""`python -m benchmarks.gpu`: its options and its report."""

import re
import sys
from argparse import Namespace
from collections.abc import Sequence
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


def _measure(named: Sequence[str] | None, choice: Choice, probe: CudaProbe) -> list[Result]:
    results = []
    with progress_bars() as progress:
        for name in named or _NETWORKS:
            try:
                results.append(bench_network(name, choice, probe, progress.advance))
            except (MissingExtraError, ModelError) as error:  # or there is no clone
                if named:
                    raise
                show(f"{name}: skipped: {error}")
    if not results:
        raise EvaluationError(
            "no network's package is installed; install the extra f5 or parler, or name a clone of "
            "GPT-SoVITS"
        )
    return results


def describe_results(
    device: dict[str, str], choice: Choice, results: Sequence[Result]
) -> dict[str, Any]:
    """Return everything that was measured, and on what, as plain data."""
    return {
        "device": device,
        "environment": describe_environment(),
        "rounds": choice.rounds,
        "warm_ups": choice.warm_ups,
        "networks": [asdict(result) for result in results],
    }


def file_stem(device: str, networks: Sequence[str]) -> str:
    """Return a report's name: of the device and, unless all were measured, of the networks."""
    parts = ["gpu", device, *(networks if set(networks) != set(_NETWORKS) else ())]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def markdown(document: dict[str, Any], results: Sequence[Result]) -> list[str]:
    """Return the lines of a report with a table for each network."""
    device, packages = document["device"], document["environment"]["packages"]
    versions = [f"{name} {packages[name]}" for name in ("torch", "torchao") if name in packages]
    lines = [
        f"# Networks on {device['name']}",
        "",
        f"Compute capability {device['capability']}, {device['memory']}, CUDA {device['cuda']}, "
        f"{', '.join(versions)}. Random weights; medians of {document['rounds']} runs in turns "
        f"after {document['warm_ups']} warm-ups.",
        "",
        "`fp32` computes every product in FP32; all others use TF32 for what they leave in FP32. "
        "Captured are the kernels of a run as a CUDA graph, which Python does not start one by "
        "one. Speed is over `fp32`, by medians; captured, over `fp32` captured. Peak is the "
        "weights and what one run allocates. SNR is against `fp32`, of outputs of random weights: "
        "it shows that the same is computed, not how it sounds.",
    ]
    for result in results:
        lines += ["", f"## {result.summary} ({result.parameters / 1e6:.0f} M weights)", ""]
        lines += table(_HEAD, map(_cells, result.contestants))
    return lines


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
    add("--output", type=Path, help="files without their endings (eval/reports/gpu-<device>)")


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
    results = _measure(options.networks, choice, probe)
    document = describe_results(probe.describe(), choice, results)
    measured = [result.network for result in results]
    stem = options.output or Path("eval/reports") / file_stem(document["device"]["name"], measured)
    lines = markdown(document, results)
    show(*(f"written: {path}" for path in write_report(stem, document, lines)))
    print("\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
