"""Attention with relative positions, without the detour over every pair of positions.

A position's contribution to a score depends on its distance, up to a window of a few neighbours on
either side; beyond it nothing is added. Exported encoders nevertheless multiply queries with an
embedding of every distance there is, almost all of them zero, and turn the result into a square by
padding and reshaping, in about a hundred operators per layer. Here only the window's 2w + 1
distances are multiplied, and the square is a skewed view of them: row t of width T + 2w + 1,
read again in rows of width T + 2w, stands t places further right.

Method: Shaw et al. 2018, "Self-Attention with Relative Position Representations"; the skewing is
that of Huang et al. 2018, "Music Transformer", for a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph
from tts_compress.onnx.rewrite.masks import is_single
from tts_compress.onnx.rewrite.verified_replace import (
    SubgraphBuilder,
    nodes_since,
    subgraph_between,
    verified_replace,
)

_BORDERS = ("Conv",)
_LENGTHS = (1, 2, 3, 4, 5, 6, 9, 10, 23)
"""Lengths of the trials: shorter than the window, just as long, longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def window(self) -> int:
        """Return the largest distance with an embedding of its own."""
        return len(self.of_keys) // 2

    @property
    def width(self) -> int:
        """Return the channels of one head."""
        return int(self.of_keys.shape[1])


def simplify_attention(graph: Graph) -> int:
    """Rewrite layers of attention with relative positions; return how many there were.

    Required: one utterance (see `single_utterance`); three projections, a softmax and two
    embeddings of distances, and, on trial, the same result.
    """
    done = 0
    for node in [n for n in graph.nodes if n.op_type == "Conv" and is_single(graph)]:
        done += any(_replace(graph, node.input[0], found) for found in _guesses(graph, node))
    return done


