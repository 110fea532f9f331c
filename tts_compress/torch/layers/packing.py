"""Weights of linear layers laid out for torch's integer kernels.

The kernels are those of `torch.ops.quantized`: activations are rounded to `uint8` with one scale
for the tensor, weights to `int8` with one scale per output channel, sums are 32-bit and what comes
out is FP32. `fbgemm` and `onednn` are two implementations of them on x86, `qnnpack` one on ARM.
On x86 `fbgemm` comes first: it takes 0.86 of `onednn`'s time on one row, which is what a model that
speaks step by step has, and 1.08 on 512 rows (AVX512-VNNI, one thread); and `onednn` has no ranges
known before.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pack_linear", "unpack_linear"]

_ENGINES = ("fbgemm", "onednn", "qnnpack")
"""Implementations, the preferred one first."""


def pack_linear(codes: Tensor, scales: Tensor, bias: Tensor | None) -> Any:
    """Return a weight `[outputs, inputs]` ready for `quantized.linear_dynamic`.

    Raises:
        ModelError: This build of torch has no integer kernels.
    """
    with _engine(_best_engine()):
        return torch.ops.quantized.linear_prepack(_quantized(codes, scales), bias)


def _best_engine() -> str:
    supported = torch.backends.quantized.supported_engines
    for name in _ENGINES:
        if name in supported:
            return name
    raise ModelError(
        f"this build of torch has no integer kernels (engines: {', '.join(supported)}); "
        "use a scheme with FP32 arithmetic, such as int8-weight-only"
    )


def unpack_linear(packed: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes, scales and bias of a packed weight."""
    weight, bias = torch.ops.quantized.linear_unpack(packed)
    return weight.int_repr(), weight.q_per_channel_scales().float(), bias


def _quantized(codes: Tensor, scales: Tensor) -> Tensor:
    with warnings.catch_warnings():
        # Quantized tensors are deprecated as a way to write models; packing needs them.
        warnings.simplefilter("ignore")
        zeros = torch.zeros(len(scales), dtype=torch.int64)
        return torch._make_per_channel_quantized_tensor(  # noqa: SLF001  its only constructor from codes
            codes.contiguous(), scales.double(), zeros, 0
        )


@contextmanager
def _engine(name: str) -> Iterator[None]:
    """Pack with one implementation; the packed weight remembers it."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = name
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
