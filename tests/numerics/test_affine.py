"""Ranges become scales."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.numerics.ranges import Affine

_ends = st.floats(-1e30, 1e30)


@given(ends=st.tuples(_ends, _ends).map(sorted))
def test_range_is_covered_and_zero_is_exact(ends: list[float]) -> None:
    low, high = ends
    code = Affine.spanning(low, high)
    scale, zero = code.scale, code.zero
    first, last = 0, 255
    assert first <= zero <= last
    assert scale > 0
    assert scale == np.float32(scale)
    smallest = float(np.finfo(np.float32).tiny)
    if max(high, 0) - min(low, 0) > 255 * smallest * 2:
        # Rounding the zero point moves the ends by up to half a step.
        slack = 0.51 * scale
        assert (first - zero) * scale <= min(low, 0.0) + slack
        assert (last - zero) * scale >= max(high, 0.0) - slack


def test_known_ranges() -> None:
    assert Affine.spanning(-0.51, 2.04) == Affine(float(np.float32(0.01)), 51)
    assert Affine.spanning(0.5, 2.55) == Affine(float(np.float32(0.01)), 0)
    assert Affine.spanning(-2.55, -1.0) == Affine(float(np.float32(0.01)), 255)
    assert Affine.spanning(0.0, 0.0) == Affine(float(np.float32(1)), 0)
