"""Agreement of a compressed model's results with the original's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_BITS = {"int4": 4, "bf16": 8, "fp16": 11, "fp8": 4, "mixed": 4}
"""Bits of a number by the beginning of a scheme's name; eight-bit weights may keep seven, so that
the sums of integer kernels do not overflow."""

_DB_OF_A_BIT = 20 * np.log10(2)

_SPARE_BITS = 3.0
"""Two bits from the peak of many numbers to their deviation, one for activations and layers."""


class DisagreementError(Exception):
    """A result that is not what the original returns."""


def bits_of(scheme: str) -> int:
    """Return the bits of a scheme's numbers."""
    return next((bits for name, bits in _BITS.items() if scheme.startswith(name)), 7)


def ratio_db(before: Any, after: Any) -> float:
    """Return the signal-to-noise ratio of an array where the original is finite."""
    known = np.isfinite(before)
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    signal = before[known].astype(wide)
    noise = np.abs(after[known].astype(wide) - signal)
    if not noise.any():
        return float("inf")
    return float(20 * np.log10(np.linalg.norm(signal) / np.linalg.norm(noise)))


def check_agreement(
    expected: Sequence[Any],
    actual: Sequence[Any],
    scheme: str,
    magnified_db: Callable[[], float] = lambda: float("inf"),
) -> None:
    """Compare the arrays of a call by a model and by its compressed form.

    They must agree in number, shape, type and finiteness, and differ by no more than the scheme's
    bits explain; or than `magnified_db`, the ratio of the original itself after its weights and
    inputs moved by that rounding: a model may magnify it, as a norm does what hardly varies.
    """
    if len(expected) != len(actual):
        raise DisagreementError(f"{scheme}: {len(actual)} outputs, not {len(expected)}")
    for before, after in zip(expected, actual, strict=True):
        stated = [f"{array.dtype} {list(array.shape)}" for array in (before, after)]
        if stated[0] != stated[1]:
            raise DisagreementError(f"{scheme}: {stated[1]} in place of {stated[0]}")
        if not np.isfinite(after[np.isfinite(before)]).all():
            raise DisagreementError(f"{scheme}: not finite where the original is")
        ratio, least = ratio_db(before, after), _DB_OF_A_BIT * (bits_of(scheme) - _SPARE_BITS)
        if not ratio >= least and not ratio >= (least := min(least, magnified_db())):
            raise DisagreementError(f"{scheme}: {ratio:.1f} dB, at least {least:.1f}")
