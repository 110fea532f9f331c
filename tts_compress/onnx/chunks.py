"""The last stages of a graph in a loop over chunks of time, so that memory grows little with it.

The tensors of the last stages have a value for each sample and channel, and a runtime holds six
or more of them at once: most of what a voice takes while it speaks. A `Loop` within the graph
computes them chunk by chunk, each with the steps around it that its samples depend on, as
`tts_compress.onnx.stages` does outside; at the ends of the utterance operators pad as in the whole.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import (
    Graph,
    copy_model,
    element_types,
    fence_bodies,
    standard_opset,
)
from tts_compress.onnx.nodes import ancestors, rename_read, set_nodes, tensors_read
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.receptive import Context, Field, observe_shapes, walk
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.stages import arithmetic, least_steps, packet_steps, widest

_NAME = "tts_compress.chunks"
"""Name of the loop, and what the names of all that belongs to it begin with."""

_AGAIN = 1 / 32
"""Most arithmetic that is done twice, as a share of the whole graph's."""

_FEWEST, _MOST = 1 << 17, 1 << 20
"""Values of a chunk's largest tensor, at least and at most: half a megabyte to four."""

_LONG = 1 << 18
"""Samples of the speech for which memory is weighed, 12 s at 22.05 kHz."""

_WORTH = 1 << 21
"""Fewest values that have to be saved, of those that are held at once: 8 MB."""

_COPIED = 1 << 10
"""Most values of a weight that lies in the loop and outside, where both read it."""

_OPSET = 13
"""First version whose `Unsqueeze` takes axes as an input."""

_BEFORE = (
    ("Unsqueeze", "turn zero", "number"),
    ("Mul", "number steps", "start"),
    ("Add", "start steps", "stop"),
    ("Sub", "start before", "early"),
    ("Min", "early tail", "earliest"),
    ("Max", "earliest zero", "begin"),
    ("Add", "stop after", "end"),
    ("Slice", "whole begin end axis", "chunk"),
)
_BEHIND = (
    ("Sub", "start begin", "again"),
    ("Mul", "again hop", "dropped"),
    ("Sub", "stop begin", "until"),
    ("Mul", "until hop", "kept"),
    ("Less", "stop size", "goes_on"),
    ("Where", "goes_on kept all", "last"),
    ("Slice", "sound dropped last to", "piece"),
    ("Identity", "on", "still_on"),
)
_AROUND = (
    ("Shape", "whole", "shape"),
    ("Gather", "shape axis", "size"),
    ("Sub", "size least", "tail"),
    ("Add", "size steps", "further"),
    ("Sub", "further one", "covered"),
    ("Div", "covered steps", "turns"),
    ("Squeeze", "turns zero", "count"),
)
"""Operators, their inputs and their output: in a turn before and behind the stages, and once."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """The operators behind a cut, as they are computed in chunks."""

    cut: int
    context: Context
    steps: int
    """Steps of the cut that a chunk has, without those around it."""

    memory: float
    """The most values that are held at once in speech of `_LONG` samples."""


def in_chunks(
    model: onnx.ModelProto, calls: Sequence[Feeds], output: str, spec: str
) -> onnx.ModelProto:
    """Return a graph that makes its sound in chunks; the same graph where that saves little.

    Args:
        model: The graph, for one utterance at a time; not changed.
        calls: Inputs of two calls of different lengths, with fed noise.
        output: The output that is sound.
        spec: Its name in messages.
    """
    if standard_opset(model) < _OPSET or output not in {v.name for v in model.graph.output}:
        return model
    fed = feed_noise(model)  # durations that were drawn would differ from run to run
    names = {value.name for value in fed.graph.input}
    inputs = [{n: array for n, array in call.items() if n in names} for call in calls]
    field = walk(Graph(copy_model(model)), observe_shapes(fed, inputs, spec), [output])
    tail = _choose(field, output)
    if tail is None:
        return model
    graph = Graph(_looped(model, field, tail, output))
    return graph.finish() if fence_bodies(graph) else graph.model


def joined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph of `in_chunks` as it was before, and any other as it is."""
    loops = (node for node in model.graph.node if node.op_type == "Loop" and node.output)
    loop = next((node for node in loops if node.name == _NAME), None)
    body = next((a.g for a in loop.attribute if a.HasField("g")), None) if loop else None
    slices = (n for n in (body.node if body else []) if n.op_type == "Slice" and n.input)
    chunk = next((node for node in slices if [*node.output] == [_named("chunk")]), None)
    if loop is None or body is None or chunk is None:
        return model
    names = {_named("chunk"): chunk.input[0]}
    names |= {t.name: _plain(t.name) for t in body.initializer if t.name != _plain(t.name)}
    nodes = []
    for node in model.graph.node:
        inner = body.node if node is loop else [node]
        nodes += [copy for copy in map(_copy, inner) if not copy.name.startswith(_NAME)]
    for node in nodes:
        rename_read(node, names)
        node.output[:] = [loop.output[0] if n == _named("sound") else n for n in node.output]
    plain = copy_model(model)
    set_nodes(plain.graph, nodes)
    weights = [t for t in model.graph.initializer if not t.name.startswith(_NAME)]
    weights += [tensor for tensor in body.initializer if tensor.name not in names]
    del plain.graph.initializer[:]
    plain.graph.initializer.extend(weights)
    return plain


