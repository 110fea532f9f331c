"""Operators of graphs: attributes, branches and loop bodies, what they read, and their order."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar, cast

import onnx
from onnx import helper

from tts_compress.errors import QuantizationError

T = TypeVar("T")


def copy_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as arguments for another one like it."""
    return {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}


def attribute(node: onnx.NodeProto, name: str, default: T) -> T:
    """Return an attribute (a list as a tuple), or the default if it is absent."""
    value: Any = copy_attributes(node).get(name, default)
    if isinstance(value, list):
        return cast("T", tuple(value))
    return cast("T", value.decode() if isinstance(value, bytes) else value)


STANDARD_DOMAINS = frozenset({"", "ai.onnx"})
"""The two names of the domain of the standard operators."""

_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Standard operators that hold graphs."""


def bodies(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return an operator's branches or loop body."""
    # Looking through the attributes of every node takes six times as long.
    if node.op_type not in _WITH_BODIES and node.domain in STANDARD_DOMAINS:
        return []
    # Reading a field that is not there makes an object of it.
    holding = (entry for entry in node.attribute if entry.graphs or entry.HasField("g"))
    graphs = (body for entry in holding for body in (entry.g, *entry.graphs))
    return [body for body in graphs if body.node or body.output]


def nested_graphs(
    graph: onnx.GraphProto, around: tuple[onnx.NodeProto, ...] = ()
) -> Iterator[tuple[onnx.GraphProto, tuple[onnx.NodeProto, ...]]]:
    """Yield a graph and the branches and loop bodies in it, each with the operators around it."""
    yield graph, around
    for node in graph.node:
        for body in bodies(node):
            yield from nested_graphs(body, (*around, node))


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield operators and those in their branches and loop bodies."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from nested_nodes(body.node)


def tensors_read(node: onnx.NodeProto) -> set[str]:
    """Return the tensors an operator reads, also inside its branches and loop bodies."""
    names = {name for name in node.input if name}
    for body in bodies(node):
        inner = {value.name for value in body.output}.union(*map(tensors_read, body.node))
        names |= inner - _own_names(body)
    return names


def rename_read(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Let an operator, and its branches and loop bodies, read tensors by other names."""
    for position, tensor in enumerate(node.input):
        node.input[position] = names.get(tensor, tensor)
    for body in bodies(node):
        hidden = _own_names(body)
        captured = {old: new for old, new in names.items() if old not in hidden}
        for inner in body.node:
            rename_read(inner, captured)
        for value in body.output:
            value.name = captured.get(value.name, value.name)


def _own_names(body: onnx.GraphProto) -> set[str]:
    """Return the names of a branch or loop body; around it they may stand for other tensors."""
    held = (value.name for value in (*body.input, *body.initializer))
    return set(held).union(*(node.output for node in body.node))


def set_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Give a graph other operators; its present ones may be among them."""
    changed = onnx.GraphProto()
    changed.node.extend(nodes)
    del graph.node[:]
    graph.node.extend(changed.node)


def reach(tensors: Iterable[str], sources: Callable[[str], Iterable[str]]) -> list[str]:
    """Return tensors and all tensors they are computed from, given the direct sources of each."""
    reached, waiting = dict[str, None](), list(tensors)
    while waiting:
        tensor = waiting.pop()
        if tensor not in reached:
            reached[tensor] = None
            waiting += sources(tensor)
    return list(reached)


def ancestors(makers: Mapping[str, onnx.NodeProto], tensors: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the operators that tensors are computed by, given the makers of all tensors."""
    reached = reach(tensors, lambda t: tensors_read(makers[t]) if t in makers else ())
    return list({id(makers[t]): makers[t] for t in reached if t in makers}.values())


def sort_nodes(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the operators, each after those whose results it reads, else in their order."""
    producer = {name: index for index, node in enumerate(nodes) for name in node.output}
    sorter = TopologicalSorter(
        {
            i: [producer[n] for n in tensors_read(node) if n in producer]
            for i, node in enumerate(nodes)
        }
    )
    try:
        sorter.prepare()
    except CycleError as error:
        message = "the rewritten graph has a cycle; please report this voice"
        raise QuantizationError(message) from error
    ready, order = list(sorter.get_ready()), list[int]()
    heapq.heapify(ready)
    while ready:
        order.append(heapq.heappop(ready))
        sorter.done(order[-1])
        for index in sorter.get_ready():
            heapq.heappush(ready, index)
    return [nodes[index] for index in order]
