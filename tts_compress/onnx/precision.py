"""Parts of a graph that need precision: what decides how long things last, and phases.

Durations are predicted as real numbers, rounded to whole frames, and used as lengths: of ranges, of
repeated frames, of masks made of cumulative sums. A rounding error before that moves frames, and
everything behind them is another sound; so these operators are better left in floats. They are
found by following lengths back to where they began.

Phases are sums of frequencies over time, whose sine is taken. They grow with every period, to
thousands of radians in seconds of speech, where half precision has steps of whole radians: nothing
would be left of the sine. Angles are `atan(a / b)` of two parts of a spectrum, which are so small
where it is quiet that half precision makes them 0 / 0. Vocoders with a sine source have both.

Small values count as much as large ones in a logarithm: an integer's step, or what rounded weights
of a Fourier transform let through of loud bands, is louder than the quiet ones. Encoders of
speakers and recognizers begin with spectra whose logarithm is taken.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import CONVERTIBLE, LAYERS, PASSING, RECURRENT
from tts_compress.onnx.nodes import attribute, bodies, nested_graphs, reach

_LENGTHS: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Loop": (0,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Tile": (1,),
}
"""Inputs whose values say how long an output is, or from where to where."""

_ROUNDING = frozenset({"Ceil", "Floor", "Round"})
_WHOLE = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8, TensorProto.BOOL})


@dataclass(slots=True)
class _Flow:
    """The values that tensors are computed from, in a graph with its branches and bodies."""

    values: dict[str, list[str]] = field(default_factory=dict)
    """For each tensor those whose values it depends on; a shape depends on none."""

    sound: dict[str, list[str]] = field(default_factory=dict)
    """The same without lengths and without inputs that are rounded to whole numbers."""

    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    regulators: list[tuple[onnx.NodeProto, list[str]]] = field(default_factory=list)
    """Operators that read lengths, and the tensors that hold these."""

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> "_Flow":
        """Return the flow of a graph."""
        flow = cls()
        for part, _ in nested_graphs(graph):
            for node in part.node:
                flow._add(node)
        return flow

    def _add(self, node: onnx.NodeProto) -> None:
        outputs = dict.fromkeys(filter(None, node.output), node)
        self.makers |= outputs
        positions = _LENGTHS.get(node.op_type, ())
        lengths = [name for i, name in enumerate(node.input) if i in positions]
        if lengths:
            self.regulators.append((node, lengths))
        if inner := bodies(node):
            self._add_bodies(node, inner)
            return
        read = [] if node.op_type in {"Shape", "Size"} else [name for name in node.input if name]
        kept = [] if _is_rounding(node) else [name for name in read if name not in lengths]
        for name in outputs:
            self._link(name, read, kept)

    def _add_bodies(self, node: onnx.NodeProto, inner: list[onnx.GraphProto]) -> None:
        """Connect the inputs and outputs of branches and bodies."""
        inputs, links = list(node.input), dict[str, list[str]]()
        ends = [[value.name for value in body.output] for body in inner]
        for i, name in enumerate(node.output):
            if node.op_type == "If":
                links[name] = [*inputs[:1], *(end[i] for end in ends)]
            elif node.op_type == "Loop":
                links[name] = [ends[0][i + 1], *inputs[i + 2 : i + 3]]
            else:
                links[name] = [*inputs, *(tensor for end in ends for tensor in end)]
        for body, end in zip(inner, ends, strict=True):
            for i, value in enumerate(body.input):
                if node.op_type == "Loop":
                    links[value.name] = [*inputs[i : i + 1], end[i - 1]] if i else []
                else:
                    links[value.name] = [*inputs, *end]
        for name, sources in links.items():
            computed = [tensor for tensor in sources if tensor]
            self._link(name, computed, computed)

    def _link(self, name: str, read: Iterable[str], kept: Iterable[str]) -> None:
        """Let a tensor depend on others; two branches may have one name for their tensors."""
        self.values.setdefault(name, []).extend(read)
        self.sound.setdefault(name, []).extend(kept)

    def behind(self, tensors: Iterable[str], *, near: bool = False) -> set[str]:
        """Return tensors and those they depend on by value; with `near`, none behind a layer."""

        def sources(tensor: str) -> list[str]:
            beyond = near and tensor in self.makers and _is_layer(self.makers[tensor])
            return [] if beyond else self.values.get(tensor, [])

        return set(reach(tensors, sources))

    def made_by(self, tensors: Iterable[str], is_kind: Callable[[onnx.NodeProto], bool]) -> bool:
        """Return True if an operator of a kind makes one of the tensors."""
        return any(tensor in self.makers and is_kind(self.makers[tensor]) for tensor in tensors)


def duration_outputs(model: onnx.ModelProto, ends: Collection[str] = frozenset()) -> frozenset[str]:
    """Return the outputs of operators that decide durations and nothing else of the sound.

    An encoder that durations and sound are both predicted from is not among them. A graph without
    predicted lengths, such as a vocoder, has none.

    Args:
        model: The graph.
        ends: Outputs of the graph that are durations, used outside the graph.
    """
    flow = _Flow.of(model.graph)
    lengths, regulated = _find_lengths(flow, ends)
    # A graph may also return what it predicted; that is not sound.
    outputs = [value.name for value in model.graph.output if value.name not in ends]
    sounds = [name for name in outputs if ends or not regulated.isdisjoint(flow.behind([name]))]
    audible = reach(sounds, lambda tensor: flow.sound.get(tensor, ()))
    return frozenset(lengths & flow.makers.keys() - set(audible))


def length_outputs(model: onnx.ModelProto, ends: Collection[str] = frozenset()) -> frozenset[str]:
    """Return the outputs of all operators that durations depend on, whatever else they decide."""
    flow = _Flow.of(model.graph)
    return frozenset(_find_lengths(flow, ends)[0] & flow.makers.keys())


def rounded_durations(
    model: onnx.ModelProto, ends: Collection[str] = frozenset()
) -> list[onnx.NodeProto]:
    """Return the operators of a graph that make predicted durations whole, in its order."""
    deciding = duration_outputs(model, ends)
    rounding = (node for node in model.graph.node if node.op_type in _ROUNDING)
    return [node for node in rounding if deciding.intersection(node.input)]


def _find_lengths(flow: _Flow, ends: Collection[str]) -> tuple[set[str], set[str]]:
    """Return the tensors that predicted lengths depend on, and those made to such a length."""
    lengths: set[str] = set()
    regulated: set[str] = set()
    for node, tensors in [*flow.regulators, *_sums_of_durations(flow)]:
        before = flow.behind(tensors)
        if flow.made_by(before, _is_layer):
            lengths |= before
            regulated.update(node.output)
    return lengths | flow.behind(ends), regulated


def _sums_of_durations(flow: _Flow) -> list[tuple[onnx.NodeProto, list[str]]]:
    """Return cumulative sums of whole numbers that were rounded: where each sound begins."""
    sums = {id(node): node for node in flow.makers.values() if node.op_type == "CumSum"}
    return [
        (node, node.input[:1])
        for node in sums.values()
        if flow.made_by(flow.behind(node.input[:1], near=True), _is_rounding)
    ]


def _is_layer(node: onnx.NodeProto) -> bool:
    """Return True for an operator that predicts; other lengths are the caller's."""
    return node.op_type in LAYERS