def _choose(field: Field, output: str) -> _Tail | None:
    """Return the tail with which the least memory is taken; None where none saves enough."""
    sizes = _sizes(field, output)
    costs = {id(node): arithmetic(field, node) for node in field.graph.nodes}
    tails = []
    for cut, context in field.contexts(0).items():
        steps = _steps(field, cut, context, costs)
        if steps is not None and _is_apart(field, cut, output):
            memory = _memory(field, cut, steps, context, sizes)
            tails.append(_Tail(cut, context, steps, memory))
    most = _peak(field.graph.nodes, sizes, {output}) - _WORTH
    worth = (tail for tail in tails if tail.memory <= most)
    for tail in sorted(worth, key=lambda tail: tail.memory):
        context = field.margins(tail.cut, 0)
        steps = _steps(field, tail.cut, context, costs)
        if steps is None:  # with its margins a chunk is too long
            continue
        # Chunks begin and end where the packets of operators do.
        multiple = packet_steps(field, tail.cut, 0)
        before, after, steps = (
            multiple * ceil(count / multiple) for count in (-context.first, context.last, steps)
        )
        context = context._replace(first=-before, last=after)
        return replace(tail, context=context, steps=steps)
    return None


def _steps(field: Field, cut: int, context: Context, costs: Mapping[int, float]) -> int | None:
    """Return the steps of chunks behind a cut; None where they would have to be too long."""
    inner = sum(costs[id(node)] for node in field.between(cut, 0))
    again = inner / (_AGAIN * sum(costs.values()))
    wide, around = max(1, widest(field, cut, 0)), context.last - context.first
    steps = max(ceil(again * around), least_steps(field, cut, 0), ceil(_FEWEST / wide))
    return steps if steps * wide <= _MOST else None


def _memory(
    field: Field, cut: int, steps: int, context: Context, sizes: Mapping[str, float]
) -> float:
    """Return the most values that are held where what follows a cut runs in chunks."""
    (source,), (output,) = field.cuts[cut][0], field.cuts[0][0]
    ids = {id(node) for node in field.between(cut, 0)}
    outer = [node for node in field.graph.nodes if id(node) not in ids]
    inner = [node for node in field.graph.nodes if id(node) in ids]
    turn = (steps + context.last - context.first) * context.hop / _LONG
    held = sizes[source] + sizes[output] + turn * _peak(inner, sizes, {source})
    return max(held, _peak(outer, sizes, {source}))


def _sizes(field: Field, output: str) -> Mapping[str, float]:
    """Return the values of each tensor whose size grows, in speech of `_LONG` samples."""
    share = _LONG / field.shapes[output][1][field.axis(output) or 0]
    timed = filter(field.is_timed, field.shapes)
    return {name: prod(field.shapes[name][1]) * share for name in timed}


def _peak(
    nodes: Sequence[onnx.NodeProto], sizes: Mapping[str, float], returned: Collection[str]
) -> float:
    """Return the most values that are held at once while operators run in their order."""
    last = {name: number for number, node in enumerate(nodes) for name in node.input}
    held = peak = 0.0
    for number, node in enumerate(nodes):
        held += sum(sizes.get(name, 0.0) for name in node.output)
        peak = max(peak, held)
        over = (n for n in dict.fromkeys([*node.input, *node.output]) if n not in returned)
        held -= sum(sizes.get(name, 0.0) for name in over if last.get(name, number) == number)
    return peak


def _is_apart(field: Field, cut: int, output: str) -> bool:
    """Return True if nothing that follows a cut is read elsewhere, but for constants."""
    inner = _between(field, cut, output)
    ids = {id(node) for node in inner}
    named = {value.name for value in field.graph.model.graph.output} - {output}
    for name in (name for node in inner for name in node.output if node.op_type != "Constant"):
        if name in named or any(id(node) not in ids for node in field.graph.readers(name)):
            return False
    return True


def _between(field: Field, cut: int, output: str) -> list[onnx.NodeProto]:
    """Return the operators from a cut to the sound, those of constants among them, in order."""
    stops = {*field.cuts[cut][0], *field.sides}
    makers = {n: node for node in field.graph.nodes for n in node.output if n not in stops}
    inner = {id(node) for node in ancestors(makers, [output])}
    return [node for node in field.graph.nodes if id(node) in inner]


