"""The receptive field of a graph in time: which moments of one tensor another one is made of.

A graph is walked from its output back towards its inputs. Each operator says by its own numbers
(kernel, stride, dilation, padding) which interval of each input an interval of its output reads;
whatever mixes all moments, such as attention, statistics over time or an LSTM, ends the walk.
The axis of time is the one whose size differs between two observed calls.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import onnx
from onnx import helper

from tts_compress.onnx.graph import Graph, attribute, bodies, copy_model, reach, tensors_read
from tts_compress.onnx.noise import NOISE_PREFIX
from tts_compress.onnx.session import Feeds, open_session, run_session

Shapes = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Shapes of each tensor in two calls of different lengths."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELEMENTWISE = _words(
    """Abs Acos Add And Asin Atan BiasGelu Cast CastLike Ceil Celu Clip ConstantOfShape Cos Cosh
    DequantizeLinear Div Elu Equal Erf Exp Expand FastGelu Floor Gelu Greater GreaterOrEqual
    HardSigmoid HardSwish Identity LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not
    Or PRelu Pow QLinearAdd QLinearLeakyRelu QLinearMul QLinearSigmoid QuantizeLinear QuickGelu
    Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh
    ThresholdedRelu Where Xor"""
)
"""Operators whose output at a moment is made of the same moment of their inputs."""

_REDUCING = _words(
    """ArgMax ArgMin CumSum LayerNormalization LogSoftmax LpNormalization ReduceL1 ReduceL2
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare RMSNormalization
    SimplifiedLayerNormalization Softmax"""
)
"""Operators that compute along axes, which must not be that of time."""

_PRODUCTS = _words(
    """DynamicQuantizeMatMul FusedMatMul Gemm MatMul MatMulInteger MatMulIntegerToFloat
    MatMulNBits QLinearMatMul"""
)
_PICKING = _words("Gather Split")
_FOLDING = _words(
    """AveragePool Conv ConvInteger ConvTranspose FusedConv MaxPool NhwcFusedConv QLinearConv"""
)


class NotLocalError(Exception):
    """An operator reads more of the time than a neighbourhood of fixed size."""


class Window(NamedTuple):
    """The interval of an input that an interval of an output reads.

    From `(first * times + low) // over` to `(last * times + high) // over`, both included.
    """

    times: int = 1
    over: int = 1
    low: int = 0
    high: int = 0

    def reads(self, first: int, last: int) -> tuple[int, int]:
        """Return the first and the last moment of the input."""
        return (
            (first * self.times + self.low) // self.over,
            (last * self.times + self.high) // self.over,
        )


def observe_shapes(model: onnx.ModelProto, calls: Sequence[Feeds], spec: str) -> Shapes:
    """Return the shapes of all tensors of the main graph in two calls."""
    watched = copy_model(model)
    makers = (node for node in model.graph.node if node.op_type != "Constant")
    names = [value.name for value in model.graph.input]
    names += [name for node in makers for name in node.output if name]
    sizes = [f"tts_compress.shape.{number}" for number in range(len(names))]
    pairs = zip(names, sizes, strict=True)
    watched.graph.node.extend(helper.make_node("Shape", [n], [s], s) for n, s in pairs)
    del watched.graph.output[:]
    watched.graph.output.extend(map(helper.make_empty_tensor_value_info, sizes))
    session = open_session(watched, spec, briefly=True)
    runs = [run_session(session, feeds, spec) for feeds in calls]
    return {
        name: (tuple(map(int, one)), tuple(map(int, other)))
        for name, one, other in zip(names, *runs, strict=True)
        if len(one) == len(other)
    }


@dataclass(slots=True)
class Field:
    """What a graph's outputs are made of, as far back as every operator is local in time."""

    graph: Graph
    shapes: Shapes
    links: dict[str, list[tuple[str, Window]]] = field(default_factory=dict)
    """The tensors that each tensor reads, with the window."""

    cuts: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    """Tensors through which all sound passes, from the outputs back, with the number of operators
    behind them; the first are the outputs."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    """The operators that are local, from the outputs back."""

    sides: set[str] = field(default_factory=set)
    """Tensors without time that are read and are no constants."""

    end: str = ""
    """The operator that ended the walk and the reason; empty where it reached an input."""

    def axis(self, tensor: str) -> int | None:
        """Return the axis of time; None for a tensor without, or with several."""
        one, other = self.shapes.get(tensor, ((), ()))
        varying = [
            axis for axis, sizes in enumerate(zip(one, other, strict=True)) if len({*sizes}) > 1
        ]
        return varying[0] if len(varying) == 1 else None

    def size(self, tensor: str) -> int:
        """Return the length in the first call of a tensor that has one axis of time."""
        return self.shapes[tensor][0][self.axis(tensor) or 0]

    def shape(self, tensor: str) -> Sequence[int]:
        """Return the shape in the first call."""
        value = self.graph.constant(tensor)
        return self.shapes.get(tensor, ((), ()))[0] if value is None else value.shape

    def is_timed(self, tensor: str) -> bool:
        """Return True for a tensor whose shape depends on the length."""
        one, other = self.shapes.get(tensor, ((), ()))
        return one != other

    def contexts(self, number: int) -> "dict[int, Context]":
        """Return what the first step of a cut needs of each cut before it, by its number."""
        _, begin = self.cuts[number]
        places = {place: other for other, (_, place) in enumerate(self.cuts) if place > begin}
        contexts = dict[int, Context]()
        for place, need, rates in self._back(number, (0, 0)):
            if place in places:
                (start,) = self.cuts[places[place]][0]
                whole = all((rates[start] / rate).denominator == 1 for rate in {*rates.values()})
                if start in need and whole:
                    contexts[places[place]] = Context(*need[start], int(rates[start]))
        return contexts

    def margins(self, earlier: int, number: int) -> "Context":
        """Return what all outputs of one step of a cut need, so that nothing is missing between.

        A tensor between begins where the chunk does, whatever is cut off it.
        """
        ((start,), end), hop = self.cuts[earlier], self.contexts(number)[earlier].hop
        base, first, last = self.shapes[start][0][self.axis(start) or 0], 0, 0
        for place, need, rates in self._back(number, (0, hop - 1)):
            if place == end:
                for tensor, (low, high) in need.items():
                    rate = int(rates[start] / rates[tensor])
                    extra = self.shapes[tensor][0][self.axis(tensor) or 0] - base * rate
                    first, last = min(first, low // rate), max(last, (high - extra) // rate)
                break
        return Context(first, last, hop)

    def _back(self, number: int, span: tuple[int, int]) -> "Iterator[_Reached]":
        """Yield after each operator before a cut what it needs, and steps of the cut by tensor."""
        ends, begin = self.cuts[number]
        need, rates = dict.fromkeys(ends, span), dict.fromkeys(ends, Fraction(1))
        for place, node in enumerate(self.nodes[begin:], begin + 1):
            for output in (name for name in node.output if name in need):
                for source, window in self.links.get(output, ()):
                    first, last = window.reads(*need[output])
                    old = need.get(source, (first, last))
                    need[source] = min(old[0], first), max(old[1], last)
                    rate = rates[output] * window.over / window.times
                    if rates.setdefault(source, rate) != rate:
                        return  # two rates of time are joined
            yield place, need, rates


_Reached = tuple[int, Mapping[str, tuple[int, int]], Mapping[str, Fraction]]


class Context(NamedTuple):
    """What outputs need of a tensor, in steps of it."""

    first: int
    last: int
    hop: int
    """Steps of the outputs for each of it."""


def walk(graph: Graph, shapes: Shapes, outputs: Iterable[str]) -> Field:
    """Return what outputs are made of, back to where an operator is not local in time."""
    reached = Field(graph, shapes)
    waiting, blocked = dict.fromkeys(outputs), dict[int, str]()
    reached.cuts.append((tuple(waiting), 0))
    for node in reversed(graph.nodes):
        if waiting.keys().isdisjoint(node.output):
            continue
        try:
            if id(node) in blocked:
                raise NotLocalError(blocked[id(node)])
            links, lengths, sides = _read(reached, node)
        except NotLocalError as reason:
            reached.end = str(reason)
            break
        for side in sides:
            reached.sides.add(side)
            _block(graph, side, blocked)
        reached.nodes.append(node)
        reached.links |= links
        for name in node.output:
            waiting.pop(name, None)
        timed = [source for pairs in links.values() for source, _ in pairs]
        waiting |= dict.fromkeys([*timed, *lengths])
        if len(waiting) == 1 and tuple(waiting) != reached.cuts[-1][0]:
            reached.cuts.append((tuple(waiting), len(reached.nodes)))
    return reached


def _block(graph: Graph, side: str, blocked: dict[int, str]) -> None:
    """Let the walk end at what a value without time is computed from: its statistics."""
    maker = graph.producer(side)
    reason = f"{_shown(maker)} takes statistics over time" if maker is not None else ""
    for tensor in reach([side], lambda t: _inputs(graph, t)):
        node = graph.producer(tensor)
        if node is not None:
            blocked.setdefault(id(node), reason)


def _inputs(graph: Graph, tensor: str) -> list[str]:
    node = graph.producer(tensor)
    return [] if node is None else [*tensors_read(node)]


def _shown(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or node.output[0]}'"


_Links = dict[str, list[tuple[str, Window]]]


def _read(reached: Field, node: onnx.NodeProto) -> tuple[_Links, list[str], list[str]]:
    """Return the windows of an operator's outputs, tensors whose length it reads, and sides."""
    outputs = [name for name in node.output if name and reached.is_timed(name)]
    timed = [name for name in node.input if name and reached.is_timed(name)]
    if node.name.startswith(NOISE_PREFIX):
        raise NotLocalError("noise is drawn for the whole length")
    if bodies(node) or any(reached.axis(name) is None for name in (*outputs, *timed)):
        raise NotLocalError(f"{_shown(node)} has more than one axis of time, or branches")
    lengths, sides = list[str](), list[str]()
    for name in dict.fromkeys(node.input):
        if name and name not in timed:
            kind, sources = _kind(reached, name)
            lengths += sources
            sides += [name] if kind == "side" else []
    rule = _RULES.get(node.op_type)
    if rule is None:
        raise NotLocalError(f"{_shown(node)} is not local in time")
    links = {
        output: [
            (name, rule(reached, node, position, output))
            for position, name in enumerate(node.input)
            if name in timed
        ]
        for output in outputs
    }
    return links, lengths, sides


