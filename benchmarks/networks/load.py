"""The memory that loading a compressed network takes."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from benchmarks.networks.network import NETWORKS
from tts_compress.artifact import LayerRecord
from tts_compress.compression import compress
from tts_compress.processes import peak_bytes, status_bytes
from tts_compress.torch.layers.checkpoint import restore_root


def load_peak(network: str, path: Path, layers: Sequence[LayerRecord]) -> int:
    """Return the bytes by which this process grows at most while it loads saved weights."""
    skeleton = NETWORKS[network]().skeleton()  # without memory for its weights
    # The first packed layer of a process allocates the same, whatever its size.
    compress(nn.Linear(64, 64), "int8")
    idle = status_bytes("VmRSS")
    restore_root(skeleton, layers, path)
    return peak_bytes() - idle