def _guesses(graph: Graph, output: onnx.NodeProto) -> list[Attention]:
    """Return the attention that a convolution may be the output projection of."""
    nodes, sources = nodes_since(graph, output.input[0], _BORDERS)
    softmaxes = [node for node in nodes if node.op_type == "Softmax"]
    if len(softmaxes) != 1 or len(sources) != 3:
        return []
    scored, score_sources = nodes_since(graph, softmaxes[0].input[0], _BORDERS)
    tables, score_tables = _tables(graph, nodes), _tables(graph, scored)
    weights = [graph.constant(source.input[1]) for source in sources]
    channels = {len(weight) for weight in weights if weight is not None}
    alike = len(tables) == 2 and len(score_tables) == 1 and len(channels) == 1
    if not alike or len(score_sources) != 2 or any(w is None for w in weights):
        return []
    (of_values,) = [name for name in tables if name not in score_tables]
    (of_keys,) = score_tables
    first, second = tables[of_keys], tables[of_values]
    (count,) = channels
    if first.shape != second.shape or len(first) % 2 == 0 or count % first.shape[1]:
        return []
    (values,) = [s.output[0] for s in sources if all(s is not other for other in score_sources)]
    return [
        Attention(
            queries=queries.output[0],
            keys=keys.output[0],
            values=values,
            of_keys=first,
            of_values=second,
            channels=count,
        )
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


def _replace(graph: Graph, output: str, found: Attention) -> bool:
    subgraph = subgraph_between(graph, (found.queries, found.keys, found.values), output)
    if subgraph is None or output in graph.outputs:
        return False
    builder = SubgraphBuilder(graph, output)
    return verified_replace(graph, subgraph, builder, _build(builder, found), _trials(found))


def _trials(found: Attention) -> list[Mapping[str, Array]]:
    generator = np.random.default_rng(0)
    return [
        {
            name: generator.normal(size=(1, found.channels, length)).astype(np.float32)
            for name in (found.queries, found.keys, found.values)
        }
        for length in _LENGTHS
    ]


def _build(builder: SubgraphBuilder, found: Attention) -> str:
    """Build the whole layer; every tensor within is (1, H, T, ...)."""
    queries = _heads(builder, found, found.queries, (0, 2, 1, 3))  # (1, H, T, D)
    keys = _heads(builder, found, found.keys, (0, 2, 3, 1))  # (1, H, D, T)
    values = _heads(builder, found, found.values, (0, 2, 1, 3))
    scaled = builder.add("Div", [queries, builder.real(found.width**0.5)])
    near = builder.add("MatMul", [scaled, builder.constant(found.of_keys.T[None, None])])
    scores = builder.add(
        "Add", [builder.add("MatMul", [scaled, keys]), _spread(builder, found, near)]
    )
    shares = builder.add("Softmax", [scores], axis=-1)
    gathered = _gather(builder, found, shares)
    table = builder.constant(found.of_values[None, None])
    result = builder.add(
        "Add",
        [builder.add("MatMul", [shares, values]), builder.add("MatMul", [gathered, table])],
    )  # (1, H, T, D)
    turned = builder.add("Transpose", [result], perm=[0, 2, 1, 3])
    joined = builder.add("Reshape", [turned, builder.integers(0, 0, found.channels)])  # (1, T, H·D)
    return builder.add("Transpose", [joined], perm=[0, 2, 1])


def _heads(builder: SubgraphBuilder, found: Attention, source: str, order: tuple[int, ...]) -> str:
    """Return (1, H·D, T) by heads, in an order of the axes of (1, T, H, D)."""
    # Channels last first: behind an integer product, this cancels the way back to channels first.
    last = builder.add("Transpose", [source], perm=[0, 2, 1])
    shape = builder.integers(0, 0, -1, found.width)
    return builder.add("Transpose", [builder.add("Reshape", [last, shape])], perm=list(order))


def _spread(builder: SubgraphBuilder, found: Attention, near: str) -> str:
    """Return the square (1, H, T, T) of what (1, H, T, 2w + 1) holds by distance, else zero."""
    length = _length(builder, near)
    pads = builder.add("Concat", [builder.integers(*[0] * 7), length], axis=0)
    wide = builder.add("Pad", [near, pads])  # (1, H, T, T + 2w + 1)
    flat = _flat(builder, wide)
    begin, axis = builder.integers(0), builder.integers(2)
    cut = builder.add("Slice", [flat, begin, builder.add("Neg", [length]), axis])
    rows = _rows(builder, cut, length)  # (1, H, T, T + 2w)
    edge = found.window
    bounds = [builder.integers(value) for value in (edge, -edge, 3)]
    return builder.add("Slice", [rows, *bounds])


def _gather(builder: SubgraphBuilder, found: Attention, square: str) -> str:
    """Return the diagonals (1, H, T, 2w + 1) of a square (1, H, T, T) at distances -w .. w."""
    edge = found.window
    pads = builder.integers(0, 0, 0, edge, 0, 0, 1, edge)
    wide = _flat(builder, builder.add("Pad", [square, pads]))  # rows of T + 2w, one too many
    bounds = [builder.integers(value) for value in (0, -2 * edge, 2)]
    rows = _rows(builder, builder.add("Slice", [wide, *bounds]), _length(builder, square))
    bounds = [builder.integers(value) for value in (0, 2 * edge + 1, 3)]
    return builder.add("Slice", [rows, *bounds])


def _length(builder: SubgraphBuilder, tensor: str) -> str:
    """Return T of a tensor (1, H, T, ...), as a list of one."""
    bounds = [builder.integers(value) for value in (2, 3)]
    return builder.add("Slice", [builder.add("Shape", [tensor]), *bounds])


def _flat(builder: SubgraphBuilder, tensor: str) -> str:
    """Return (1, H, N, M) as (1, H, N·M)."""
    return builder.add("Reshape", [tensor, builder.integers(0, 0, -1)])


def _rows(builder: SubgraphBuilder, flat: str, length: str) -> str:
    """Return (1, H, T·M) as (1, H, T, M)."""
    ends = (builder.integers(0, 0), length, builder.integers(-1))
    return builder.add("Reshape", [flat, builder.add("Concat", list(ends), axis=0)])
