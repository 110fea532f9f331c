"""The gain of training without data, on a real vocoder: `python -m benchmarks.qat`."""

from __future__ import annotations

__all__: list[str] = []
