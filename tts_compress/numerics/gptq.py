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
    row: int | None = None,
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
        row: Inputs of each tap of a convolution, which stand together; None if there are no taps.
            Where they are odd in number, every two that follow each other are neighbours.

    Returns:
        int8, `[outputs, inputs]`.
    """
    # Every function used here has the same name and meaning in numpy and torch.
    xp: Any = np if isinstance(weight, np.ndarray) else sys.modules["torch"]
    inputs = weight.shape[1]
    group, every = inputs // scales.shape[1], (row or inputs) % 2
    shares = _error_shares(xp, moments)
    # Rows are inputs from here on: they are contiguous.
    wanted, steps = _transposed(xp, weight), _transposed(xp, scales)
    codes, errors = xp.empty_like(wanted), xp.empty_like(wanted)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        rest = wanted[start:end] + shares[start:end, :start] @ errors[:start]
        for i in range(start, end):
            step = steps[i // group]
            target = rest[i - start] + shares[i, start:i] @ errors[start:i]
            codes[i] = xp.clip(xp.round(target / step), *limits)
            if pair_limit is not None and (i % 2 or (every and i)):
                before = codes[i - 1]
                codes[i] = xp.clip(codes[i], -pair_limit - before, pair_limit - before)
            errors[i] = wanted[i] - codes[i] * step
    rounded: ArrayT = _transposed(xp, codes, xp.int8)
    return rounded


def _transposed(xp: Any, matrix: Any, kind: Any = None) -> Any:
    """Return a contiguous copy of a transposed matrix, in float64 or a given type."""
    turned = xp.empty_like(matrix.T, dtype=kind or xp.float64)
    turned = turned.copy("C") if xp is np else turned.contiguous()
    turned[:] = matrix.T
    return turned


def _error_shares(xp: Any, moments: Any) -> Any:
    """Return the shares of the errors of earlier inputs that each input takes over.

    Where U Uᵀ are the moments, damped, with an upper triangle U, input i takes over U[j, i] /
    U[i, i] of the error of each j before it: then the output is closest to the original's if
    the inputs behind are free. So the paper's inverse of the moments is not needed.
    """
    damped = _transposed(xp, moments)  # symmetric
    diagonal = range(len(damped))
    mean = damped[diagonal, diagonal].mean()
    # Without any input there is nothing to keep: the identity rounds to nearest.
    damped[diagonal, diagonal] += _DAMPING * mean if mean > 0 else 1.0
    upper = xp.flip(xp.linalg.cholesky(xp.flip(damped, (0, 1))), (0, 1))
    return _transposed(xp, upper / upper[diagonal, diagonal])
