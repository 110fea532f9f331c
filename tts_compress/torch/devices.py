"""Devices of torch: found by name, what lies on them, and their memory, activity and clocks.

A model's device is that of its tensors: whatever calls it asks `device_of`, and moves its inputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from statistics import fmean
from threading import Event, Thread
from time import perf_counter
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from tts_compress.environment import open_nvml
from tts_compress.errors import ModelError
from tts_compress.torch.layers.base import CompressedLayer, build_layer, find_layer, walk_layers
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, replace_module

Precision: TypeAlias = Literal["highest", "high", "medium"]
"""Precisions of FP32 products: FP32, TF32 or three bfloat16 products, one bfloat16 product."""

CPU = torch.device("cpu")

FLOAT8_FROM = (8, 9)
"""The first compute capability with 8-bit floats."""


def find_device(name: str) -> torch.device:
    """Return the device of a name: `cpu`, `cuda`, `cuda:N`, or `auto`, a GPU where there is one.

    Raises:
        ModelError: There is no such device here.
    """
    kind, _, number = name.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return CPU
    if name not in {"auto", "cuda"} and not (kind == "cuda" and number.isdecimal()):
        raise ModelError(f"no device {name!r:.40}; accepted: cpu, cuda, cuda:N and auto")
    if not gpus:
        raise ModelError(
            f"there is no CUDA device for torch {torch.__version__}, so none is {name!r}; take "
            "'cpu' or 'auto', or install a build of torch for CUDA where there is an NVIDIA GPU"
        )
    index = int(number) if number else torch.cuda.current_device()
    if index >= gpus:
        raise ModelError(f"there is no {name!r}; there are 'cuda:0' to 'cuda:{gpus - 1}'")
    return torch.device("cuda", index)


def has_float8() -> bool:
    """Return True if a GPU of this machine multiplies 8-bit floats."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    capabilities = map(torch.cuda.get_device_capability, range(gpus))
    return torch.version.hip is None and any(each >= FLOAT8_FROM for each in capabilities)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's tensors, all of which lie on one."""
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), CPU)


def moved(root: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a tree of modules on a device, with the compressed layers that run there.

    The given one stays as it is, and shares the tensors that lay there before.

    Raises:
        ModelError: No layer of a format runs there.
    """
    copy = copy_sharing_tensors(root)
    for name, part in list(walk_layers(copy)):
        if not isinstance(part, CompressedLayer):
            continue
        geometry, chosen = part.geometry, (part.weights, part.activations)
        kind = find_layer(geometry, *chosen, device=device.type)
        if kind is type(part):
            continue
        if kind is None or kind.objection(geometry, 0):
            raise ModelError(
                f"'{name}' is a {geometry.operator} of {chosen[0]} weights and {chosen[1]} "
                f"activations, which nothing computes on {device.type!r}; move the original there "
                "and compress it again, or use int8-weight-only, fp16 or bf16"
            )
        state = {key: value.to(device) for key, value in part.state().items()}
        layer = build_layer(geometry, *chosen, state, device=device.type)
        copy = replace_module(copy, name, layer)
    return copy_sharing_tensors(copy, lambda tensor: _on(tensor, device))


def _on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; a parameter stays one, and what has no values stays there."""
    if tensor.is_meta:
        return tensor
    with torch.no_grad():
        placed = tensor.to(device)
    if not isinstance(tensor, nn.Parameter) or placed is tensor:
        return placed
    return nn.Parameter(placed, requires_grad=tensor.requires_grad)


def set_precision(wanted: Precision, device: torch.device) -> None:
    """Set how this process computes products in FP32.

    Convolutions on a GPU, which torch computes in TF32 by default, follow it.
    """
    torch.set_float32_matmul_precision(wanted)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = wanted != "highest"


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