def _is_rounding(node: onnx.NodeProto) -> bool:
    if node.op_type == "Cast":
        return attribute(node, "to", 0) in _WHOLE
    return node.op_type in _ROUNDING


_LAYERS = LAYERS.intersection(CONVERTIBLE)


def phase_outputs(graph: Graph) -> frozenset[str]:
    """Return the tensors that phases are computed from, back to the layers that predict them.

    For angles, the outputs of these layers are included.
    """
    makers = {name: node for node in graph.nodes for name in node.output if name}
    layers = {name for name, node in makers.items() if node.op_type in _LAYERS}
    sums = {name for name, node in makers.items() if node.op_type == "CumSum"}

    def sources(tensor: str) -> list[str]:
        return [] if tensor in layers else [name for name in makers[tensor].input if name in makers]

    phases: set[str] = set()
    for node in graph.nodes:
        if node.op_type not in {"Sin", "Cos", "Atan"} or node.input[0] not in makers:
            continue
        computed = set(reach(node.input[:1], sources))
        if node.op_type != "Atan":
            phases |= set() if sums.isdisjoint(computed - layers) else computed - layers
        elif makers[node.input[0]].op_type == "Div":
            phases |= computed
    return frozenset(phases)


_SPECTRAL = PASSING | {
    *("Abs", "Add", "Cast", "Concat", "Div", "Einsum", "Mul", "Neg", "Pow", "Sqrt", "Sub", "Sum"),
    *("ReduceL1", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"),
    *LAYERS.difference(RECURRENT),
}
"""Operators of spectra: linear ones, and those that make magnitudes of them."""

_FLOORS = frozenset({"Max", "Min", "Relu", "Where"})
"""Operators that keep values apart from zero before their logarithm; elsewhere, activations."""

_PRODUCTS = LAYERS | {"Div", "Einsum", "Mul"}


def logarithm_outputs(graph: Graph) -> frozenset[str]:
    """Return the tensors that logarithms are taken of, back through all layers of a spectrum.

    Activations, exponentials as of a softplus, normalisation, and products of two computed tensors
    such as gates end it.
    """
    makers = {name: node for node in graph.nodes for name in node.output if name}

    def sources(tensor: str, through: Collection[str]) -> list[str]:
        node = makers[tensor]
        inputs = node.input[:1] if node.op_type in PASSING else node.input
        computed = list(dict.fromkeys(name for name in inputs if name in makers))
        is_linear = node.op_type not in _PRODUCTS or len(computed) == 1
        return computed if node.op_type in through and is_linear else []

    def near(tensor: str) -> list[str]:
        is_layer = makers[tensor].op_type in LAYERS
        return [] if is_layer else sources(tensor, _SPECTRAL | _FLOORS)

    logarithms = (node.input[0] for node in graph.nodes if node.op_type == "Log")
    argued = reach((name for name in logarithms if name in makers), near)
    return frozenset(argued).union(reach(argued, lambda tensor: sources(tensor, _SPECTRAL)))