def _looped(model: onnx.ModelProto, field: Field, tail: _Tail, output: str) -> onnx.ModelProto:
    """Return a graph with a tail in a loop; constants that others read, too, are copied there."""
    graph, (source,) = field.graph, field.cuts[tail.cut][0]
    inner = _between(field, tail.cut, output)
    read = set[str]().union(*map(tensors_read, inner))
    ids = {id(node) for node in inner}
    outer = [node for node in graph.nodes if id(node) not in ids]
    elsewhere = set[str]().union(*map(tensors_read, outer))
    constants = {n.output[0] for n in inner if n.op_type == "Constant"}
    shared = constants & elsewhere
    weights = {name: t for name, t in graph.initializers.items() if name in read}
    moved = [tensor for name, tensor in weights.items() if name not in elsewhere]
    names = {source: _named("chunk")}
    small = {name for name, tensor in weights.items() if prod(tensor.dims) <= _COPIED}
    for name in sorted(shared | (small & elsewhere)):
        # Optimizers take for constant what lies in the loop's body.
        names[name] = f"{_NAME}:{name}"
        moved.append(numpy_helper.from_array(graph.value(name), names[name]))
    stages = [_copy(node) for node in inner if not shared.intersection(node.output)]
    for node in stages:
        rename_read(node, names)
        node.output[:] = [_named("sound") if name == output else name for name in node.output]
    loop = _loop(stages, moved, field, tail, output)
    nodes = [*outer, *(n for n in inner if shared.intersection(n.output))]
    around = _operators(_AROUND, {"whole": source})
    changed = copy_model(model)
    order = {tuple(node.output): number for number, node in enumerate(model.graph.node)}
    nodes.sort(key=lambda node: order[tuple(node.output)])
    set_nodes(changed.graph, [*nodes, *around, loop])
    kept = [t for t in model.graph.initializer if t.name not in {m.name for m in moved}]
    del changed.graph.initializer[:]
    changed.graph.initializer.extend([*kept, *_numbers(field, tail, output)])
    inside = {name for node in inner for name in node.output}
    values = [value for value in model.graph.value_info if value.name not in inside]
    del changed.graph.value_info[:]
    changed.graph.value_info.extend(values)
    return changed


def _loop(
    stages: Sequence[onnx.NodeProto],
    weights: Sequence[onnx.TensorProto],
    field: Field,
    tail: _Tail,
    output: str,
) -> onnx.NodeProto:
    """Return the loop, whose result grows by a piece in each turn."""
    (source,), to = field.cuts[tail.cut][0], field.axis(output) or 0
    grown = helper.make_node(
        "Concat", [_named("said"), _named("piece")], [_named("sum")], _named("sum"), axis=to
    )
    sound = element_types(field.graph.model.graph)[output]
    body = helper.make_graph(
        [*_operators(_BEFORE, {"whole": source}), *stages, *_operators(_BEHIND, {}), grown],
        _NAME,
        [
            helper.make_tensor_value_info(_named("turn"), TensorProto.INT64, []),
            helper.make_tensor_value_info(_named("on"), TensorProto.BOOL, []),
            helper.make_tensor_value_info(_named("said"), sound, None),
        ],
        [
            helper.make_tensor_value_info(_named("still_on"), TensorProto.BOOL, []),
            helper.make_tensor_value_info(_named("sum"), sound, None),
        ],
        initializer=weights,
    )
    inputs = [_named("count"), _named("yes"), _named("nothing")]
    return helper.make_node("Loop", inputs, [output], _NAME, body=body)


def _numbers(field: Field, tail: _Tail, output: str) -> list[onnx.TensorProto]:
    """Return what the operators around the stages read."""
    (source,), to = field.cuts[tail.cut][0], field.axis(output) or 0
    numbers = {
        "steps": tail.steps,
        "before": -tail.context.first,
        "after": tail.context.last,
        "least": least_steps(field, tail.cut, 0),
        "hop": tail.context.hop,
        "axis": field.axis(source) or 0,
        "to": to,
        "zero": 0,
        "one": 1,
        "all": np.iinfo(np.int64).max,
    }
    shape = [0 if axis == to else size for axis, size in enumerate(field.shape(output))]
    sound = element_types(field.graph.model.graph)[output]
    empty = np.zeros(shape, helper.tensor_dtype_to_np_dtype(sound))
    arrays = {name: np.array([number], np.int64) for name, number in numbers.items()}
    arrays |= {"yes": np.array(True), "nothing": empty}
    return [numpy_helper.from_array(array, _named(name)) for name, array in arrays.items()]


def _operators(
    rows: Sequence[tuple[str, str, str]], names: Mapping[str, str]
) -> list[onnx.NodeProto]:
    named = [(op, inputs.split(), _named(output)) for op, inputs, output in rows]
    return [
        helper.make_node(op, [names.get(name) or _named(name) for name in inputs], [output], output)
        for op, inputs, output in named
    ]


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _named(name: str) -> str:
    return f"{_NAME}.{name}"


def _plain(name: str) -> str:
    return name.removeprefix(f"{_NAME}:")
