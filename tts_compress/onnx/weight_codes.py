"""The integers that stand for a graph's weights: chosen by an algorithm, or rounded to nearest."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from tts_compress.numerics.four_bits import Blocks, round_blocks
from tts_compress.numerics.weights import round_weight
from tts_compress.onnx.graph import Array, Graph


@dataclass(frozen=True, slots=True, eq=False)
class EightBits:
    """A weight in eight bits."""

    codes: Array
    """int8 in [-127, 127], output channels first. The weight of an upsampling convolution in
    calibrated integers is that of its phases."""

    scales: Array
    """FP32, one for each of the codes' output channels."""

    shift: Array | None = None
    """Mean error that rounding the weight leaves in the operator's output, (C_out,); None without a
    bias that could make up for it."""


Chosen: TypeAlias = Blocks[Array] | EightBits
"""A weight whose codes an algorithm chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCodes:
    """How the weights of a graph are rounded, by the first outputs of its operators."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of weights of an output channel that share a factor, for operators in four bits."""

    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """Codes of those whose weights are not rounded to nearest."""

    def blocks(self, output: str, weight: Array) -> Blocks[Array] | None:
        """Return an operator's weight in four bits, or None where it gets eight.

        Args:
            output: Its first output.
            weight: The weight, output channels first.
        """
        if output not in self.sizes:
            return None
        codes = self.chosen.get(output)
        return codes if isinstance(codes, Blocks) else round_blocks(weight, self.sizes[output])

    def rounded(self, output: str, weight: Array, *, multiplied: bool) -> tuple[Array, Array]:
        """Return an operator's weight in eight bits: codes of its shape, and scales.

        Args:
            output: Its first output.
            weight: The weight, output channels first; with spare inputs or without.
            multiplied: True if integer kernels multiply the codes; see `round_weight`.
        """
        chosen = self.chosen.get(output)
        if not isinstance(chosen, EightBits):
            return round_weight(weight, 0, multiplied=multiplied)
        spare = weight.shape[1] - chosen.codes.shape[1]
        unused = np.zeros((len(weight), spare, *weight.shape[2:]), np.int8)
        return np.concatenate([chosen.codes, unused], 1), chosen.scales


def shift_biases(graph: Graph, chosen: Mapping[str, Chosen]) -> None:
    """Change biases of convolutions so that they keep the means of the outputs."""
    for output, codes in chosen.items():
        if not isinstance(codes, EightBits) or codes.shift is None:
            continue
        node = graph.producer(output)
        assert node is not None
        bias = (graph.value(node.input[2]) + codes.shift).astype(np.float32)
        graph.replace_input(node, 2, graph.add_constant(f"{output}.shifted_bias", bias))
