"""Results as Markdown, for people, and as plain data."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tts_compress.environment import describe_environment
from tts_compress.terminal import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.gpu.run import Choice, Measured, Result

_HEAD = ("contestant", "median", "fastest", "speed", "weights", "peak", "SNR")


def describe_results(
    device: dict[str, str], choice: Choice, results: Sequence[Result]
) -> dict[str, Any]:
    """Return everything that was measured, and on what, as plain data."""
    return {
        "device": device,
        "environment": describe_environment(),
        "rounds": choice.rounds,
        "warm_ups": choice.warm_ups,
        "mode": choice.mode,
        "networks": [asdict(result) for result in results],
    }


def file_stem(device: str, networks: Sequence[str], known: Sequence[str]) -> str:
    """Return a report's name: of the device and, unless all were measured, of the networks."""
    parts = ["gpu", device, *(networks if set(networks) != set(known) else ())]
    return re.sub(r"[^a-z0-9]+", "-", " ".join(parts).lower()).strip("-")


def write_markdown(document: dict[str, Any], results: Sequence[Result]) -> str:
    """Return a report with a table for each network."""
    device, packages = document["device"], document["environment"]["packages"]
    versions = [f"{name} {packages[name]}" for name in ("torch", "torchao") if name in packages]
    lines = [
        f"# Networks on {device['name']}",
        "",
        f"Compute capability {device['capability']}, {device['memory']}, CUDA {device['cuda']}, "
        f"{', '.join(versions)}; compiler mode `{document['mode']}`. Random weights; "
        f"medians of {document['rounds']} runs in turns after {document['warm_ups']} "
        "warm-ups.",
        "",
        "`fp32` computes every product in FP32; all others use TF32 for what they leave in FP32. "
        "Speed is over `fp32`, by medians. Peak is the weights and what one run allocates. SNR is "
        "against `fp32`, of outputs of random weights: it shows that the same is computed, not "
        "how it sounds.",
    ]
    for result in results:
        lines += ["", f"## {result.summary} ({result.parameters / 1e6:.0f} M weights)", ""]
        lines += [_line(_HEAD), "|---|" + "---:|" * (len(_HEAD) - 1)]
        lines += [_line(_cells(measured)) for measured in result.contestants]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(measured: Measured) -> list[str]:
    if measured.error is not None:
        reason = measured.error.replace("|", "\\|")
        return [measured.name, f"failed: {reason}", *[""] * (len(_HEAD) - 2)]
    assert measured.weight_bytes is not None
    assert measured.peak_bytes is not None
    return [
        measured.name,
        f"{measured.median_ms:.2f} ms",
        f"{measured.min_ms:.2f} ms",
        f"{measured.ratio_median:.2f}×",
        human_bytes(measured.weight_bytes),
        human_bytes(measured.peak_bytes),
        "" if measured.snr_db is None else f"{measured.snr_db:.1f} dB",
    ]
