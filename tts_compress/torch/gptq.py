"""Rounding one input after another, the later ones making up for the error of the earlier.

Method: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", arXiv:2210.17323, algorithm 1, with scales that are fixed beforehand.
"""

import torch
from torch import Tensor

_BLOCK = 128
"""Inputs after which the rest of the weight is updated at once."""

_DAMPING = 0.01
"""Share of the mean of the moments' diagonal that is added to it."""


def gptq(
    weight: Tensor,
    moments: Tensor,
    scales: Tensor,
    limits: tuple[int, int],
    *,
    pair_limit: int | None = None,
) -> Tensor:
    """Return the codes of a weight that keep the layer's output on calibration data.

    Args:
        weight: `[outputs, inputs]`, finite.
        moments: Σ x xᵀ of the layer's inputs, `[inputs, inputs]`, up to a factor. Weights of
            inputs that were always zero are rounded to nearest.
        scales: `[outputs, groups]`; each is shared by inputs / groups neighbours.
        limits: The lowest and the highest code.
        pair_limit: The largest magnitude of the sum of two neighbouring inputs' codes; None where
            nothing multiplies the codes two by two.

    Returns:
        int8, `[outputs, inputs]`.
    """
    inputs = weight.shape[1]
    factor = _error_factor(moments.to(torch.float64, copy=True))
    # Rows are inputs from here on: they are contiguous.
    rest = weight.t().to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    steps = scales.double().t().repeat_interleave(inputs // scales.shape[1], dim=0)
    codes = torch.empty_like(rest)
    for start in range(0, inputs, _BLOCK):
        end = min(start + _BLOCK, inputs)
        errors = torch.empty_like(rest[start:end])
        for i in range(start, end):
            codes[i] = (rest[i] / steps[i]).round().clamp(*limits)
            if pair_limit is not None and (i % 2 or (inputs % 2 and i)):
                codes[i].clamp_(-pair_limit - codes[i - 1], pair_limit - codes[i - 1])
            error = (rest[i] - codes[i] * steps[i]) / factor[i, i]
            rest[i + 1 : end].addr_(factor[i, i + 1 : end], error, alpha=-1)
            errors[i - start] = error
        rest[end:].addmm_(factor[start:end, end:].t(), errors, alpha=-1)
    return codes.t().to(torch.int8).contiguous()


def _error_factor(moments: Tensor) -> Tensor:
    """Return the upper triangle U with Uᵀ U the inverse of the moments, which it damps in place.

    Its rows hold the shares by which later inputs take over the error of one.
    """
    mean = moments.diagonal().mean()
    # Without any input there is nothing to keep: the identity rounds to nearest.
    moments.diagonal().add_(_DAMPING * mean if mean > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moments))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor
