"""How busy a GPU is."""

from __future__ import annotations

import torch

__all__ = ["device_load"]


def device_load(device: torch.device) -> dict[str, float]:
    """Return a GPU's utilisation in percent and its memory in bytes; nothing for a processor.

    Utilisation comes from NVML, and is left out where its Python package is not installed.
    """
    if device.type != "cuda":
        return {}
    found = {
        "gpu_allocated_bytes": float(torch.cuda.memory_allocated(device)),
        "gpu_peak_bytes": float(torch.cuda.max_memory_allocated(device)),
    }
    try:
        found["gpu_utilisation_percent"] = float(torch.cuda.utilization(device))
    except (ImportError, RuntimeError):  # no pynvml, or a driver that tells nothing
        return found
    return found
