"""Agreement of a compressed model's results with the original's."""

from collections.abc import Sequence
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


def least_db(scheme: str) -> float:
    """Return the signal-to-noise ratio that the bits of a scheme leave."""
    bits = next((bits for name, bits in _BITS.items() if scheme.startswith(name)), 7)
    return float(_DB_OF_A_BIT * (bits - _SPARE_BITS))


def check_agreement(expected: Sequence[Any], found: Sequence[Any], scheme: str) -> None:
    """Compare the outputs of a call.

    Args:
        expected: The original's arrays.
        found: The compressed model's.
        scheme: Its scheme.

    Raises:
        DisagreementError: They differ in number, shape, type or finiteness, or by more than
            the scheme's bits explain.
    """
    if len(expected) != len(found):
        raise DisagreementError(f"{scheme}: {len(found)} outputs, not {len(expected)}")
    for before, after in zip(expected, found, strict=True):
        stated = [f"{array.dtype} {list(array.shape)}" for array in (before, after)]
        if stated[0] != stated[1]:
            raise DisagreementError(f"{scheme}: {stated[1]} in place of {stated[0]}")
        known = np.isfinite(before)
        if not np.isfinite(after[known]).all():
            raise DisagreementError(f"{scheme}: not finite where the original is")
        wide = np.complex128 if before.dtype.kind == "c" else np.float64
        signal = before[known].astype(wide)
        noise = np.abs(after[known].astype(wide) - signal)
        if not noise.any():
            continue
        ratio = 20 * np.log10(np.linalg.norm(signal) / np.linalg.norm(noise))
        if not ratio >= least_db(scheme):
            raise DisagreementError(f"{scheme}: {ratio:.1f} dB, at least {least_db(scheme):.1f}")
