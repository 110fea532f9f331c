"""Standard operators that turn fed normal values into what a random operator would have drawn."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import attribute

NOISE_PREFIX = "tts_compress.noise."
"""Prefix of the inputs that take noise, and of the operators that read them."""

_TALL = 16
"""A tensor (B, X, Y) with so many times more X than Y has its time on X, any other one on Y."""

_SHARED: dict[str, float | list[int]] = {
    "zero": [0],
    "one": [1],
    "last": [-1],
    "end": [np.iinfo(np.int64).max],
    "tall": [_TALL],
    "rows": [7_919],
    "root": 0.5**0.5,
    "half": 0.5,
    "unit": 1.0,
}
"""Constants of all operators that read noise: whole numbers as vectors, real ones as scalars.
`rows` keeps apart the iterations of a loop within a loop."""


@dataclass(slots=True, kw_only=True)
class NoiseReader:
    """Writes the operators that stand for one random operator."""

    name: str
    """The input that takes its noise."""

    allow_zero: bool
    """A shape may hold zeros; from version 14 of the standard operators on."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def read(
        self, random: onnx.NodeProto, counters: tuple[str, ...], element: int | None
    ) -> list[onnx.NodeProto]:
        """Return the operators.

        Args:
            random: The random operator.
            counters: Tensors that count the iterations of the loops around it, outermost first.
            element: The type of the result; None that of its input.
        """
        if random.op_type.endswith("Like"):
            shape = self._add("Shape", [random.input[0]], "shape")
        else:
            wanted = np.array(attribute(random, "shape", ()), np.int64)
            value = numpy_helper.from_array(wanted)
            shape = self._add("Constant", [], "shape", value=value)
        size = self._add("ReduceProd", [shape], "size", keepdims=1)
        values = self._reals(random, self._laid_out(self._flat(size, counters), shape, size))
        result, name = [random.output[0]], self.name
        if element is None:
            cast = helper.make_node("CastLike", [values, random.input[0]], result, name)
        else:
            cast = helper.make_node("Cast", [values], result, name, to=element)
        return [*self.nodes, cast]

    def _flat(self, size: str, counters: tuple[str, ...]) -> str:
        """Return so many values, repeated where there are fewer."""
        available = self._add("Size", [self.name], "available")
        start, end = self._shared("zero"), size
        for number, counter in enumerate(counters):
            step = self._add("Reshape", [counter, self._shared("one")], f"step{number}")
            if number:
                rows = self._add("Mul", [start, self._shared("rows")], f"rows{number}")
                step = self._add("Add", [rows, step], f"iteration{number}")
            start = step
        if counters:
            first = self._add("Mul", [start, size], "first")
            start = self._add("Mod", [first, available], "start")
            end = self._add("Add", [start, size], "end")
        quotient = self._add("Div", [end, available], "quotient")
        repeats = self._add("Add", [quotient, self._shared("one")], "repeats")
        tiled = self._add("Tile", [self.name, repeats], "tiled")
        return self._add("Slice", [tiled, start, end], "flat")

    def _laid_out(self, flat: str, shape: str, size: str) -> str:
        """Return values in a shape `[B, ..., T]`, filled as `[B, T, ...]`."""
        one, last = self._shared("one"), self._shared("last")
        ends = self._add("Slice", [shape, last, self._shared("end")], "ends")
        inner = self._add("Slice", [shape, one, last], "inner")
        time = self._add("ReduceProd", [ends], "time", keepdims=1)
        channels = self._add("ReduceProd", [inner], "channels", keepdims=1)
        frame = self._add("Mul", [time, channels], "frame")
        batch = self._add("Div", [size, self._add("Max", [frame, one], "some")], "batch")
        slim = self._add("Mul", [time, self._shared("tall")], "slim")
        is_wide = self._add("Less", [channels, slim], "is_wide")
        layout = self._add("Concat", [batch, time, channels], "layout", axis=0)
        plain = self._add("Concat", [size, one, one], "plain", axis=0)
        dims = self._add("Where", [is_wide, layout, plain], "dims")
        zeros: dict[str, Any] = {"allowzero": 1} if self.allow_zero else {}
        frames = self._add("Reshape", [flat, dims], "frames", **zeros)
        turned = self._add("Transpose", [frames], "turned", perm=[0, 2, 1])
        return self._add("Reshape", [turned, shape], "standard", **zeros)

    def _reals(self, random: onnx.NodeProto, standard: str) -> str:
        """Return standard normal values with the distribution of the operator."""
        if random.op_type.startswith("RandomNormal"):
            shift = attribute(random, "mean", 0.0)
            factor = attribute(random, "scale", 1.0)
        else:
            shift = attribute(random, "low", 0.0)
            factor = attribute(random, "high", 1.0) - shift
            # The distribution function of normal values is uniform.
            unit = self._add("Mul", [standard, self._shared("root")], "root_share")
            bell = self._add("Erf", [unit], "erf")
            above = self._add("Add", [bell, self._shared("unit")], "above")
            standard = self._add("Mul", [above, self._shared("half")], "uniform")
        deviation = self._add("Constant", [], "deviation", value=_number(factor))
        mean = self._add("Constant", [], "mean", value=_number(shift))
        scaled = self._add("Mul", [standard, deviation], "scaled")
        return self._add("Add", [scaled, mean], "values")

    def _add(self, operator: str, inputs: list[str], part: str, **attributes: Any) -> str:
        made = f"{self.name}/{part}"
        self.nodes.append(helper.make_node(operator, inputs, [made], made, **attributes))
        return made

    @staticmethod
    def _shared(name: str) -> str:
        return f"{NOISE_PREFIX}{name}"


def shared_constants() -> list[onnx.TensorProto]:
    """Return the constants that all operators that read noise share."""
    return [
        numpy_helper.from_array(
            np.array(value, np.int64 if isinstance(value, list) else np.float32),
            f"{NOISE_PREFIX}{name}",
        )
        for name, value in _SHARED.items()
    ]


def _number(value: float) -> onnx.TensorProto:
    return helper.make_tensor("", TensorProto.FLOAT, [], [value])
