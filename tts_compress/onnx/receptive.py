"""The receptive field of a graph in time: which moments of one tensor another one is made of.

A graph is walked from its output back towards its inputs. Each operator says by its own numbers
(kernel, stride, dilation, padding) which interval of each input an interval of its output reads;
whatever mixes all moments, such as attention, statistics over time or an LSTM, ends the walk.
The axis of time is the one whose size differs between two observed calls.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import Any, NamedTuple

import onnx
from onnx import helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.nodes import ancestors, attribute, bodies, reach, tensors_read
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
    """FusedMatMul Gemm MatMul MatMulInteger MatMulIntegerToFloat MatMulNBits QLinearMatMul"""
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


_UNSHAPED = re.compile("^Constant$|Sequence(?!At)")


def observe_shapes(model: onnx.ModelProto, calls: Sequence[Feeds], spec: str) -> Shapes:
    """Return the shapes of all tensors of the main graph in two calls."""
    watched = copy_model(model)
    # Loops may make a sequence, which has no shape; constants have theirs in the graph.
    makers = (n for n in model.graph.node if not bodies(n) and not _UNSHAPED.search(n.op_type))
    names = [value.name for value in model.graph.input]
    names += [name for node in makers for name in node.output if name]
    # The runtime begins with the last output: each tensor is freed before the next is made.
    names.reverse()
    sizes = [f"tts_compress.shape.{number}" for number in range(len(names))]
    pairs = zip(names, sizes, strict=True)
    watched.graph.node.extend(helper.make_node("Shape", [n], [s], s) for n, s in pairs)
    del watched.graph.output[:]
    watched.graph.output.extend(map(helper.make_empty_tensor_value_info, sizes))
    session = open_session(watched, spec, briefly=True)
    runs = [run_session(session, feeds, spec) for feeds in calls]
    return {
        name: (tuple(map(int, short)), tuple(map(int, long)))
        for name, short, long in zip(names, *runs, strict=True)
        if len(short) == len(long)
    }


@dataclass(slots=True)
class Field:
    """Tensors that a graph's outputs are made of, as far back as operators are local in time."""

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
        sizes = enumerate(zip(*self.shapes.get(tensor, ((), ())), strict=True))
        varying = [axis for axis, (short, long) in sizes if short != long]
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
        return len({*self.shapes.get(tensor, ())}) > 1

    def between(self, start: int, end: int) -> list[onnx.NodeProto]:
        """Return the operators from one cut to another, by their numbers."""
        return self.nodes[self.cuts[end][1] : self.cuts[start][1]]

    def contexts(self, number: int) -> "dict[int, Context]":
        """Return what the first step of a cut needs of each cut before it, by its number."""
        _, begin = self.cuts[number]
        earlier = {count: n for n, (_, count) in enumerate(self.cuts) if count > begin}
        contexts = dict[int, Context]()
        for count, need, rates in self._back(number, (0, 0)):
            if count in earlier:
                (start,) = self.cuts[earlier[count]][0]
                whole = all((rates[start] / rate).denominator == 1 for rate in {*rates.values()})
                if start in need and whole:
                    contexts[earlier[count]] = Context(*need[start], int(rates[start]))
        return contexts

    def margins(self, earlier: int, number: int) -> "Context":
        """Return what all outputs of one step of a cut need, so that nothing is missing between.

        A tensor between begins where the chunk does, whatever is cut off it.
        """
        ((start,), end), hop = self.cuts[earlier], self.contexts(number)[earlier].hop
        base, first, last = self.size(start), 0, 0
        for count, need, rates in self._back(number, (0, hop - 1)):
            if count == end:
                for tensor, (low, high) in need.items():
                    rate = int(rates[start] / rates[tensor])
                    extra = self.size(tensor) - base * rate
                    first, last = min(first, low // rate), max(last, (high - extra) // rate)
                break
        return Context(first, last, hop)

    def _back(self, number: int, span: tuple[int, int]) -> "Iterator[_Reached]":
        """Yield after each operator before a cut what it needs, and steps of the cut by tensor."""
        ends, begin = self.cuts[number]
        need, rates = dict.fromkeys(ends, span), dict.fromkeys(ends, Fraction(1))
        for count, node in enumerate(self.nodes[begin:], begin + 1):
            for output in (name for name in node.output if name in need):
                for source, window in self.links.get(output, ()):
                    first, last = window.reads(*need[output])
                    old = need.get(source, (first, last))
                    need[source] = min(old[0], first), max(old[1], last)
                    rate = rates[output] * window.over / window.times
                    if rates.setdefault(source, rate) != rate:
                        return  # two rates of time are joined
            yield count, need, rates


_Reached = tuple[int, Mapping[str, tuple[int, int]], Mapping[str, Fraction]]


class Context(NamedTuple):
    """The steps of a tensor that outputs need."""

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
            links, lengths, sides = read_node(reached, node)
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
    makers = {name: node for node in graph.nodes for name in node.output}
    for node in ancestors(makers, [side]):
        blocked.setdefault(id(node), reason)


def _shown(node: onnx.NodeProto) -> str:
    return f"{node.op_type} '{node.name or node.output[0]}'"


_Links = dict[str, list[tuple[str, Window]]]


def read_node(reached: Field, node: onnx.NodeProto) -> tuple[_Links, list[str], list[str]]:
    """Return the windows of an operator's outputs, tensors whose length it reads, and sides."""
    outputs = [name for name in node.output if name and reached.is_timed(name)]
    timed = [name for name in node.input if name and reached.is_timed(name)]
    if node.name.startswith(NOISE_PREFIX):
        raise NotLocalError("noise is drawn for the whole length")
    if bodies(node) or any(reached.axis(name) is None for name in (*outputs, *timed)):
        raise NotLocalError(f"{_shown(node)} has more than one axis of time, or branches")
    lengths, sides = list[str](), list[str]()
    for name in dict.fromkeys(node.input):
        if name and name not in reached.shapes and reached.graph.constant(name) is None:
            raise NotLocalError(f"{_shown(node)} reads what has no shape, or another in each call")
        if name and name not in timed:
            kind, sources = kind_of(reached, name)
            lengths += sources
            sides += [name] if kind == "side" else []
    rule = _RULES.get(node.op_type)
    if rule is None:
        raise NotLocalError(f"{_shown(node)} is not local in time")
    links = {
        output: [
            (name, rule(_Reading(reached, node, position, output)))
            for position, name in enumerate(node.input)
            if name in timed
        ]
        for output in outputs
    }
    return links, lengths, sides


def kind_of(reached: Field, tensor: str) -> tuple[str, list[str]]:
    """Return if a tensor without time is constant, follows from lengths, or is a side input."""
    graph = reached.graph

    def sources(name: str) -> Iterable[str]:
        node = graph.producer(name)
        return [] if node is None or node.op_type in {"Shape", "Size"} else tensors_read(node)

    behind = reach([tensor], sources)
    makers = [node for node in map(graph.producer, behind) if node is not None]
    shaped = [node.input[0] for node in makers if node.op_type in {"Shape", "Size"}]
    lengths = [name for name in shaped if reached.is_timed(name)]
    inputs = [name for name in behind if name in graph.inputs or reached.is_timed(name)]
    if inputs or len(lengths) < len(shaped):
        return "side", []
    return ("length" if lengths else "constant"), lengths


@dataclass(frozen=True, slots=True)
class _Reading:
    """An operator's output and one of the inputs that it is made of, both with time."""

    field: Field
    node: onnx.NodeProto
    position: int
    output: str

    @property
    def source(self) -> str:
        return str(self.node.input[self.position])

    @property
    def lengths(self) -> tuple[int, int]:
        """Lengths of the input and of the output."""
        return self.field.size(self.source), self.field.size(self.output)

    @property
    def axis(self) -> int:
        """Axis of time of the input, which has one."""
        return self.field.axis(self.source) or 0

    @property
    def rank(self) -> int:
        return len(self.field.shape(self.source))

    def stated(self, name: str, default: Any) -> Any:
        """Return an attribute."""
        return attribute(self.node, name, default)

    def constant(self, position: int) -> list[int] | None:
        """Return the whole numbers that an input is given; None where they are not constant."""
        name = self.node.input[position] if position < len(self.node.input) else ""
        value = self.field.graph.constant(name) if name else None
        return None if value is None else [int(number) for number in value.reshape(-1)]

    def check(self, is_local: bool, problem: str) -> None:
        """Refuse an operator that is not local."""
        if not is_local:
            raise NotLocalError(f"{_shown(self.node)} {problem}")

    def only(self) -> None:
        """Refuse time in any input but the first."""
        self.check(self.position == 0, "reads time where it reads numbers")


_Rule = Callable[[_Reading], Window]


def _same(read: _Reading) -> Window:
    """Each moment of the output is made of the same moment of the input."""
    before, after = read.lengths
    read.check(before == after, "changes the length in a way that is not followed")
    return Window()


def _across(read: _Reading) -> Window:
    """It computes across other axes than time."""
    kind, rank = read.node.op_type, read.rank
    axes: Any = read.stated("axes", read.stated("axis", 0 if kind in _PICKING else -1))
    if kind in _PRODUCTS:  # both operands have what it sums over
        timed = sum(map(read.field.is_timed, read.node.input))
        read.check(timed == 1, "multiplies over time")
        return _same(read)
    if kind.startswith(("Reduce", "CumSum")) and not isinstance(axes, tuple):
        axes = read.constant(1) or range(rank)
    elif kind.endswith("Normalization") and kind != "LpNormalization":
        axes = range(axes % rank, rank)
    elif kind == "Gather" and read.position:
        return Window()  # each moment looks up its own row of a table
    across = {axis % rank for axis in ([axes] if isinstance(axes, int) else axes)}
    read.check(read.axis not in across, "computes over time")
    return _same(read)


def _fold(read: _Reading) -> Window:
    """A convolution or pooling along time."""
    kind, spatial = read.node.op_type, read.rank - 2
    last = read.stated("channels_last", 0) or kind == "NhwcFusedConv"
    along, ones = read.axis - (1 if last else 2), (1,) * spatial
    read.only()
    read.check(0 <= along < spatial, "mixes time as channels")
    read.check(read.stated("auto_pad", "NOTSET") in {"NOTSET", "VALID"}, "pads by its length")
    weight = read.node.input[3 if kind == "QLinearConv" else -1 if "Pool" in kind else 1]
    kernel = read.stated("kernel_shape", ()) or read.field.shape(weight)[2:]
    stride = read.stated("strides", ones)[along]
    width = read.stated("dilations", ones)[along] * (kernel[along] - 1)
    pad = read.stated("pads", (0,) * 2 * spatial)[along]
    if kind == "ConvTranspose":
        return Window(over=stride, low=pad - width + stride - 1, high=pad)
    return Window(times=stride, low=-pad, high=width - pad)


def _reshape(read: _Reading) -> Window:
    """Time may be split into steps with fewer values, or gathered into steps with more."""
    (old, new), to = read.lengths, read.field.axis(read.output)
    before, after = read.field.shape(read.source)[: read.axis], read.field.shape(read.output)[:to]
    whole = new % old == 0 or old % new == 0
    read.check(whole and prod(before) == prod(after), "mixes time with another axis")
    if new >= old:
        return Window(over=new // old)
    return Window(times=old // new, high=old // new - 1)


_ENDLESS = 2**31 - 1
"""From here on an end means that of the tensor; before it, longer ones are cut."""


def _slice(read: _Reading) -> Window:
    """Cut at both ends by constants, where it cuts time."""
    read.only()
    starts, ends = read.constant(1), read.constant(2)
    if starts is None or ends is None:
        raise NotLocalError(f"{_shown(read.node)} cuts where the length says")
    axes = read.constant(3) or range(len(starts))
    steps = read.constant(4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if axis % read.rank == read.axis:
            is_edge = step == 1 and start >= 0 and not 0 <= end < _ENDLESS
            read.check(is_edge, "takes a part of the time")
            return Window(low=start, high=start)
    return _same(read)


def _pad(read: _Reading) -> Window:
    """Zeros, edges or reflections at both ends."""
    read.only()
    pads, mode = read.constant(1) or [], read.stated("mode", "constant")
    is_stated = len(pads) == 2 * read.rank and mode in _FAR
    read.check(is_stated, "pads by its length, or goes round")
    left, right = pads[read.axis], pads[read.axis + read.rank]
    return Window(low=-left - _FAR[mode] * max(right, 0), high=-left + _FAR[mode] * max(left, 0))


_FAR = {"constant": 0, "edge": 1, "reflect": 2}
"""Widths of a padding that lie between what is filled and what it is filled with."""


def _concat(read: _Reading) -> Window:
    """Side by side; along time only with constants at the ends, which pad."""
    if read.stated("axis", 0) % read.rank != read.axis:
        return _same(read)
    read.check(sum(map(read.field.is_timed, read.node.input)) == 1, "joins stretches of time")
    left = sum(read.field.shape(name)[read.axis] for name in read.node.input[: read.position])
    return Window(low=-left, high=-left)


def _resize(read: _Reading) -> Window:
    """A whole number of steps for each step."""
    read.only()
    (old, new), mode = read.lengths, read.stated("coordinate_transformation_mode", "half_pixel")
    curve = read.stated("mode", "nearest")
    is_whole = new % old == 0 and mode != "align_corners" and curve != "cubic"
    read.check(is_whole, "resizes time by a fraction, by its length or by cubic curves")
    scale = new // old
    if (curve, mode) != ("nearest", "asymmetric") or read.node.op_type == "Upsample":
        return Window(over=scale, low=-scale, high=scale)
    shifts = {"floor": 0, "round_prefer_ceil": scale // 2, "ceil": scale - 1}
    shift = shifts.get(read.stated("nearest_mode", "round_prefer_floor"), (scale - 1) // 2)
    return Window(over=scale, low=shift, high=shift)


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
