"""Random noise as an input of a graph, so that two graphs can be given the same.

A seed does not pair two graphs: runtimes derive each random operator's stream from its position, so
an FP32 graph and its quantized copy draw different noise, and the difference between the two sounds
swamps the effect of quantization. Noise that is fed pairs them exactly.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.onnx.graph import (
    ancestors,
    attribute,
    bodies,
    copy_attributes,
    copy_model,
    element_types,
    inline_functions,
    nested_graphs,
    nested_nodes,
    set_nodes,
    standard_opset,
    tensors_read,
)

NOISE_PREFIX = "tts_compress.noise."
"""Prefix of the inputs that take noise, and of the operators that read them."""

NOISE_LENGTH = 1 << 18
"""Values fed per operator; a longer need repeats them (with 192 channels after 1,365 frames)."""

_FED = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_REFUSED = frozenset({"Bernoulli", "Multinomial"})

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """A random operator and the operators in whose branches or bodies it stands."""

    node: onnx.NodeProto
    around: tuple[onnx.NodeProto, ...]

    @property
    def outermost(self) -> onnx.NodeProto:
        """The operator of the main graph that it is or is in."""
        return (*self.around, self.node)[0]

    @property
    def counters(self) -> tuple[str, ...]:
        """Tensors that count the iterations of the loops around it, outermost first."""
        loops = (node for node in self.around if node.op_type == "Loop")
        return tuple(body.input[0].name for loop in loops for body in bodies(loop))


def feed_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which every normal or uniform random operator reads a new input.

    The values of an input of shape `[NOISE_LENGTH]` fill a tensor `[B, ..., T]` time step by time
    step, so that a graph with other durations still gets equal noise at equal times. In a loop each
    iteration reads on where the last one stopped. Inputs are numbered so that a compressed copy,
    whose operators may stand in another order, has the same ones.
    """
    fed = copy_model(model)
    if any(_draws(node) for function in fed.functions for node in nested_nodes(function.node)):
        fed = inline_functions(fed)
    draws = [
        _Draw(node=node, around=around)
        for graph, around in nested_graphs(fed.graph)
        for node in graph.node
        if _draws(node)
    ]
    for draw in draws:
        _check(draw)
    if not draws:
        return fed
    elements = _element_types(fed, [draw.node for draw in draws])
    readers: dict[int, list[onnx.NodeProto]] = {}
    for index, draw in enumerate(sorted(draws, key=_order(fed.graph, draws))):
        name = f"{NOISE_PREFIX}{index}"
        fed.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
        reader = _NoiseReader(name=name, allow_zero=standard_opset(fed) >= 14)
        readers[id(draw.node)] = reader.read(draw, elements.get(id(draw.node)))
    # Putting nodes into a graph copies them, with their bodies: those first.
    for graph, _ in reversed(list(nested_graphs(fed.graph))):
        if any(id(node) in readers for node in graph.node):
            set_nodes(graph, [new for node in graph.node for new in readers.get(id(node), [node])])
    fed.graph.initializer.extend(
        numpy_helper.from_array(
            np.array(value, np.int64 if isinstance(value, list) else np.float32),
            f"{NOISE_PREFIX}{name}",
        )
        for name, value in _SHARED.items()
    )
    return fed


def noise_inputs(names: list[str]) -> list[str]:
    """Return those of a graph's input names that take noise, in the order of their numbers."""
    noise = (name for name in names if name.startswith(NOISE_PREFIX))
    return sorted(noise, key=lambda name: int(name.split(".")[-1]))


def draw_noise(names: list[str], *, seed: tuple[int, ...] | None) -> dict[str, Samples]:
    """Return standard normal values for each noise input; zeros where `seed` is None.

    Zeros give each operator's mean; for uniform values the middle of their range.
    """
    if seed is None:
        return {name: np.zeros(1, np.float32) for name in noise_inputs(names)}
    if min(seed) < 0:
        raise TTSCompressError(f"seed {min(seed)} is negative; give 0 or a larger integer")
    return {
        name: np.random.default_rng([*seed, index]).standard_normal(NOISE_LENGTH, np.float32)
        for index, name in enumerate(noise_inputs(names))
    }


def _draws(node: onnx.NodeProto) -> bool:
    """Return True if an operator is random; Dropout is random only in training."""
    trains = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
    return node.op_type in _FED | _REFUSED or trains


def _check(draw: _Draw) -> None:
    """Refuse a random operator that cannot be fed."""
    kind, name = draw.node.op_type, draw.node.name or draw.node.output[0]
    if kind not in _FED:
        raise ModelError(
            f"the graph draws noise with {kind} '{name}', which "
            "cannot be fed, so FP32 and a compressed copy cannot be paired; accepted: "
            f"{', '.join(sorted(_FED))} (comparing a RandomUniformLike makes a random choice)"
        )
    for outer in reversed(draw.around):
        if outer.op_type not in {"If", "Loop"}:
            raise ModelError(
                f"the graph draws noise with {kind} '{name}' inside a {outer.op_type}, where "
                "steps are not counted and cannot be fed one by one; export it as a Loop"
            )


