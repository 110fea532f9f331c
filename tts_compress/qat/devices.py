"""Devices, processes and number formats of a training."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState

from tts_compress.errors import QuantizationError
from tts_compress.qat.options import TrainingOptions

_FORMATS = {
    "highest": "FP32",
    "high": "TF32 or three bfloat16 products",
    "medium": "bfloat16 products",
}


@contextmanager
def accelerated(options: TrainingOptions) -> Iterator[Accelerator]:
    """Yield an accelerator; threads and random numbers are as before afterwards.

    Raises:
        QuantizationError: fp16 was asked for without a GPU.
    """
    on_gpu = options.device == "auto" and torch.cuda.is_available()
    if options.mixed_precision == "fp16" and not on_gpu:
        raise QuantizationError(
            "mixed precision 'fp16' needs a GPU, and none is used here; give 'bf16' or 'no'"
        )
    threads = torch.get_num_threads()
    # It keeps its settings for the life of a process, which may train more than once.
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001
    parallel = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True,
        find_unused_parameters=True,  # an objective may compare a part of the student only
    )
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, cpu=not on_gpu, kwargs_handlers=[parallel]
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(options.seed)
            yield accelerator
    finally:
        torch.set_num_threads(threads)


@contextmanager
def matmul_precision(
    wanted: Literal["highest", "high", "medium"], device: torch.device
) -> Iterator[str]:
    """Set the precision of FP32 products for the length of a block; yield what took effect.

    Convolutions on a GPU, which torch computes in TF32 by default, follow it too.

    Args:
        wanted: As `torch.set_float32_matmul_precision` takes it.
        device: Device that training runs on.
    """
    before = torch.get_float32_matmul_precision()
    convolutions = device.type == "cuda"
    allowed = torch.backends.cudnn.allow_tf32 if convolutions else False
    exact = _product("highest", device)
    differs = not torch.equal(exact, _product(wanted, device))
    torch.set_float32_matmul_precision(wanted)
    if convolutions:
        torch.backends.cudnn.allow_tf32 = wanted != "highest"
    works = differs or wanted == "highest"
    try:
        yield f"{wanted}: {_FORMATS[wanted] if works else 'no effect on this hardware, FP32'}"
    finally:
        torch.set_float32_matmul_precision(before)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = allowed


def _product(precision: str, device: torch.device) -> torch.Tensor:
    """Return a product whose rounding depends on how it is computed."""
    torch.set_float32_matmul_precision(precision)
    source = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=source).to(device)
    product: torch.Tensor = left @ right
    return product


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
    with suppress(ImportError, RuntimeError):  # no pynvml, or a driver without the counter
        found["gpu_utilisation_percent"] = float(torch.cuda.utilization(device))
    return found
