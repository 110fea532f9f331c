"""What is made integer, and with which of the equivalent kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_compress.targets import Arithmetic, FewOutputs, LeakyRelu

__all__ = ["IntegerPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerPlan:
    """The decisions of a recipe, in terms of one graph."""

    convolutions: frozenset[str]
    """Output tensors of the convolutions that compute on codes; what stands between follows."""

    signed: bool = False
    """Whether activation codes are int8, as ARM's kernels want them, rather than uint8."""

    weight_limit: int = 127
    """The largest weight code; 63 keeps sums of two products in 16 bits where there is no VNNI."""

    leaky_relu: LeakyRelu = "max"
    """Two vector operations in the input's code, or a table with a code of its own."""

    addition: Arithmetic = "codes"
    """Where two tensors of codes are added."""

    gates: Arithmetic = "codes"
    """Where the tanh, sigmoid and product of a gate are computed."""

    few_outputs: FewOutputs = "blocks"
    """How a convolution with few outputs gives real numbers: as a product of blocks of samples or
    of frames, or as an integer convolution whose codes are turned into numbers."""
