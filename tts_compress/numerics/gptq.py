"""Rounding one input after another, the later ones making up for the error of the earlier.

Method: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", arXiv:2210.17323, algorithm 1, with scales that are fixed beforehand.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tts_compress.numerics.weights import ArrayT

_BLOCK = 128
"""Inputs after which the rest of the weight is updated at once."""

_DAMPING = 0.01
"""Share of the mean of the moments' diagonal that is added to it."""


def gptq(
    weight: ArrayT,
    moments: ArrayT,
    scales: ArrayT,
    limits: tuple[int, int],
    *,
    pair_limit: int | None = None,
) -> ArrayT:
    """Return the codes of a weight that keep the layer's output on calibration data.

    Args:
        weight: `[outputs, inputs]`, finite, an array of numpy or torch as the others.
        moments: Σ x xᵀ of the layer's inputs, `[inputs, inputs]`, up to a factor. Weights of
            inputs that were always zero are rounded to nearest.
        scales: `[outputs, groups]`, not zero; each is shared by inputs / groups neighbours.
        limits: The lowest and the highest code.
        pair_limit: The largest magnitude of the sum of two neighbouring inputs' codes; None where
            nothing multiplies the codes two by two.

    Returns:
        int8, `[outputs, inputs]`.
    """
    # Every function used here has the same name and meaning in numpy and torch.
    xp: Any = np if isinstance(weight, np.ndarray) else sys.modules["torch"]
    inputs = weight.shape[1]
    group = inputs // scales.shape[1]
    factor = _error_factor(xp, moments)
    # Rows are inputs from here on: they are contiguous.
    rest, steps = _transposed(xp, weight), _transposed(xp, scales)
    codes = xp.empty_like(rest)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        errors = xp.empty_like(rest[start:end])
        for i in range(start, end):
            step = steps[i // group]
            codes[i] = xp.clip(xp.round(rest[i] / step), *limits)
            if pair_limit is not None and (i % 2 or (inputs % 2 and i)):
                before = codes[i - 1]
                codes[i] = xp.clip(codes[i], -pair_limit - before, pair_limit - before)
            error = (rest[i] - codes[i] * step) / factor[i, i]
            rest[i + 1 : end] -= xp.outer(factor[i, i + 1 : end], error)
            errors[i - start] = error
        rest[end:] -= factor[start:end, end:].T @ errors
    rounded: ArrayT = _transposed(xp, codes, xp.int8)
    return rounded


def _transposed(xp: Any, matrix: Any, kind: Any = None) -> Any:
    """Return a contiguous copy of a transposed matrix, in float64 or a given type."""
    turned = xp.empty_like(matrix.T, dtype=kind or xp.float64)
    turned = turned.copy("C") if xp is np else turned.contiguous()
    turned[:] = matrix.T
    return turned


def _error_factor(xp: Any, moments: Any) -> Any:
    """Return the upper triangle U with Uᵀ U the inverse of the moments, damped.

    Its rows hold the shares by which later inputs take over the error of one.
    """
    damped = _transposed(xp, moments)  # symmetric
    diagonal = range(len(damped))
    mean = damped[diagonal, diagonal].mean()
    # Without any input there is nothing to keep: the identity rounds to nearest.
    damped[diagonal, diagonal] += _DAMPING * mean if mean > 0 else 1.0
    inverse = xp.linalg.inv(xp.linalg.cholesky(damped))
    return xp.linalg.cholesky(inverse.T @ inverse).T
