"""Curves in fewer operators: monotonic rational-quadratic splines, and snake activations.

A duration predictor's flow transforms each number by a spline within an interval and leaves it
unchanged beyond. Exported, the numbers inside are picked by their indices, and ends of the spline
are set by index, too: some 270 tiny operators. Here the spline of the nearest number inside is
computed for all of them, and one selection takes the numbers beyond as they are.
Method: Durkan et al. 2019, "Neural Spline Flows", equations 6 to 8 (the inverse).

Snakes, x + sin²(αx) / α, are those of Ziyin et al., "Neural Networks Fail to Learn Periodic
Functions and How to Fix It" (2020), as BigVGAN, Kokoro and decoders of neural codecs have them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.rewrite.eliminate_identity import is_single
from tts_compress.onnx.rewrite.normalization import Shape, known_shapes
from tts_compress.onnx.rewrite.verified_replace import upstream, verified_replace
from tts_compress.onnx.tensor import Tensor

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
    """Tensors (1, 1, T); only their shape is read."""

    bins: int
    bound: float
    """The interval is -bound .. bound."""

    divisor: float
    """Divides widths and heights."""


def simplify_splines(graph: Graph) -> int:
    """Rewrite spline flows; return how many there were.

    Required: one utterance (see `single_utterance`), linear tails, and, on trial, the same result.
    """
    done = 0
    # Backwards: what writes the results comes last, and is all that is looked for.
    for node in [n for n in reversed(graph.nodes) if n.op_type == "ScatterND" and is_single(graph)]:
        output = node.output[0]
        spline = _guess(graph, output) if graph.producer(output) is node else None
        if spline is not None:
            source = Tensor(graph, output, spline.source)
            result = _build(spline, source, replace(source, name=spline.parameters)).name
            inputs = (spline.source, spline.parameters, *spline.others)
            done += verified_replace(graph, inputs, output, result, _trials(spline))
            graph.sweep()
    return done


def _guess(graph: Graph, output: str) -> Spline | None:
    """Return the spline that a tensor, written back by index, may be the result of."""
    borders = {t for n in graph.nodes if n.op_type in {"Conv", "Split"} for t in n.output}
    nodes, ends = upstream(graph, output, borders)
    sources = {id(node): node for end in ends if (node := graph.producer(end)) is not None}
    convolutions = [node for node in sources.values() if node.op_type == "Conv"]
    splits = [node for node in sources.values() if node.op_type == "Split"]
    compared = [node for node in nodes if node.op_type in {"LessOrEqual", "GreaterOrEqual"}]
    bounds = {abs(v) for n in compared if (v := graph.scalar(n.input[1])) is not None}
    halves = {n.input[0] for n in compared if graph.scalar(n.input[1]) is not None}
    divided = [graph.scalar(node.input[1]) for node in nodes if node.op_type == "Div"]
    divisors = {value for value in divided if value is not None}
    if any(len(several) != 1 for several in (convolutions, splits, bounds, halves, divisors)):
        return None
    weight, (source,) = graph.constant(convolutions[0].input[1]), halves
    if weight is None or len(weight) % 3 != 2 or source not in splits[0].output:
        return None
    return Spline(
        source=source,
        parameters=convolutions[0].output[0],
        others=tuple(tensor for tensor in splits[0].output if tensor != source),
        bins=(len(weight) + 1) // 3,
        bound=bounds.pop(),
        divisor=divisors.pop(),
    )


def _trials(spline: Spline) -> list[Mapping[str, Array]]:
    """Return numbers on either side of both bounds and on them, for splines of all kinds."""
    generator = np.random.default_rng(0)
    trials: list[Mapping[str, Array]] = []
    for length in _LENGTHS:
        source = generator.normal(scale=spline.bound, size=(1, 1, length))
        source[..., 1:3] = np.array([-spline.bound, spline.bound])[: source[..., 1:3].shape[-1]]
        parameters = generator.normal(size=(1, 3 * spline.bins - 1, length))
        parameters[:, : 2 * spline.bins] *= spline.divisor
        values = {spline.source: source, spline.parameters: parameters}
        values |= dict.fromkeys(spline.others, np.ones((1, 1, length)))
        trials.append({name: value.astype(np.float32) for name, value in values.items()})
    return trials


def _build(spline: Spline, source: Tensor, parameters: Tensor) -> Tensor:
    """Build the inverse for every number, moved into the interval, and the selection."""
    # The last bin has no upper end.
    top = float(np.nextafter(np.float32(spline.bound), np.float32(0)))
    inside = source.apply("Clip", -spline.bound, top)
    bent = _invert(inside, *_pick(_knots(spline, parameters), inside))
    return inside.apply("Equal", source).apply("Where", bent, source)


def _pick(knots: Tensor, inside: Tensor) -> list[list[Tensor]]:
    """Return x, y and slope of the knots on the left and on the right, each (1, 1, T)."""
    left, right = knots.cut(0, -1, 2), knots.cut(1, np.iinfo(np.int64).max, 2)
    low, high = left.cut(1, 2, 1), right.cut(1, 2, 1)  # (1, 1, K, T)
    above, below = inside.apply("GreaterOrEqual", low), inside.apply("Less", high)
    within = above.apply("And", below).apply("Cast", to=TensorProto.FLOAT)
    picked = ((side * within).apply("ReduceSum", [2], keepdims=0) for side in (left, right))
    return [side.split(1, 1, 1) for side in picked]


def _knots(spline: Spline, parameters: Tensor) -> Tensor:
    """Return x, y and slope of every knot, (1, 3, K + 1, T)."""
    bins, bound = spline.bins, spline.bound
    sizes, slopes = parameters.split(2 * bins, bins - 1)
    apart = sizes.apply("Reshape", [1, 2, bins, -1]) / spline.divisor
    shares = apart.apply("Softmax", axis=2) * (1 - _LEAST * bins) + _LEAST
    ends = shares.apply("CumSum", [2]) * (2 * bound) + -bound
    # The last is the upper bound itself.
    knots = _pad(_pad(ends.cut(0, -1, 2), (1, 0), -bound), (0, 1), bound)
    inner = slopes.apply("Reshape", [1, 1, bins - 1, -1])
    slopes = _pad(inner, (1, 1), float(np.log(np.exp(1 - _LEAST) - 1)))
    return knots.apply("Concat", slopes.apply("Softplus") + _LEAST, axis=1)


def _invert(y: Tensor, left: list[Tensor], right: list[Tensor]) -> Tensor:
    """Return x of a y between two knots, by the root of a quadratic equation."""
    (x0, y0, d0), (x1, y1, d1) = left, right
    width, height = x1 - x0, y1 - y0
    chord, rise = height / width, y - y0
    bent = rise * (d0 + d1 - chord * 2.0)
    a = bent + height * (chord - d0)
    b = height * d0 - bent
    c = -chord * rise
    product = a * 4.0 * c
    under = b * b - product
    below = -b - under.apply("Sqrt")
    return c * 2.0 / below * width + x0


def _pad(tensor: Tensor, knots: tuple[int, int], value: float) -> Tensor:
    """Put knots of one value before and behind those of (1, N, K, T)."""
    return tensor.apply("Pad", [0, 0, knots[0], 0, 0, 0, knots[1], 0], value)


_SINE = ("Sin", ("Mul", "alpha", "x"))
_SNAKES = (
    ("Add", "x", ("Mul", "share", ("Pow", _SINE, "exponent"))),
    ("Add", "x", ("Mul", "share", ("Mul", _SINE, _SINE))),
)

_LARGEST_FACTOR = 64
"""The largest factor s: a cosine near one, times s, is off by up to 3e-8 s."""


def simplify_snakes(graph: Graph) -> int:
    """Write x + s · sin²(αx) as x + s/2 - s/2 · cos(2αx); return how many were written.

    `Pow` takes longer than a product, and `BatchNormalization` multiplies and adds in one pass.

    Required: constant α and s, one for each channel of (B, C, T), and no s above 64.
    """
    shapes, sums = known_shapes(graph), [node for node in graph.nodes if node.op_type == "Add"]
    return sum(_simplify_snake(graph, shapes, node) for node in sums)


def _has_channels(shape: Shape, count: int) -> bool:
    """Return True for (B, C, T) with so many channels, or an unknown number of several."""
    return len(shape) == 3 and (shape[1] == count or (shape[1] is None and count > 1))


def _simplify_snake(graph: Graph, shapes: Mapping[str, Shape], node: onnx.NodeProto) -> bool:
    output = node.output[0]
    parts = next((p for form in _SNAKES if (p := graph.match(output, form)) is not None), None)
    if parts is None or ("exponent" in parts and graph.scalar(parts["exponent"]) != 2.0):
        return False
    alpha, share = (graph.by_channel(parts[name]) for name in ("alpha", "share"))
    if alpha is None or share is None or alpha.size != share.size:
        return False
    if not _has_channels(shapes.get(parts["x"], (None,) * 3), alpha.size):
        return False
    if np.abs(share).max() > _LARGEST_FACTOR:
        return False
    graph.remove(node)
    double = graph.add_constant(f"{output}.double", 2 * alpha[:, None])
    phase = graph.make("Mul", [parts["x"], double], f"{output}.phase")
    wave = graph.make("Cos", [phase], f"{output}.wave")
    half, mean = share / 2, np.zeros_like(share)
    constants = graph.add_constants(output, factor=-half, offset=half, mean=mean, variance=mean + 1)
    # With a variance of one and nothing added to it this is a product and a sum.
    square = graph.make("BatchNormalization", [wave, *constants], f"{output}.square", epsilon=0.0)
    graph.add("Add", [parts["x"], square], [output], node.name)
    return True