def _order(graph: onnx.GraphProto, draws: list[_Draw]) -> Any:
    """Return a sorting key that is the same for a graph and its compressed copy.

    Operators come after those that they depend on, as in every order of a graph; others by name.
    """
    makers = {name: node for node in graph.node for name in node.output}
    outermost = {id(draw.outermost): draw.outermost for draw in draws}
    behind = {
        key: sum(id(seen) in outermost for seen in ancestors(makers, tensors_read(node)))
        for key, node in outermost.items()
    }

    def key(draw: _Draw) -> tuple[int, list[tuple[int, str]]]:
        parts = re.findall(r"\d+|\D+", draw.node.output[0])
        natural = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
        return behind[id(draw.outermost)], natural

    return key


def _element_types(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> dict[int, int]:
    """Return element types of random operators by id; the others take that of their input."""
    elements: dict[int, int] = {}
    types: dict[str, int] | None = None
    for node in nodes:
        if "dtype" in copy_attributes(node) or not node.op_type.endswith("Like"):
            elements[id(node)] = attribute(node, "dtype", int(TensorProto.FLOAT))
        elif standard_opset(model) < 15:  # there is no CastLike
            if types is None:
                inferred = shape_inference.infer_shapes(model).graph
                parts = [element_types(part) for part, _ in nested_graphs(inferred)]
                types = {name: kind for part in reversed(parts) for name, kind in part.items()}
            elements[id(node)] = types.get(node.input[0]) or int(TensorProto.FLOAT)
    return elements


@dataclass(slots=True, kw_only=True)
class _NoiseReader:
    """Writes the operators that stand for one random operator."""

    name: str
    """The input that takes its noise."""

    allow_zero: bool
    """A shape may hold zeros; from version 14 of the standard operators on."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def read(self, draw: _Draw, element: int | None) -> list[onnx.NodeProto]:
        """Return the operators; `element` is the type of the result, None that of its input."""
        random = draw.node
        if random.op_type.endswith("Like"):
            shape = self._add("Shape", [random.input[0]], "shape")
        else:
            sizes = np.array(attribute(random, "shape", ()), np.int64)
            shape = self._add("Constant", [], "shape", value=numpy_helper.from_array(sizes))
        size = self._add("ReduceProd", [shape], "size", keepdims=1)
        values = self._reals(random, self._laid_out(self._flat(size, draw.counters), shape, size))
        result, name = random.output, self.name
        if element is None:
            cast = helper.make_node("CastLike", [values, random.input[0]], result, name)
        else:
            cast = helper.make_node("Cast", [values], result, name, to=element)
        return [*self.nodes, cast]

    def _flat(self, size: str, counters: tuple[str, ...]) -> str:
        """Return `size` of the values that are fed, repeated if these are fewer."""
        available = self._add("Shape", [self.name], "available")  # OpenVINO knows no Size
        start, end = f"{NOISE_PREFIX}zero", size
        for number, counter in enumerate(counters):
            step = self._add("Reshape", [counter, f"{NOISE_PREFIX}one"], f"step{number}")
            if number:
                rows = self._add("Mul", [start, f"{NOISE_PREFIX}rows"], f"rows{number}")
                step = self._add("Add", [rows, step], f"iteration{number}")
            start = step
        if counters:
            first = self._add("Mul", [start, size], "first")
            start = self._add("Mod", [first, available], "start")
            end = self._add("Add", [start, size], "end")
        quotient = self._add("Div", [end, available], "quotient")
        repeats = self._add("Add", [quotient, f"{NOISE_PREFIX}one"], "repeats")
        tiled = self._add("Tile", [self.name, repeats], "tiled")
        return self._add("Slice", [tiled, start, end], "flat")

    def _laid_out(self, flat: str, shape: str, size: str) -> str:
        """Return values in a shape `[B, ..., T]`, filled as `[B, T, ...]`."""
        single, last = f"{NOISE_PREFIX}one", f"{NOISE_PREFIX}last"
        ends = self._add("Slice", [shape, last, f"{NOISE_PREFIX}end"], "ends")
        inner = self._add("Slice", [shape, single, last], "inner")
        time = self._add("ReduceProd", [ends], "time", keepdims=1)
        channels = self._add("ReduceProd", [inner], "channels", keepdims=1)
        frame = self._add("Mul", [time, channels], "frame")
        batch = self._add("Div", [size, self._add("Max", [frame, single], "some")], "batch")
        slim = self._add("Mul", [time, f"{NOISE_PREFIX}tall"], "slim")
        is_wide = self._add("Less", [channels, slim], "is_wide")
        layout = self._add("Concat", [batch, time, channels], "layout", axis=0)
        plain = self._add("Concat", [size, single, single], "plain", axis=0)
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
            unit = self._add("Mul", [standard, f"{NOISE_PREFIX}root"], "root_share")
            bell = self._add("Erf", [unit], "erf")
            above = self._add("Add", [bell, f"{NOISE_PREFIX}unit"], "above")
            standard = self._add("Mul", [above, f"{NOISE_PREFIX}half"], "uniform")
        deviation = self._add("Constant", [], "deviation", value=_number(factor))
        mean = self._add("Constant", [], "mean", value=_number(shift))
        scaled = self._add("Mul", [standard, deviation], "scaled")
        return self._add("Add", [scaled, mean], "values")

    def _add(self, operator: str, inputs: list[str], part: str, **attributes: Any) -> str:
        output = f"{self.name}/{part}"
        self.nodes.append(helper.make_node(operator, inputs, [output], output, **attributes))
        return output


def _number(value: float) -> onnx.TensorProto:
    return helper.make_tensor("", TensorProto.FLOAT, [], [value])
