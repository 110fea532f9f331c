"""The state of an emission: the real tensors that exist as 8-bit codes, and their scales."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tts_compress.errors import QuantizationError
from tts_compress.numerics.affine import Affine
from tts_compress.onnx.graph import Graph

CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators, part of every build of it."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A tensor of 8-bit codes, channels last: (B, T, C) for a real tensor (B, C, T)."""

    tensor: str
    code: Affine
    spare: int = 0
    """Channels of zeros behind the real ones, there because kernels want a full register."""


class Emitter:
    """Writes integer nodes beside the real ones and keeps track of both forms of a tensor."""

    def __init__(self, graph: Graph, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.graph = graph
        self.scope = ""
        """Name of the operator that is being emitted; what stands for it is named within."""

        self._ranges = dict(ranges)
        self._coded: dict[str, Coded] = {}
        self._scales: dict[float, str] = {}
        self._zeros: dict[int, str] = {}

    def code_of(self, tensor: str) -> Affine:
        """Return the code that covers a real tensor's observed range."""
        return Affine.spanning(*self.span_of(tensor))

    def span_of(self, tensor: str) -> tuple[float, float]:
        """Return a real tensor's observed range.

        Raises:
            QuantizationError: The tensor was not observed, or its range is not finite.
        """
        if tensor not in self._ranges:
            raise QuantizationError(
                f"no range was observed for tensor {tensor!r}; calibrate every tensor that "
                "`observed_tensors` names"
            )
        low, high = self._ranges[tensor]
        if not np.isfinite([low, high]).all() or low > high:
            raise QuantizationError(
                f"range {low} .. {high} of tensor {tensor!r} is not an interval of finite numbers"
            )
        return low, high

    def share(self, tensors: Sequence[str]) -> None:
        """Give tensors that will stand side by side one code, so that joining them is a copy."""
        known = [self._ranges[tensor] for tensor in tensors if tensor in self._ranges]
        if len(known) == len(tensors):
            span = (min(low for low, _ in known), max(high for _, high in known))
            self._ranges.update(dict.fromkeys(tensors, span))

    def codes(self, tensor: str) -> Coded:
        """Return a real tensor's codes, quantizing it here if it has none yet."""
        if tensor not in self._coded:
            code, stem = self.code_of(tensor), tensor
            flat = self.graph.fresh(f"{stem}.codes_first")
            self.graph.add("QuantizeLinear", [tensor, *self.names(code)], [flat])
            turned = self.graph.fresh(f"{stem}.codes")
            self.graph.add("Transpose", [flat], [turned], perm=[0, 2, 1])  # (B, C, T) -> (B, T, C)
            self._coded[tensor] = Coded(turned, code)
        return self._coded[tensor]

    def define(self, tensor: str, coded: Coded) -> None:
        """Record the codes of a real tensor that is no longer computed."""
        self._coded[tensor] = coded

    def restore(self, tensor: str) -> None:
        """Write the real tensor again, from its codes, for readers that stayed real."""
        coded = self.narrow(self._coded[tensor])
        turned = self.graph.fresh(f"{tensor}.first")
        self.graph.add("Transpose", [coded.tensor], [turned], perm=[0, 2, 1])  # (B, C, T)
        self.graph.add("DequantizeLinear", [turned, *self.names(coded.code)], [tensor])

    def narrow(self, coded: Coded) -> Coded:
        """Return codes without spare channels."""
        if not coded.spare:
            return coded
        bounds = [
            self.graph.add_constant("channels", np.array([value], np.int64))
            for value in (0, -coded.spare, 2)
        ]
        cut = self.graph.fresh(f"{coded.tensor}.narrow")
        self.graph.add("Slice", [coded.tensor, *bounds], [cut])
        return Coded(cut, coded.code)

    def widen(self, coded: Coded, spare: int) -> Coded:
        """Return codes with at least so many spare channels."""
        if coded.spare >= spare:
            return coded
        pads = np.array([0, 0, 0, 0, 0, spare - coded.spare])
        inputs = [coded.tensor, self.graph.add_constant("spare_channels", pads)]
        wide = self.graph.fresh(f"{coded.tensor}.wide")
        self.graph.add("Pad", [*inputs, self.zero(coded.code.zero)], [wide])
        return Coded(wide, coded.code, spare)

    def weighted_name(self, operator: str) -> str:
        """Return a name, of an operator with weights, that keeps telling its module."""
        return self.graph.fresh(f"{self.scope}/{operator}")

    def names(self, code: Affine) -> tuple[str, str]:
        """Return initializers that hold a scale and a zero point."""
        return self.scale(code.scale), self.zero(code.zero)

    def scale(self, value: float) -> str:
        """Return an initializer that holds a float32 scalar."""
        if value not in self._scales:
            name = f"scale_{len(self._scales)}"
            self._scales[value] = self.graph.add_constant(name, np.array(value, np.float32))
        return self._scales[value]

    def zero(self, value: int) -> str:
        """Return an initializer that holds a code."""
        if value not in self._zeros:
            code = np.array(value, np.uint8)
            self._zeros[value] = self.graph.add_constant(f"zero_{value}", code)
        return self._zeros[value]
