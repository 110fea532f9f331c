"""Devices, processes and number formats, by accelerate."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from tts_compress.errors import MissingExtraError, QuantizationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from accelerate import Accelerator

    from tts_compress.qat.train.options import TrainingOptions

__all__ = ["accelerated"]


@contextmanager
def accelerated(options: TrainingOptions) -> Iterator[Accelerator]:
    """Give what distributes a training; threads and random numbers are as before afterwards.

    Raises:
        MissingExtraError: accelerate is not installed.
        QuantizationError: fp16 was asked for without a GPU.
    """
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
        from accelerate.state import AcceleratorState
    except ImportError as error:
        raise MissingExtraError("accelerate", "qat") from error
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
        find_unused_parameters=True,  # an objective may look at a part of the student only
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
