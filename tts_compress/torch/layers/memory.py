"""Giving memory back to the operating system."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["release_freed"]


def release_freed() -> None:
    """Return freed memory to the system, where the C library keeps it for later.

    Packing a layer needs its codes three times for a moment; glibc keeps the holes that are left,
    and without this a loaded model takes far more than its file.
    """
    if not sys.platform.startswith("linux"):
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # musl has none, and needs none
        trim(0)
