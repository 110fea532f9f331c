"""What a setting of precision does on the hardware at hand."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["matmul_precision"]

_MEANS = {"high": "TF32 or three bfloat16 products", "medium": "bfloat16 products"}


@contextmanager
def matmul_precision(
    wanted: Literal["highest", "high", "medium"], device: torch.device
) -> Iterator[str]:
    """Set the precision of FP32 products for the length of a block; give what took effect.

    Convolutions on a GPU, which torch computes in TF32 unless told otherwise, follow it too.

    Args:
        wanted: As `torch.set_float32_matmul_precision` takes it.
        device: Where training runs.
    """
    before = torch.get_float32_matmul_precision()
    convolutions = device.type == "cuda"
    allowed = torch.backends.cudnn.allow_tf32 if convolutions else False
    exact = _product("highest", device)
    differs = not torch.equal(exact, _product(wanted, device))
    torch.set_float32_matmul_precision(wanted)
    if convolutions:
        torch.backends.cudnn.allow_tf32 = wanted != "highest"
    try:
        if wanted == "highest":
            yield "highest: FP32"
        elif differs:
            yield f"{wanted}: {_MEANS[wanted]}"
        else:
            yield f"{wanted}: no effect on this hardware, FP32"
    finally:
        torch.set_float32_matmul_precision(before)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = allowed


def _product(precision: str, device: torch.device) -> torch.Tensor:
    """Return a product that is rounded otherwise by each way of computing it."""
    torch.set_float32_matmul_precision(precision)
    source = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=source).to(device)
    product: torch.Tensor = left @ right
    return product
