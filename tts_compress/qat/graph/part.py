"""The part of an ONNX graph between given tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import sort_nodes, tensors_read
from tts_compress.onnx.modules import initializer_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

__all__ = ["GraphPart", "cut_graph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPart:
    """Everything that outputs are computed by from inputs, and nothing more."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    """In an order in which they can be computed."""

    constants: tuple[onnx.TensorProto, ...]
    """The initializers that they read."""

    shared: frozenset[str]
    """Those of them that other operators of the graph read, too."""

    opset: int
    """Version of the standard operators."""


def cut_graph(
    model: onnx.ModelProto,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> GraphPart:
    """Return the part of a graph between given tensors.

    Args:
        model: It is not changed.
        inputs: Tensors that the part is given; where none are named, the inputs of the graph that
            its outputs hang on.
        outputs: Tensors that it makes; all outputs of the graph where none are named.

    Raises:
        QuantizationError: No operator makes an output, it hangs on an input of the graph that is
            not among the given ones, or it does not hang on one of those that are.
    """
    stored = initializer_names(model.graph)
    free = [value.name for value in model.graph.input if value.name not in stored]
    given = tuple(free if inputs is None else inputs)
    wanted = tuple([v.name for v in model.graph.output] if outputs is None else outputs)
    makers = {tensor: node for node in model.graph.node for tensor in node.output if tensor}
    found: dict[int, onnx.NodeProto] = {}
    read: set[str] = set()
    waiting = list(wanted)
    while waiting:
        tensor = waiting.pop()
        if tensor in read:
            continue
        read.add(tensor)
        node = makers.get(tensor)
        if tensor in given or tensor in stored or node is None:
            continue
        found[id(node)] = node
        waiting += tensors_read(node)
    others = (node for node in model.graph.node if id(node) not in found)
    if inputs is None:
        given = tuple(name for name in given if name in read)
    _check(read, given=given, made=makers.keys() | stored, free=free)
    return GraphPart(
        inputs=given,
        outputs=wanted,
        nodes=tuple(sort_nodes([node for node in model.graph.node if id(node) in found])),
        constants=tuple(t for t in model.graph.initializer if t.name in read - set(given)),
        shared=frozenset().union(*map(tensors_read, others)) & stored & read,
        opset=next((o.version for o in model.opset_import if o.domain in {"", "ai.onnx"}), 1),
    )


def _check(read: set[str], *, given: tuple[str, ...], made: set[str], free: list[str]) -> None:
    if missing := sorted(tensor for tensor in read - made - set(given) if tensor in free):
        raise QuantizationError(
            f"that part of the graph also hangs on its inputs {', '.join(missing)}; "
            "name them, or tensors behind them, among the part's inputs"
        )
    if unknown := sorted(read - made - set(given)):
        raise QuantizationError(f"nothing in the graph makes {', '.join(unknown)}")
    if idle := sorted(set(given) - read):
        raise QuantizationError(
            f"the outputs of that part do not hang on {', '.join(idle)}; leave it out"
        )
