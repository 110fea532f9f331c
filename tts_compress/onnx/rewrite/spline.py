"""Monotonic rational-quadratic splines, without selecting and writing back by index.

A duration predictor's flow transforms each number by a spline within an interval and leaves it
unchanged beyond. Exported, the numbers inside are picked by their indices, and ends of the spline
are set by index, too: some 270 tiny operators. Here the spline of the nearest number inside is
computed for all of them, and one selection takes the numbers beyond as they are.

Method: Durkan et al. 2019, "Neural Spline Flows", equations 6 to 8 (the inverse).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.rewrite.masks import is_single
from tts_compress.onnx.rewrite.verified_replace import (
    Subgraph,
    SubgraphBuilder,
    nodes_since,
    subgraph_between,
    verified_replace,
)

_LEAST = 1e-3
"""Smallest share of a bin's width and height in the whole, and smallest slope, as in VITS."""

_LENGTHS = (1, 2, 37, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spline:
    """The inverse of one spline flow."""

    source: str
    """Tensor that is transformed, (1, 1, T)."""

    parameters: str
    """Unscaled widths and heights of K bins, and K - 1 slopes, (1, 3·K - 1, T)."""

    others: tuple[str, ...]
    """Tensors (1, 1, T) of which only the shape is read."""

    bins: int
    bound: float
    """The interval is -bound .. bound."""

    divisor: float
    """Divides widths and heights."""


def simplify_splines(graph: Graph) -> int:
    """Rewrite spline flows; return how many there were.

    Required: one utterance (see `single_utterance`), linear tails, and, on trial, the same result.
    """
    done, gone = 0, set[int]()
    writers = [n for n in graph.nodes if n.op_type == "ScatterND" and is_single(graph)]
    # Backwards: what writes the results comes last, and is all that is looked for.
    for node in reversed(writers):
        found = None if id(node) in gone else _guess(graph, node)
        subgraph = None if found is None else _part(graph, node.output[0], found)
        if found is not None and subgraph is not None and _replace(graph, subgraph, found):
            gone.update(id(inner) for inner in subgraph.nodes)
            done += 1
    return done


def _guess(graph: Graph, last: onnx.NodeProto) -> Spline | None:
    """Return the spline that the node which writes the results back may belong to."""
    nodes, sources = nodes_since(graph, last.output[0], ("Conv", "Split"))
    convolutions = [node for node in sources if node.op_type == "Conv"]
    splits = [node for node in sources if node.op_type == "Split"]
    compared = [node for node in nodes if node.op_type in {"LessOrEqual", "GreaterOrEqual"}]
    bounds = {abs(v) for n in compared if (v := graph.scalar(n.input[1])) is not None}
    halves = {n.input[0] for n in compared if graph.scalar(n.input[1]) is not None}
    if len(convolutions) != 1 or len(splits) != 1 or len(bounds) != 1 or len(halves) != 1:
        return None
    weight = graph.constant(convolutions[0].input[1])
    if weight is None or len(weight) % 3 != 2:
        return None
    parameters, (source,) = convolutions[0].output[0], halves
    divisors = {
        value
        for node in nodes
        if node.op_type == "Div" and (value := graph.scalar(node.input[1])) is not None
    }
    if len(divisors) != 1 or source not in splits[0].output:
        return None
    return Spline(
        source=source,
        parameters=parameters,
        others=tuple(tensor for tensor in splits[0].output if tensor != source),
        bins=(len(weight) + 1) // 3,
        bound=bounds.pop(),
        divisor=divisors.pop(),
    )


def _part(graph: Graph, output: str, found: Spline) -> Subgraph | None:
    inputs = (found.source, found.parameters, *found.others)
    return None if output in graph.outputs else subgraph_between(graph, inputs, output)


def _replace(graph: Graph, subgraph: Subgraph, found: Spline) -> bool:
    builder = SubgraphBuilder(graph, subgraph.output)
    return verified_replace(graph, subgraph, builder, _build(builder, found), _trials(found))


def _trials(found: Spline) -> list[Mapping[str, Array]]:
    """Return numbers on either side of both bounds and on them, for splines of all kinds."""
    generator = np.random.default_rng(0)
    trials: list[Mapping[str, Array]] = []
    for length in _LENGTHS:
        source = generator.normal(scale=found.bound, size=(1, 1, length))
        source[..., 1:3] = np.array([-found.bound, found.bound])[: source[..., 1:3].shape[-1]]
        parameters = generator.normal(size=(1, 3 * found.bins - 1, length))
        parameters[:, : 2 * found.bins] *= found.divisor
        values = {found.source: source, found.parameters: parameters}
        values |= dict.fromkeys(found.others, np.ones((1, 1, length)))
        trials.append({name: value.astype(np.float32) for name, value in values.items()})
    return trials


def _build(builder: SubgraphBuilder, found: Spline) -> str:
    """Build the inverse for every number, moved into the interval, and the selection."""
    # The last bin has no upper end.
    top = float(np.nextafter(np.float32(found.bound), np.float32(0)))
    ends = [builder.real(value) for value in (-found.bound, top)]
    inside = builder.add("Clip", [found.source, *ends])
    bent = _invert(builder, inside, *_pick(builder, found, inside))
    return builder.add("Where", [builder.add("Equal", [inside, found.source]), bent, found.source])


def _pick(builder: SubgraphBuilder, found: Spline, inside: str) -> tuple[list[str], list[str]]:
    """Return x, y and slope of the knots on the left and on the right, each (1, 1, T)."""
    knots = _knots(builder, found)  # (1, 3, K + 1, T)
    one, two, last = (builder.integers(value) for value in (1, 2, np.iinfo(np.int64).max))
    left = builder.add("Slice", [knots, builder.integers(0), builder.integers(-1), two])
    right = builder.add("Slice", [knots, one, last, two])
    low = builder.add("Slice", [left, one, two, one])
    high = builder.add("Slice", [right, one, two, one])  # (1, 1, K, T)
    above = builder.add("GreaterOrEqual", [inside, low])
    below = builder.add("Less", [inside, high])
    within = builder.add("Cast", [builder.add("And", [above, below])], to=TensorProto.FLOAT)
    sides = []
    for side in (left, right):
        picked = builder.add("ReduceSum", [builder.add("Mul", [side, within]), two], keepdims=0)
        sides.append(builder.split(picked, 1, 1, 1))
    return sides[0], sides[1]


def _knots(builder: SubgraphBuilder, found: Spline) -> str:
    """Return x, y and slope of every knot, (1, 3, K + 1, T)."""
    bins, bound = found.bins, found.bound
    sizes, slopes = builder.split(found.parameters, 2 * bins, bins - 1)
    apart = builder.add("Reshape", [sizes, builder.integers(1, 2, bins, -1)])
    shares = builder.add("Softmax", [_with(builder, "Div", apart, found.divisor)], axis=2)
    shares = _with(builder, "Mul", shares, 1 - _LEAST * bins)
    ends = builder.add("CumSum", [_with(builder, "Add", shares, _LEAST), builder.integers(2)])
    ends = _with(builder, "Add", _with(builder, "Mul", ends, 2 * bound), -bound)
    bounds = [builder.integers(value) for value in (0, -1, 2)]
    places = builder.add("Slice", [ends, *bounds])  # the last is the upper bound itself
    places = _pad(builder, places, (1, 0), -bound)
    places = _pad(builder, places, (0, 1), bound)
    slopes = builder.add("Reshape", [slopes, builder.integers(1, 1, bins - 1, -1)])
    slopes = _pad(builder, slopes, (1, 1), float(np.log(np.exp(1 - _LEAST) - 1)))
    slopes = _with(builder, "Add", builder.add("Softplus", [slopes]), _LEAST)
    return builder.add("Concat", [places, slopes], axis=1)


def _invert(builder: SubgraphBuilder, y: str, left: list[str], right: list[str]) -> str:
    """Return x of a y between two knots, by the root of a quadratic equation."""
    (x0, y0, d0), (x1, y1, d1) = left, right
    width, height = builder.add("Sub", [x1, x0]), builder.add("Sub", [y1, y0])
    chord = builder.add("Div", [height, width])
    rise = builder.add("Sub", [y, y0])
    bend = builder.add("Sub", [builder.add("Add", [d0, d1]), _with(builder, "Mul", chord, 2.0)])
    bent = builder.add("Mul", [rise, bend])
    start = builder.add("Mul", [height, builder.add("Sub", [chord, d0])])
    a = builder.add("Add", [bent, start])
    b = builder.add("Sub", [builder.add("Mul", [height, d0]), bent])
    c = builder.add("Mul", [builder.add("Neg", [chord]), rise])
    product = builder.add("Mul", [_with(builder, "Mul", a, 4.0), c])
    under = builder.add("Sub", [builder.add("Mul", [b, b]), product])
    below = builder.add("Sub", [builder.add("Neg", [b]), builder.add("Sqrt", [under])])
    root = builder.add("Div", [_with(builder, "Mul", c, 2.0), below])
    return builder.add("Add", [builder.add("Mul", [root, width]), x0])


def _with(builder: SubgraphBuilder, op: str, tensor: str, value: float) -> str:
    return builder.add(op, [tensor, builder.real(value)])


def _pad(builder: SubgraphBuilder, tensor: str, knots: tuple[int, int], value: float) -> str:
    """Put knots of one value before and behind those of (1, N, K, T)."""
    pads = builder.integers(0, 0, knots[0], 0, 0, 0, knots[1], 0)
    return builder.add("Pad", [tensor, pads, builder.real(value)])
