"""A graph cut in time: what runs once for a text, and stages that run chunk by chunk.

The first cut is the earliest tensor behind which everything is local in time: its length is the
utterance's. Behind it there may be more cuts. A stage computes again what lies within its receptive
field before and behind each chunk; two stages keep what flows between them, and so compute less
again than one. Where to cut is chosen for the least arithmetic.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, inf, prod
from operator import mul

import onnx
from onnx import TensorProto, helper

from tts_compress.errors import ModelError
from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.nodes import set_nodes, tensors_read
from tts_compress.onnx.noise import NOISE_PREFIX
from tts_compress.onnx.receptive import Field, observe_shapes, walk
from tts_compress.onnx.session import Feeds, open_session

_CHUNK = 64
"""Frames of a chunk for which the cuts are chosen; half a second or more of most voices."""

_START = 2e6
"""Multiplications that starting a stage is worth, by the time it takes."""

_COPY = 8.0
"""Multiplications that a value between two stages is worth."""

_WIDE = 65
"""Fewest columns of a product with which onnxruntime's (MLAS) FP32 kernels sum in blocks of `_DEEP`
rows on one thread, as with any more; with fewer, blocks are deeper and the last bit is another."""

_DEEP = 128

_FEW = 2
"""Fewest columns of any product: with one, another kernel sums in another order."""

_PACKET = 16
"""Values that Eigen computes at once for onnxruntime. The last values of a tensor that fill no
packet are computed one by one, and their last bit may be another."""

_BY_PACKETS = frozenset({"Atan", "Cos", "Log", "Mish", "Sin", "Softplus"})
"""Operators for which that was seen, onnxruntime 1.31.1."""

_LEAST = 0.5
"""Share of the arithmetic that has to follow the cut: less would not be heard sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of a graph that runs chunk by chunk, and what it needs beyond a chunk."""

    reads: tuple[str, ...]
    """Tensors that are given in chunks."""

    axis: int
    """Their axis of time."""

    returns: tuple[str, ...]
    to: int
    """Axis of time of what is returned."""

    sides: tuple[str, ...]
    """Tensors without time that each run is given."""

    hop: int
    """Steps of the output for each step of the input."""

    before: int
    """Steps of the input that are needed before those of a chunk."""

    after: int
    """Steps of the input that are needed behind those of a chunk."""

    extra: int
    """Steps of the whole output beyond `hop` for each of the input."""

    least: int = 1
    """Steps of the input with which kernels sum in the same order as with any more."""

    multiple: int = 1
    """Chunks begin at multiples of so many steps, and have as many zeros behind them."""

    widest: int = 0
    """Values of the largest tensor within, for each step of the input."""

    ahead: int = 1
    """Times as many steps that are computed at once as are asked for, once some were: those of a
    narrow stage before wide ones take little memory, and their context is computed less often."""

    @property
    def has_chunks(self) -> bool:
        """True if outputs follow from a neighbourhood, so that it may run chunk by chunk."""
        return len(self.reads) == 1

    def length(self, steps: int) -> int:
        """Return the steps of the whole output."""
        return steps * self.hop + self.extra


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGraph:
    """A graph in parts."""

    encoder: onnx.ModelProto | None
    """Runs once, and returns the first stage's input, then the sides; None where these are the
    graph's own inputs."""

    stages: tuple[Stage, ...]
    models: tuple[onnx.ModelProto, ...]
    """The graph of each stage."""

    share: float
    """Share of the graph's arithmetic that is in stages."""


