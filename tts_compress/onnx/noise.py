"""Random noise as an input of a graph, so that two graphs can be given the same.

A seed does not pair two graphs: runtimes derive each random operator's stream from its position, so
an FP32 graph and its quantized copy draw different noise, and the difference between the two sounds
swamps the effect of quantization. Noise that is fed pairs them exactly.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.onnx.graph import (
    Graph,
    copy_model,
    element_types,
    inline_functions,
    standard_opset,
)
from tts_compress.onnx.nodes import (
    ancestors,
    attribute,
    bodies,
    copy_attributes,
    nested_graphs,
    nested_nodes,
    set_nodes,
    tensors_read,
)
from tts_compress.onnx.tensor import Tensor

NOISE_PREFIX = "tts_compress.noise."
"""Prefix of the inputs that take noise, and of the operators that read them."""

NOISE_LENGTH = 1 << 18
"""Values fed per operator; a longer need repeats them (with 192 channels after 1,365 frames)."""

_FED = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_REFUSED = frozenset({"Bernoulli", "Multinomial"})

_TALL = 16
"""A tensor (B, X, Y) with so many times more X than Y has its time on X, any other one on Y."""

_ROWS = 7_919
"""Keeps apart the iterations of a loop within a loop."""


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
    """Return a copy in which each normal or uniform random operator that is read has a new input.

    The values of an input of shape `[NOISE_LENGTH]` fill a tensor `[B, ..., T]` time step by time
    step, so that a graph with other durations still gets equal noise at equal times. In a loop each
    iteration reads on where the last one stopped. Inputs are numbered so that a compressed copy,
    whose operators may stand in another order, and which lacks those that no output depends on, has
    the same ones.
    """
    fed = copy_model(model)
    if any(_draws(node) for function in fed.functions for node in nested_nodes(function.node)):
        fed = inline_functions(fed)
    _state_training(fed)
    draws = _read_draws(fed.graph) if any(map(_draws, nested_nodes(fed.graph.node))) else []
    for draw in draws:
        _check(draw)
    elements = _element_types(fed, [draw.node for draw in draws])
    readers: dict[int, list[onnx.NodeProto]] = {}
    written, constants = Graph(onnx.ModelProto()), dict[tuple[str, bytes], str]()
    zeros = {"allowzero": 1} if standard_opset(fed) >= 14 else {}
    for index, draw in enumerate(sorted(draws, key=_order(fed.graph, draws))):
        name, begin = f"{NOISE_PREFIX}{index}", len(written.nodes)
        fed.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
        noise = Tensor(written, name, name, constants)
        _read(noise, draw, elements.get(id(draw.node)), zeros)
        readers[id(draw.node)] = written.nodes[begin:]
    # Putting nodes into a graph copies them, with their bodies: those first.
    for graph, _ in reversed(list(nested_graphs(fed.graph))):
        if any(id(node) in readers for node in graph.node):
            set_nodes(graph, [new for node in graph.node for new in readers.get(id(node), [node])])
    fed.graph.initializer.extend(written.initializers.values())
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


def _state_training(model: onnx.ModelProto) -> None:
    """Let operators that a constant says are not in training say so by leaving it out."""
    nodes = nested_nodes(model.graph.node)
    if doubtful := [n for n in nodes if n.op_type == "Dropout" and len(n.input) > 2]:
        graph = Graph(model)
        for node in doubtful:
            value = graph.constant(node.input[2])
            if value is not None and not value.any():
                del node.input[2:]


def _draws(node: onnx.NodeProto) -> bool:
    """Return True if an operator is random; Dropout is random only in training."""
    trains = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
    return node.op_type in _FED | _REFUSED or trains


def _read_draws(graph: onnx.GraphProto) -> list[_Draw]:
    """Return the random operators that an output depends on; runtimes leave out the others."""
    draws, read = [], dict[int, onnx.NodeProto]()  # which keeps the operators, and so their ids
    for part, around in nested_graphs(graph):
        makers = {name: node for node in part.node for name in node.output}
        outputs = [value.name for value in part.output]
        read |= {id(node): node for node in ancestors(makers, outputs)}
        draws += [
            _Draw(node=node, around=around)
            for node in part.node
            if _draws(node) and all(id(outer) in read for outer in (*around, node))
        ]
    return draws


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


def _read(noise: Tensor, draw: _Draw, element: int | None, zeros: Mapping[str, int]) -> None:
    """Write the operators that stand for one random operator.

    Args:
        noise: The input that takes its noise.
        draw: The operator.
        element: Type of the result; None for that of its input.
        zeros: Attributes of a `Reshape` whose shape may hold zeros.
    """
    random, graph = draw.node, noise.graph
    if random.op_type.endswith("Like"):
        shape = replace(noise, name=random.input[0]).apply("Shape")
    else:
        shape = noise.of([*attribute(random, "shape", ())])
    size = shape.apply("ReduceProd", keepdims=1)
    flat = _flat(noise, size, [replace(noise, name=name) for name in draw.counters])
    values = _reals(random, _laid_out(flat, shape, size, zeros)).name
    if element is None:
        graph.add("CastLike", [values, random.input[0]], random.output, noise.name)
    else:
        graph.add("Cast", [values], random.output, noise.name, to=element)


def _flat(noise: Tensor, size: Tensor, counters: Sequence[Tensor]) -> Tensor:
    """Return `size` of the values that are fed, repeated if these are fewer."""
    available = noise.apply("Shape")  # OpenVINO knows no Size
    start, end = noise.of([0]), size
    for counter in counters:
        start = start * [_ROWS] + counter.apply("Reshape", [1])
    if counters:
        start = (start * size).apply("Mod", available)
        end = start + size
    return noise.apply("Tile", (end / available).apply("Add", [1])).apply("Slice", start, end)


def _laid_out(flat: Tensor, shape: Tensor, size: Tensor, zeros: Mapping[str, int]) -> Tensor:
    """Return values in a shape `[B, ..., T]`, filled as `[B, T, ...]`."""
    time = shape.apply("Slice", [-1], [np.iinfo(np.int64).max]).apply("ReduceProd", keepdims=1)
    channels = shape.apply("Slice", [1], [-1]).apply("ReduceProd", keepdims=1)
    batch = size / (time * channels).apply("Max", [1])
    layout = batch.apply("Concat", time, channels, axis=0)
    plain = size.apply("Concat", [1], [1], axis=0)
    is_wide = channels.apply("Less", time * [_TALL])
    frames = flat.apply("Reshape", is_wide.apply("Where", layout, plain), **zeros)
    return frames.apply("Transpose", perm=[0, 2, 1]).apply("Reshape", shape, **zeros)


def _reals(random: onnx.NodeProto, standard: Tensor) -> Tensor:
    """Return standard normal values with the distribution of the operator."""
    if random.op_type.startswith("RandomNormal"):
        return standard * attribute(random, "scale", 1.0) + attribute(random, "mean", 0.0)
    low = attribute(random, "low", 0.0)
    # The distribution function of normal values is uniform.
    uniform = ((standard * sqrt(0.5)).apply("Erf") + 1.0) * 0.5
    return uniform * (attribute(random, "high", 1.0) - low) + low
