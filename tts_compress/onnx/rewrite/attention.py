"""Attention with relative positions, without the detour over every pair of positions.

A position's contribution to a score depends on its distance, up to a window of a few neighbours on
either side; beyond it nothing is added. Exported encoders nevertheless multiply queries with an
embedding of every distance there is, almost all of them zero, and turn the result into a square by
padding and reshaping, in about a hundred operators per layer. Here only the window's 2w + 1
distances are multiplied, and added to the square of scores where they belong. No other square is
written: for 20 s of speech a square has 3 MB, and exported encoders hold four at once.

Method: Shaw et al. 2018, "Self-Attention with Relative Position Representations".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import sqrt

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.modules import read_convolution
from tts_compress.onnx.rewrite.eliminate_identity import is_single
from tts_compress.onnx.rewrite.verified_replace import upstream, verified_replace
from tts_compress.onnx.tensor import Tensor

_LENGTHS = (1, 2, 3, 4, 5, 6, 9, 10, 23)
"""Lengths of the trials: shorter than the window, just as long, longer."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One layer of attention between its projections."""

    queries: str
    keys: str
    values: str
    """Tensors (1, H·D, T)."""

    of_keys: Array
    of_values: Array
    """Embeddings of the distances -w .. w, (2w + 1, D), the same for every head."""

    channels: int


def simplify_attention(graph: Graph) -> int:
    """Rewrite layers of attention with relative positions; return how many there were.

    Required: one utterance (see `single_utterance`); three projections, a softmax and two
    embeddings of distances, and, on trial, the same result.
    """
    if not is_single(graph):
        return 0
    projected = {
        node.output[0]: len(convolution.weight)
        for node in graph.nodes
        if node.op_type == "Conv" and (convolution := read_convolution(graph, node)) is not None
    }
    outputs = [node.input[0] for node in graph.nodes if node.op_type == "Conv"]
    return sum(
        any(_replace(graph, output, guess) for guess in _guesses(graph, output, projected))
        for output in outputs
    )


def _guesses(graph: Graph, output: str, projected: Mapping[str, int]) -> list[Attention]:
    """Return the attention that a tensor, read by a projection, may be the result of."""
    nodes, ends = upstream(graph, output, projected)
    sources = [end for end in ends if end in projected]
    softmaxes = [node for node in nodes if node.op_type == "Softmax"]
    if len(softmaxes) != 1 or len(sources) != 3:
        return []
    scored, score_ends = upstream(graph, softmaxes[0].input[0], projected)
    score_sources = [end for end in score_ends if end in projected]
    tables, score_tables = _tables(graph, nodes), _tables(graph, scored)
    channels = {projected[source] for source in sources}
    if [len(tables), len(score_tables), len(channels), len(score_sources)] != [2, 1, 1, 2]:
        return []
    (of_keys,), (count,) = score_tables.values(), channels
    (of_values,) = (table for name, table in tables.items() if name not in score_tables)
    shape = of_keys.shape
    if of_values.shape != shape or len(of_keys) % 2 == 0 or count % shape[1]:
        return []
    (values,) = set(sources) - set(score_sources)
    return [
        Attention(queries, keys, values, of_keys, of_values, count)
        for queries, keys in permutations(score_sources)
    ]


def _tables(graph: Graph, nodes: list[onnx.NodeProto]) -> dict[str, Array]:
    """Return the constants (1, N, D) that nodes read, as (N, D)."""
    read = dict.fromkeys(tensor for node in nodes for tensor in node.input if tensor)
    values = ((tensor, graph.constant(tensor)) for tensor in read)
    return {
        tensor: value[0]
        for tensor, value in values
        if value is not None and value.ndim == 3 and len(value) == 1 and value.dtype == np.float32
    }


def _replace(graph: Graph, output: str, guess: Attention) -> bool:
    inputs = (guess.queries, guess.keys, guess.values)
    draw = np.random.default_rng(0).normal
    trials = [
        {name: draw(size=(1, guess.channels, length)).astype(np.float32) for name in inputs}
        for length in _LENGTHS
    ]
    first = Tensor(graph, output, guess.queries)
    result = _build(guess, *(replace(first, name=name) for name in inputs)).name
    return verified_replace(graph, inputs, output, result, trials)


def _build(layer: Attention, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Build the whole layer; every tensor within is (1, H, T, ...)."""
    distances, width = layer.of_keys.shape
    queries = _heads(queries, width, (0, 2, 1, 3))  # (1, H, T, D)
    keys = _heads(keys, width, (0, 2, 3, 1))  # (1, H, D, T)
    values = _heads(values, width, (0, 2, 1, 3))
    scaled = queries / sqrt(width)
    near, size = scaled @ layer.of_keys.T[None, None], distances // 2
    window = _window(near, size)
    scores = window.add(scaled @ keys, near, near.cut(size, size + 1, 3))
    shares = scores.apply("Softmax", axis=-1)
    gathered = window.read(shares)
    result = shares @ values + gathered @ layer.of_values[None, None]  # (1, H, T, D)
    turned = result.apply("Transpose", perm=[0, 2, 1, 3])
    joined = turned.apply("Reshape", [0, 0, layer.channels])  # (1, T, H·D)
    return joined.apply("Transpose", perm=[0, 2, 1])


def _heads(source: Tensor, width: int, order: tuple[int, ...]) -> Tensor:
    """Return (1, H·D, T) by heads, in an order of the axes of (1, T, H, D)."""
    # Channels last first: behind an integer product, this cancels the way back to channels first.
    last = source.apply("Transpose", perm=[0, 2, 1])
    return last.apply("Reshape", [0, 0, -1, width]).apply("Transpose", perm=list(order))


@dataclass(frozen=True, slots=True)
class _Window:
    """The elements of a square (1, H, T, T) at distances -w .. w from its diagonal."""

    columns: Tensor
    """Their columns, (1, H, T, 2w + 1), int64; outside the square the diagonal's instead."""

    inside: Tensor
    """True within the square, (T, 2w + 1)."""

    def add(self, square: Tensor, near: Tensor, diagonal: Tensor) -> Tensor:
        """Return a square plus `near` (1, H, T, 2w + 1), whose middle column is `diagonal`."""
        # Elements outside write to the diagonal, too, so they write its value.
        shift = self.inside.apply("Where", near, diagonal)
        total = square.apply("GatherElements", self.columns, axis=3) + shift
        return square.apply("ScatterElements", self.columns, total, axis=3)

    def read(self, square: Tensor) -> Tensor:
        """Return the window of a square, (1, H, T, 2w + 1), with zeros outside the square."""
        values = square.apply("GatherElements", self.columns, axis=3)
        return self.inside.apply("Where", values, 0.0)


def _window(near: Tensor, size: int) -> _Window:
    """Return the window of size w that (1, H, T, 2w + 1) belongs to."""
    shape = near.apply("Shape")
    length = shape.apply("Slice", [2], [3])
    begin, end, step = (near.of(n).apply("Squeeze") for n in ([0], length, [1]))
    rows = begin.apply("Range", end, step).apply("Unsqueeze", [1])  # (T, 1)
    columns = rows.apply("Add", [*range(-size, size + 1)])
    nearest = columns.apply("Max", [0]).apply("Min", length - near.of([1]))
    inside = columns.apply("Equal", nearest)
    return _Window(inside.apply("Where", columns, rows).apply("Expand", shape), inside)
