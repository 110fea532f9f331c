"""Weights that can be computed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor

__all__ = ["check_finite"]


def check_finite(weights: Iterable[tuple[str, Tensor]], where: Path | str) -> None:
    """Refuse weights of which a value is infinite or none at all, as a damaged file has them.

    Args:
        weights: With their names.
        where: What holds them, for errors.

    Raises:
        ModelError: One of them is so.
    """
    for name, tensor in weights:
        if not tensor.isfinite().all():
            raise ModelError(f"'{where}': weight '{name}' has values that are not finite")