def cut_graph(
    model: onnx.ModelProto, calls: Sequence[Feeds], outputs: Sequence[str], spec: str
) -> StagedGraph:
    """Cut a graph where its length is fixed and everything behind is local in time.

    Args:
        model: The graph; not changed.
        calls: Inputs of two calls of different lengths.
        outputs: Outputs that are sound.
        spec: Its name in messages.

    Raises:
        ModelError: Most of the graph is not local in time; the operator is named.
    """
    field = walk(Graph(copy_model(model)), observe_shapes(model, calls, spec), outputs)
    costs = [0.0, *accumulate(arithmetic(field, node) for node in field.nodes)]
    path = _choose(field, costs)
    share = _share(field, costs, path, spec)
    stages, models = zip(*_stages(model, field, path, spec), strict=True)
    rates = accumulate((stage.hop for stage in stages[:-1]), mul, initial=1)
    widths = [stage.widest * rate for stage, rate in zip(stages, rates, strict=True)]
    ahead = [*(max(1, wide // (2 * narrow)) for narrow, wide in pairwise(widths)), 1]
    return StagedGraph(
        encoder=_encoder(model, field, path),
        stages=tuple(replace(s, ahead=n) for s, n in zip(stages, ahead, strict=True)),
        models=models,
        share=share,
    )


def single_stage(
    model: onnx.ModelProto, field: Field, spec: str
) -> tuple[onnx.ModelProto | None, Stage, onnx.ModelProto]:
    """Return what makes the frames of a text, and all that is local in time as one stage.

    Raises:
        ModelError: Most of the graph is not local in time; the operator is named.
    """
    first = _first_cut(field)
    path = [first, 0] if first in field.contexts(0) else [first]
    _share(field, [0.0, *accumulate(arithmetic(field, node) for node in field.nodes)], path, spec)
    ((stage, part),) = _stages(model, field, path, spec)
    return _encoder(model, field, path), stage, part


def whole_stage(
    model: onnx.ModelProto,
    field: Field,
    reads: Sequence[str],
    sides: Sequence[str],
    outputs: Sequence[str],
) -> tuple[onnx.ModelProto | None, Stage, onnx.ModelProto]:
    """Return what makes some tensors, and what makes the outputs of them as a stage without chunks.

    Args:
        model: The graph; not changed.
        field: Its shapes.
        reads: Tensors with time, of which the first has a step for each frame.
        sides: Tensors without.
        outputs: Outputs that are sound.
    """
    types = _types(model, [*reads, *sides], "whole")
    part = _part(model, field, {name: types[name] for name in (*reads, *sides)}, outputs)
    names = {value.name for value in model.graph.input}
    wanted = [name for name in (*reads, *sides) if name not in names]
    encoder = with_outputs(copy_model(model), wanted) if wanted else None
    (old, new), (short, long) = (
        [shape[field.axis(name) or 0] for shape in field.shapes[name]]
        for name in (reads[0], outputs[0])
    )
    hop = (long - short) // (new - old)
    stage = Stage(
        reads=tuple(reads),
        axis=field.axis(reads[0]) or 0,
        returns=tuple(outputs),
        to=field.axis(outputs[0]) or 0,
        sides=tuple(sides),
        hop=hop,
        before=0,
        after=0,
        extra=short - hop * old,
    )
    return encoder, stage, part


def _share(field: Field, costs: Sequence[float], path: Sequence[int], spec: str) -> float:
    """Return the share of the arithmetic that is local in time; refuse a graph of little."""
    share = costs[field.cuts[path[0]][1]] / sum(
        arithmetic(field, node) for node in field.graph.nodes
    )
    if len(path) < 2 or share < _LEAST:
        raise ModelError(
            f"'{spec}' cannot be streamed: {100 * (1 - share):.0f} % of its arithmetic is before "
            f"what is local in time, for {field.end or 'nothing in it depends on the length'}"
        )
    return share


def _first_cut(field: Field) -> int:
    return max((n for n, (names, _) in enumerate(field.cuts) if len(names) == 1), default=0)


def arithmetic(field: Field, node: onnx.NodeProto) -> float:
    """Return the multiplications of an operator in the first call, or the values it makes."""
    values = 0.0 if node.name.startswith(NOISE_PREFIX) else float(prod(field.shape(node.output[0])))
    layer = any(kind in node.op_type for kind in ("Conv", "MatMul"))
    weight = field.shape(node.input[3 if node.op_type == "QLinearConv" else 1]) if layer else ()
    if len(weight) < 2:
        return values
    if node.op_type == "ConvTranspose":
        return float(prod(field.shape(node.input[0])) * prod(weight) / weight[0])
    return values * (weight[-2] if "MatMul" in node.op_type else prod(weight[1:]))


def _choose(field: Field, costs: Sequence[float]) -> list[int]:
    """Return the numbers of the cuts with the least arithmetic, from the first to the outputs."""
    first = _first_cut(field)
    best, path = {first: 0.0}, {first: [first]}
    contexts = {number: field.contexts(number) for number in range(first)}
    for number in reversed(range(first)):
        for earlier, context in contexts[number].items():
            if earlier not in best:
                continue
            ((start,), behind), (_, end) = field.cuts[earlier], field.cuts[number]
            steps = (context.last + 1 - context.first) / field.size(start)
            frames = field.size(field.cuts[first][0][0])
            copied = _CHUNK * prod(field.shape(start)) / frames
            again = (costs[behind] - costs[end]) * steps
            cost = best[earlier] + again + _START + _COPY * copied
            if cost < best.get(number, inf):
                best[number], path[number] = cost, [*path[earlier], number]
    return path.get(0, [first])


def _sides(field: Field, start: int, end: int) -> tuple[str, ...]:
    """Return the tensors without time that the operators between two cuts read."""
    read = set[str]().union(*map(tensors_read, field.between(start, end)))
    return tuple(sorted({_real(field.graph, name) for name in field.sides & read}))


def _real(graph: Graph, tensor: str) -> str:
    """Return the tensor that a rounded one is made of, so that a stage rounds it itself."""
    maker = graph.producer(tensor)
    while maker is not None and maker.op_type in {"DequantizeLinear", "QuantizeLinear"}:
        tensor, maker = maker.input[0], graph.producer(maker.input[0])
    return tensor


def _encoder(model: onnx.ModelProto, field: Field, path: Sequence[int]) -> onnx.ModelProto | None:
    names = [value.name for value in model.graph.input]
    outputs = [*field.cuts[path[0]][0], *_sides(field, path[0], path[-1])]
    if {*outputs} <= {*names}:
        return None
    return with_outputs(copy_model(model), [name for name in outputs if name not in names])


def _stages(
    model: onnx.ModelProto, field: Field, path: Sequence[int], spec: str
) -> Iterator[tuple[Stage, onnx.ModelProto]]:
    names = [name for number in path for name in field.cuts[number][0]]
    types = _types(model, [*names, *(_real(field.graph, name) for name in field.sides)], spec)
    for earlier, number in pairwise(path):
        (start,), ends = field.cuts[earlier][0], field.cuts[number][0]
        context = field.margins(earlier, number)
        sides = _sides(field, earlier, number)
        axis, to = (field.axis(name) or 0 for name in (start, ends[0]))
        inputs = {name: types[name] for name in (start, *sides)}
        multiple = packet_steps(field, earlier, number)
        least = least_steps(field, earlier, number)
        stage = Stage(
            reads=(start,),
            axis=axis,
            returns=ends,
            to=to,
            sides=sides,
            hop=context.hop,
            before=multiple - 1 - context.first,
            after=context.last,
            extra=field.size(ends[0]) - field.size(start) * context.hop,
            least=least if multiple == 1 else (ceil(least / multiple) + 1) * multiple,
            multiple=multiple,
            widest=widest(field, earlier, number),
        )
        yield stage, _part(model, field, inputs, ends)


def least_steps(field: Field, start: int, end: int) -> int:
    """Return the fewest steps of a cut with which FP32 sums are those of more, none being empty."""
    cut = field.cuts[start][0][0]
    steps, least = field.size(cut), 1
    for node in field.between(start, end):
        output, source = node.output[0], node.input[0]
        least = max(least, *(_first_step(field, cut, name) for name in node.output))
        if node.op_type == "ConvTranspose":
            columns, depth = field.size(source), field.shape(source)[1]
        elif node.op_type in {"Conv", "FusedConv"}:
            columns = field.size(output)
            depth = int(arithmetic(field, node) / prod(field.shape(output)))
        else:
            continue
        # A column more or less at the ends is made up for by rounding up.
        least = max(least, ceil(((_WIDE if depth > _DEEP else _FEW) + 1) * steps / columns))
    return least


def _first_step(field: Field, cut: str, tensor: str) -> int:
    """Return the fewest steps of a cut with which a tensor behind it has a step."""
    axis, begin = field.axis(tensor), field.axis(cut)
    if axis is None or begin is None:
        return 1
    (short, longer), (first, second) = (
        [shape[at] for shape in field.shapes[name]] for name, at in ((tensor, axis), (cut, begin))
    )
    rate = Fraction(longer - short, second - first)
    return ceil((1 - (short - first * rate)) / rate)


def packet_steps(field: Field, start: int, end: int) -> int:
    """Return the steps of a cut whose multiples fill the packets of the operators behind it."""
    steps = field.size(field.cuts[start][0][0])
    packed = (n.output[0] for n in field.between(start, end) if n.op_type in _BY_PACKETS)
    sizes = (field.size(tensor) for tensor in packed if field.is_timed(tensor))
    return max((_PACKET * ceil(steps / size) for size in sizes), default=1)


def widest(field: Field, start: int, end: int) -> int:
    """Return the values of the largest tensor between two cuts for each step of the first."""
    names = (name for node in field.between(start, end) for name in node.output if name)
    return max(prod(field.shape(name)) for name in names) // field.size(field.cuts[start][0][0])


def _part(
    model: onnx.ModelProto, field: Field, inputs: Mapping[str, int], outputs: Sequence[str]
) -> onnx.ModelProto:
    """Return the operators between tensors; inputs with their element types."""
    part = copy_model(model)
    nodes = [node for node in part.graph.node if inputs.keys().isdisjoint(node.output)]
    # With ranks: without them onnxruntime's optimizers take other ways than in the whole.
    ranks = {name: [None] * len(field.shape(name)) for name in inputs}
    values = [helper.make_tensor_value_info(n, kind, ranks[n]) for n, kind in inputs.items()]
    del part.graph.input[:], part.graph.value_info[:]
    part.graph.input.extend(values)
    set_nodes(part.graph, nodes)
    return with_outputs(part, outputs)


def _types(model: onnx.ModelProto, names: Sequence[str], spec: str) -> dict[str, int]:
    """Return the element types of tensors, by what onnxruntime infers."""
    inputs = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    inner = [name for name in dict.fromkeys(names) if name not in inputs]
    if not inner:
        return inputs
    session = open_session(with_outputs(copy_model(model), inner), spec, briefly=True)
    kinds = {v.name: v.type.removeprefix("tensor(")[:-1].upper() for v in session.get_outputs()}
    return inputs | {name: TensorProto.DataType.Value(kind) for name, kind in kinds.items()}
