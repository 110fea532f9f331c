"""Memory and activity of a GPU: torch's account of it, its own clock, and NVML."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean
from threading import Event, Thread
from time import perf_counter
from typing import Any

import torch

from tts_compress.environment import open_nvml

_EVERY_S = 0.05
"""Seconds between two readings of utilisation and power; drivers renew them 1 to 6 times."""


def start_clock(device: torch.device) -> Callable[[], float]:
    """Return a function that waits for a device and returns the seconds since, by its own clock."""
    if device.type != "cuda":
        begun = perf_counter()
        return lambda: perf_counter() - begun
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize(device)
    start.record()

    def seconds() -> float:
        end.record()
        torch.cuda.synchronize(device)
        return float(start.elapsed_time(end)) / 1e3

    return seconds


def gpu_memory(device: torch.device) -> dict[str, float]:
    """Return what torch holds on a GPU, in bytes, and the share of it that is too split to be used.

    Reserved is what torch took from the driver, allocated what tensors have of that.
    """
    stats: dict[str, int] = torch.cuda.memory_stats(device)
    reserved = stats.get("reserved_bytes.all.current", 0)
    split = stats.get("inactive_split_bytes.all.current", 0)
    return {
        "allocated_bytes": float(stats.get("allocated_bytes.all.current", 0)),
        "reserved_bytes": float(reserved),
        "peak_bytes": float(stats.get("allocated_bytes.all.peak", 0)),
        "fragmentation": split / reserved if reserved else 0.0,
    }


def gpu_activity(device: torch.device) -> dict[str, float]:
    """Return a GPU's utilisation in percent and its power in watts; nothing where NVML is not."""
    with open_nvml() as nvml:
        if nvml is None:
            return {}
        try:
            gpu = nvml.nvmlDeviceGetHandleByUUID(
                f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            )
            return {
                "utilisation_percent": float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu),
                "power_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            }
        except nvml.NVMLError:  # a counter that this GPU or driver lacks
            return {}


def gpu_load(device: torch.device) -> dict[str, float]:
    """Return memory and activity of a GPU for a log; nothing for a processor."""
    if device.type != "cuda":
        return {}
    return {f"gpu_{n}": value for n, value in (gpu_memory(device) | gpu_activity(device)).items()}


@contextmanager
def watched(device: torch.device) -> Iterator[dict[str, float]]:
    """Yield what a GPU held and did in the block, which is filled at its end.

    Utilisation and power are means over the block, memory that at its end.
    """
    use: dict[str, float] = {}
    readings: list[dict[str, float]] = []
    ended = Event()

    def read() -> None:
        while not ended.wait(_EVERY_S):
            readings.append(gpu_activity(device))

    thread = Thread(target=read, daemon=True)
    thread.start()
    try:
        yield use
    finally:
        ended.set()
        thread.join()
        readings.append(gpu_activity(device))
        use.update(gpu_memory(device))
        use.update({n: fmean(each[n] for each in readings if n in each) for n in readings[-1]})