def _kind(reached: Field, tensor: str) -> tuple[str, list[str]]:
    """Return if a tensor without time is constant, follows from lengths, or is a side input."""
    graph = reached.graph

    def sources(name: str) -> Iterable[str]:
        node = graph.producer(name)
        return [] if node is None or node.op_type in {"Shape", "Size"} else tensors_read(node)

    behind = reach([tensor], sources)
    makers = [node for node in map(graph.producer, behind) if node is not None]
    shaped = [node.input[0] for node in makers if node.op_type in {"Shape", "Size"}]
    lengths = [name for name in shaped if reached.is_timed(name)]
    given = [name for name in behind if name in graph.inputs or reached.is_timed(name)]
    if given or len(lengths) < len(shaped):
        return "side", []
    return ("length" if lengths else "constant"), lengths


_Rule = Callable[[Field, onnx.NodeProto, int, str], Window]


def _same(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """Each moment of the output is made of the same moment of the input."""
    if reached.size(node.input[position]) != reached.size(output):
        raise NotLocalError(f"{_shown(node)} changes the length in a way that is not followed")
    return Window()


def _across(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """It computes across other axes than time."""
    source, kind = node.input[position], node.op_type
    rank = len(reached.shapes[source][0])
    axes: Any = attribute(node, "axes", attribute(node, "axis", 0 if kind in _PICKING else -1))
    if kind in _PRODUCTS:
        if sum(map(reached.is_timed, node.input)) > 1 or attribute(node, "transA", 0):
            raise NotLocalError(f"{_shown(node)} multiplies two tensors of the time")
        axes = -1 if position == 0 else -2
    elif len(node.input) > 1 and kind.startswith(("Reduce", "CumSum")):
        stated = reached.graph.constant(node.input[1])
        axes = range(rank) if stated is None else stated.reshape(-1).tolist()
    elif kind.startswith("Reduce") and axes == -1:
        axes = range(rank)
    elif kind.endswith("Normalization") and kind != "LpNormalization":
        axes = range(axes % rank, rank)
    elif kind == "Gather" and position:
        return Window()  # each moment looks up its own row of a table
    if reached.axis(source) in {a % rank for a in ([axes] if isinstance(axes, int) else axes)}:
        raise NotLocalError(f"{_shown(node)} computes over time")
    return _same(reached, node, position, output)


def _fold(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """A convolution or pooling along time."""
    kind, source = node.op_type, node.input[position]
    last = bool(attribute(node, "channels_last", 0)) or kind == "NhwcFusedConv"
    axis, rank = reached.axis(source), len(reached.shapes[source][0])
    assert axis is not None
    if kind == "FusedConv" and position == len(node.input) - 1 and position > 2:
        return _same(reached, node, position, output)  # what is added to the result
    place, spatial = axis - (1 if last else 2), rank - 2
    if position or not 0 <= place < spatial:
        raise NotLocalError(f"{_shown(node)} mixes time as channels")
    kernel = attribute(node, "kernel_shape", ())
    kernel = kernel or reached.shape(node.input[3 if kind == "QLinearConv" else 1])[2:]
    ones = (1,) * spatial
    stride = attribute(node, "strides", ones)[place]
    reach_ = attribute(node, "dilations", ones)[place] * (kernel[place] - 1)
    auto = attribute(node, "auto_pad", "NOTSET")
    pad = attribute(node, "pads", (0,) * 2 * spatial)[place]
    if auto.startswith("SAME") and stride == 1 and kind != "ConvTranspose":
        pad = (reach_ + (auto == "SAME_LOWER")) // 2
    elif auto not in {"NOTSET", "VALID"}:
        raise NotLocalError(f"{_shown(node)} pads by its length (auto_pad {auto})")
    if kind == "ConvTranspose":
        return Window(over=stride, low=pad - reach_ + stride - 1, high=pad)
    return Window(times=stride, low=-pad, high=reach_ - pad)


def _reshape(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """Time may be split into steps with fewer values, or gathered into steps with more."""
    (one, _), (made, _) = reached.shapes[node.input[position]], reached.shapes[output]
    before, after = reached.axis(node.input[position]), reached.axis(output)
    old, new = reached.size(node.input[position]), reached.size(output)
    if position or prod(one[:before]) != prod(made[:after]) or (new % old and old % new):
        raise NotLocalError(f"{_shown(node)} mixes time with another axis")
    if new >= old:
        return Window(over=new // old)
    return Window(times=old // new, high=old // new - 1)


def _slice(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """Cut at both ends by constants, where it cuts time."""
    axis = reached.axis(node.input[0])
    rank, size = len(reached.shapes[node.input[0]][0]), reached.shapes[node.input[0]][0]
    values = [reached.graph.constant(name) if name else None for name in node.input[1:]]
    if position or values[0] is None or values[1] is None:
        raise NotLocalError(f"{_shown(node)} cuts where the length says")
    starts, count = values[0].reshape(-1), values[0].size
    axes = values[2].reshape(-1) if len(values) > 2 and values[2] is not None else range(count)
    steps = values[3].reshape(-1) if len(values) > 3 and values[3] is not None else [1] * count
    for start, end, along, step in zip(starts, values[1].reshape(-1), axes, steps, strict=True):
        if along % rank != axis:
            continue
        if step != 1 or start < 0 or 0 <= end < size[axis]:
            raise NotLocalError(f"{_shown(node)} takes a part of the time")
        return Window(low=int(start), high=int(start))
    return _same(reached, node, position, output)


def _pad(reached: Field, node: onnx.NodeProto, position: int, _: str) -> Window:
    """Zeros, edges or reflections at both ends."""
    axis = reached.axis(node.input[0])
    pads = reached.graph.constant(node.input[1])
    rank = len(reached.shapes[node.input[0]][0])
    if position or axis is None or pads is None or pads.size != 2 * rank:
        raise NotLocalError(f"{_shown(node)} pads as the length says")
    left, right = int(pads[axis]), int(pads[axis + rank])
    mode = attribute(node, "mode", "constant")
    if mode == "wrap":
        raise NotLocalError(f"{_shown(node)} goes round")
    far = {"constant": 0, "edge": 1, "reflect": 2}[mode]
    return Window(low=-left - far * max(right, 0), high=-left + far * max(left, 0))


def _concat(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """Side by side; along time only with constants at the ends, which pad."""
    axis = reached.axis(output)
    assert axis is not None
    if attribute(node, "axis", 0) % len(reached.shapes[output][0]) != axis:
        return _same(reached, node, position, output)
    if sum(bool(reached.is_timed(name)) for name in node.input) > 1:
        raise NotLocalError(f"{_shown(node)} joins stretches of time")
    sizes = [reached.shape(name)[axis] for name in node.input[:position]]
    return Window(low=-sum(sizes), high=-sum(sizes))


def _resize(reached: Field, node: onnx.NodeProto, position: int, output: str) -> Window:
    """A whole number of steps for each step."""
    (one, other), (made, more) = reached.shapes[node.input[0]], reached.shapes[output]
    axis = reached.axis(output)
    if position or axis is None or axis != reached.axis(node.input[0]):
        raise NotLocalError(f"{_shown(node)} resizes other axes than time")
    scale = made[axis] // one[axis]
    if (one[axis] * scale, other[axis] * scale) != (made[axis], more[axis]):
        raise NotLocalError(f"{_shown(node)} resizes time by a fraction")
    mode = attribute(node, "coordinate_transformation_mode", "half_pixel")
    if attribute(node, "mode", "nearest") == "nearest" and mode == "asymmetric":
        return Window(over=scale)
    if mode == "align_corners" or attribute(node, "mode", "nearest") == "cubic":
        raise NotLocalError(f"{_shown(node)} resizes by its length or by cubic curves")
    return Window(over=scale, low=-scale, high=scale)


_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _same),
    **dict.fromkeys(_REDUCING | _PRODUCTS | _PICKING, _across),
    **dict.fromkeys(_FOLDING, _fold),
    **dict.fromkeys(("Reshape", "Flatten"), _reshape),
    **dict.fromkeys(("Transpose", "Squeeze", "Unsqueeze"), _same),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Concat": _concat,
    "Pad": _pad,
    "Slice": _slice,
}
