"""Loads saved weights in this process and prints by how many bytes its memory grew at most."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.networks.architectures import find_network
from tts_compress.artifact import LayerRecord
from tts_compress.compression import compress
from tts_compress.torch.layers.checkpoint import restore_root


def main(name: str, path: Path, listed: Path) -> None:
    """Build the network without memory for its weights, fill it, and print the growth."""
    rows = json.loads(listed.read_text(encoding="utf-8"))
    layers = [LayerRecord(**row) for row in rows]
    skeleton = find_network(name).skeleton()
    _pack_once()
    idle = _status("VmRSS")
    restore_root(skeleton, layers, path)
    print(_status("VmHWM") - idle)


def _pack_once() -> None:
    """Pay for what the first packed layer of a process allocates, whatever its size."""
    compress(torch.nn.Linear(64, 64), "int8")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
