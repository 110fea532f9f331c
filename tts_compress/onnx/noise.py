"""Random noise as an input of a graph, so that two graphs can be given the same.

A seed does not pair two graphs: runtimes derive each random operator's stream from its position,
so an FP32 graph and its quantized copy draw different noise, and the difference between the two
sounds swamps what quantization did. Noise that is fed pairs them exactly.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, shape_inference

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
    nested_nodes,
    set_nodes,
    standard_opset,
    tensors_read,
)
from tts_compress.onnx.noise_operators import NOISE_PREFIX, NoiseReader, shared_constants

__all__ = ["NOISE_LENGTH", "NOISE_PREFIX", "draw_noise", "feed_noise", "noise_inputs"]

NOISE_LENGTH = 1 << 18
"""Values fed per operator; a longer need repeats them (with 192 channels after 1,365 frames)."""

_FED = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"})
_REFUSED = frozenset({"Bernoulli", "Multinomial"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A random operator and where it stands."""

    node: onnx.NodeProto
    outermost: onnx.NodeProto
    """The operator itself, or the one of the main graph in whose branches or bodies it is."""

    counters: tuple[str, ...] = ()
    """Tensors that count the iterations of the loops around it, outermost first."""


def feed_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which every normal or uniform random operator reads a new input.

    The values of an input of shape `[NOISE_LENGTH]` fill a tensor `[B, ..., T]` time step by time
    step, so that a graph with other durations still gets equal noise at equal times. In a loop each
    iteration reads on where the last one stopped. Inputs are numbered so that a compressed copy,
    whose operators may stand in another order, has the same ones.

    Raises:
        ModelError: The graph draws randomness in another way, which cannot be paired.
    """
    fed = copy_model(model)
    if any(_draws(node) for function in fed.functions for node in nested_nodes(function.node)):
        fed = inline_functions(fed)
    places = _places(fed.graph)
    if not places:
        return fed
    element_types = _element_types(fed, places)
    made: dict[int, list[onnx.NodeProto]] = {}
    for index, place in enumerate(sorted(places, key=_order(fed.graph, places))):
        name = f"{NOISE_PREFIX}{index}"
        fed.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]))
        reader = NoiseReader(name=name, allow_zero=standard_opset(fed) >= 14)
        element = element_types.get(id(place.node))
        made[id(place.node)] = reader.read(place.node, place.counters, element)
    _replace(fed.graph, made)
    fed.graph.initializer.extend(shared_constants())
    return fed


def noise_inputs(names: list[str]) -> list[str]:
    """Return those of a graph's input names that take noise, in the order of their numbers."""
    found = (name for name in names if name.startswith(NOISE_PREFIX))
    return sorted(found, key=lambda name: int(name.split(".")[-1]))


def draw_noise(names: list[str], *, seed: tuple[int, ...] | None) -> dict[str, Samples]:
    """Return standard normal values for each noise input; zeros where `seed` is None.

    Zeros stand for each operator's mean, of uniform values the middle of their range.

    Raises:
        TTSCompressError: A part of the seed is negative.
    """
    if seed is None:
        return {name: np.zeros(1, np.float32) for name in noise_inputs(names)}
    if min(seed) < 0:
        raise TTSCompressError(f"seed {min(seed)} is negative; give 0 or a larger integer")
    return {
        name: np.random.default_rng([*seed, index]).standard_normal(NOISE_LENGTH, np.float32)
        for index, name in enumerate(noise_inputs(names))
    }


def _places(graph: onnx.GraphProto) -> list[_Place]:
    """Return the random operators of a graph, in its order.

    Raises:
        ModelError: One cannot be fed.
    """
    found: list[_Place] = []
    for node in graph.node:
        found += _places_at(_Place(node=node, outermost=node))
    return found


def _places_at(place: _Place) -> Iterator[_Place]:
    """Yield the random operators that a node is or holds."""
    node = place.node
    if node.op_type in _FED:
        yield place
    elif _draws(node):
        raise ModelError(
            f"the graph draws noise with {node.op_type} '{node.name or node.output[0]}', which "
            "cannot be fed, so FP32 and a compressed copy cannot be paired; accepted: "
            f"{', '.join(sorted(_FED))} (comparing a RandomUniformLike makes a random choice)"
        )
    for body in bodies(node):
        counters = place.counters
        if node.op_type == "Loop":
            counters = (*counters, body.input[0].name)
        for inner in body.node:
            inside = replace(place, node=inner, counters=counters)
            for found in _places_at(inside):
                if node.op_type not in {"If", "Loop"}:
                    name = found.node.name or found.node.output[0]
                    raise ModelError(
                        f"the graph draws noise with {found.node.op_type} '{name}' inside a "
                        f"{node.op_type}, where steps are not counted and cannot be fed one by "
                        "one; export it as a Loop"
                    )
                yield found


def _replace(graph: onnx.GraphProto, made: dict[int, list[onnx.NodeProto]]) -> None:
    """Put operators in the place of others, given by id, also in branches and bodies."""
    for node in graph.node:
        for body in bodies(node):
            _replace(body, made)
    nodes = [new for node in graph.node for new in made.get(id(node), [node])]
    if len(nodes) > len(graph.node):
        set_nodes(graph, nodes)


def _draws(node: onnx.NodeProto) -> bool:
    """Return True if an operator is random. Dropout is where it is told to train."""
    trains = node.op_type == "Dropout" and len(node.input) > 2 and bool(node.input[2])
    return node.op_type in _FED | _REFUSED or trains


def _order(graph: onnx.GraphProto, places: list[_Place]) -> Any:
    """Return a sorting key that is the same for a graph and its compressed copy.

    Operators come after those that they depend on, as in every order of a graph; others by name.
    """
    makers = {name: node for node in graph.node for name in node.output}
    drawing = {id(place.outermost) for place in places}
    behind: dict[int, int] = {}

    def key(place: _Place) -> tuple[int, list[tuple[int, str]]]:
        outermost = id(place.outermost)
        if outermost not in behind:
            seen = ancestors(makers, tensors_read(place.outermost))
            behind[outermost] = len(drawing.intersection(map(id, seen)))
        parts = re.findall(r"\d+|\D+", place.node.output[0])
        natural = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
        return behind[outermost], natural

    return key


def _element_types(model: onnx.ModelProto, places: list[_Place]) -> dict[int, int]:
    """Return the element types of random operators by id, without those their inputs decide."""
    found: dict[int, int] = {}
    missing = []
    for place in places:
        node = place.node
        if "dtype" in copy_attributes(node) or not node.op_type.endswith("Like"):
            found[id(node)] = attribute(node, "dtype", int(TensorProto.FLOAT))
        elif standard_opset(model) < 15:  # there is no CastLike
            missing.append(node)
    if missing:
        types = _recorded_types(shape_inference.infer_shapes(model).graph)
        for node in missing:
            found[id(node)] = types.get(node.input[0]) or int(TensorProto.FLOAT)
    return found


def _recorded_types(graph: onnx.GraphProto) -> dict[str, int]:
    types = element_types(graph)
    for node in graph.node:
        for body in bodies(node):
            types = _recorded_types(body) | types
    return types
