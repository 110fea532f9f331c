"""The state of an emission: the real tensors that exist as 8-bit codes, and their scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tts_compress.numerics.affine import Affine
from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.weight_codes import WeightCodes

CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators, part of every build of it."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor of 8-bit codes, channels last: (B, T, C) for a real tensor (B, C, T)."""

    tensor: str
    code: Affine
    spare: int = 0
    """Channels of zeros behind the real ones, which fill the kernels' registers."""


class Emitter:
    """Writes integer nodes beside the real ones and keeps track of both forms of a tensor."""

    def __init__(
        self, graph: Graph, ranges: Mapping[str, tuple[float, float]], weights: WeightCodes
    ) -> None:
        self.graph = graph
        self.weights = weights
        self.scope = ""
        """Name of the operator that is being emitted, a prefix of its integer operators' names."""

        self.ranges = dict(ranges)
        self._coded: dict[str, Coded] = {}
        self._scales: dict[float, int] = {}

    def code_of(self, tensor: str) -> Affine:
        """Return the code that covers a real tensor's observed range."""
        return Affine.spanning(*self.ranges[tensor])

    def share(self, tensors: Sequence[str]) -> None:
        """Give tensors that will stand side by side one code, so that joining them is a copy."""
        if all(tensor in self.ranges for tensor in tensors):
            lows, highs = zip(*(self.ranges[tensor] for tensor in tensors), strict=True)
            self.ranges.update(dict.fromkeys(tensors, (min(lows), max(highs))))

    def codes(self, tensor: str) -> Coded:
        """Return a real tensor's codes, quantizing it here if it has none yet."""
        if tensor not in self._coded:
            code = self.code_of(tensor)
            inputs = [tensor, *self.names(code)]
            flat = self.graph.make("QuantizeLinear", inputs, f"{tensor}.codes_first")
            # (B, C, T) -> (B, T, C)
            turned = self.graph.make("Transpose", [flat], f"{tensor}.codes", perm=[0, 2, 1])
            self._coded[tensor] = Coded(turned, code)
        return self._coded[tensor]

    def define(self, tensor: str, coded: Coded) -> None:
        """Record the codes of a real tensor that is no longer computed."""
        self._coded[tensor] = coded

    def restore(self, tensor: str, factors: Array | None = None) -> None:
        """Write the real tensor again, from its codes, for readers that stayed real.

        Args:
            tensor: The tensor (B, C, T).
            factors: Factors of its channels, (C,); applying them costs nothing.
        """
        coded, graph = self.narrow(self._coded[tensor]), self.graph
        # (B, T, C) -> (B, C, T)
        turned = graph.make("Transpose", [coded.tensor], f"{tensor}.first", perm=[0, 2, 1])
        if factors is None:
            scale, zero = self.names(coded.code)
        else:
            scales = (coded.code.scale * factors.astype(np.float64)).astype(np.float32)
            zeros = np.full(len(scales), coded.code.zero, np.uint8)
            scale, zero = graph.add_constants(tensor, scales=scales, zeros=zeros)
        # Scales of several channels are those of the second axis, unless it says otherwise.
        graph.add("DequantizeLinear", [turned, scale, zero], [tensor])

    def narrow(self, coded: Coded) -> Coded:
        """Return codes without spare channels."""
        if not coded.spare:
            return coded
        inputs = [coded.tensor, *self.graph.add_bounds("channels", 0, -coded.spare, 2)]
        return Coded(self.graph.make("Slice", inputs, f"{coded.tensor}.narrow"), coded.code)

    def widen(self, coded: Coded, spare: int) -> Coded:
        """Return codes with at least so many spare channels."""
        if coded.spare >= spare:
            return coded
        pads = np.array([0, 0, 0, 0, 0, spare - coded.spare])
        amounts = self.graph.add_constant("spare_channels", pads)
        inputs = [coded.tensor, amounts, self.zero(coded.code.zero)]
        wide = self.graph.make("Pad", inputs, f"{coded.tensor}.wide")
        return Coded(wide, coded.code, spare)

    def weighted_name(self, operator: str) -> str:
        """Return a new name for an operator with weights; it still tells the module."""
        return self.graph.fresh(f"{self.scope}/{operator}")

    def names(self, code: Affine) -> tuple[str, str]:
        """Return initializers that hold a scale and a zero point."""
        return self.scale(code.scale), self.zero(code.zero)

    def scale(self, value: float) -> str:
        """Return an initializer that holds a float32 scalar."""
        name = f"scale_{self._scales.setdefault(value, len(self._scales))}"
        return self.graph.share_constant(name, np.array(value, np.float32))

    def zero(self, value: int) -> str:
        """Return an initializer that holds a code."""
        return self.graph.share_constant(f"zero_{value}", np.array(value, np.uint8))
