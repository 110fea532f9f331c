"""Loads saved weights in this process and prints by how many bytes its memory grew at most."""

import json
import sys
from pathlib import Path

import torch

from benchmarks.networks.network import NETWORKS
from tts_compress.artifact import LayerRecord
from tts_compress.compression import compress
from tts_compress.processes import peak_bytes, status_bytes
from tts_compress.torch.layers.checkpoint import restore_root


def main(name: str, path: Path, listed: Path) -> None:
    """Build the network without memory for its weights, fill it, and print the growth."""
    rows = json.loads(listed.read_text(encoding="utf-8"))
    layers = [LayerRecord(**row) for row in rows]
    skeleton = NETWORKS[name]().skeleton()
    # The first packed layer of a process allocates the same, whatever its size.
    compress(torch.nn.Linear(64, 64), "int8")
    idle = status_bytes("VmRSS")
    restore_root(skeleton, layers, path)
    print(peak_bytes() - idle)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
