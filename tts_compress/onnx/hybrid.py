"""A graph that has one component of its compressed form, and all others as they were."""

from collections.abc import Mapping

import onnx
from onnx import helper

from tts_compress.errors import ModelError
from tts_compress.onnx.graph import Graph, copy_model, rename_read, tensors_read
from tts_compress.onnx.modules import WeightFinder, module_of
from tts_compress.onnx.quantize.static import ROUNDED

_PREFIX = "compressed/"
"""Put before the names of what comes from the compressed graph."""


class _Part:
    """One of the two graphs, and what is taken from it.

    Args:
        model: The graph; not modified.
        prefix: Put before the names of its tensors and operators.
    """

    def __init__(self, model: onnx.ModelProto, prefix: str) -> None:
        self.graph = Graph(model)
        self.prefix = prefix
        self.taken: dict[str, onnx.NodeProto] = {}
        """Copies of operators by their first output."""

        self.constants: dict[str, onnx.TensorProto] = {}

    def holds(self, tensor: str) -> bool:
        """Return True for what the graph computes or stores, not for an input."""
        return self.graph.producer(tensor) is not None or tensor in self.graph.initializers

    def named(self, tensor: str) -> str:
        """Return the name that a tensor of this graph has in the result."""
        return f"{self.prefix}{tensor}" if tensor and self.holds(tensor) else tensor

    def has_strays(self, component: str, *, inside: bool) -> bool:
        """Return True if other weights were taken than those of a component, or of all others."""
        weights = WeightFinder(self.graph.model.graph)
        return any(
            (node.output[0] in self.taken) != ((self.component(node) == component) == inside)
            for node in self.graph.nodes
            if weights.find(node) is not None
        )

    def component(self, node: onnx.NodeProto) -> str:
        """Return the component of an operator; empty where it is unknown."""
        return module_of(node, self.graph.initializers.keys()).split(".")[0]


def with_component(
    original: onnx.ModelProto, compressed: onnx.ModelProto, component: str
) -> onnx.ModelProto:
    """Return the original graph with one component of the compressed one.

    Tensors that both compute under one name are equal but for rounding; there the result goes from
    one graph to the other. Operators of no component hold no weights and are the original's.

    Args:
        original: The FP32 graph in the form that was compressed: prepared, and rewritten if that
            one was.
        compressed: What became of it.
        component: The first part of the names of the component's modules.

    Raises:
        ModelError: The graphs share too few tensors to part the component from its neighbours.
    """
    parts = (_Part(original, ""), _Part(compressed, _PREFIX))
    base, donor = parts

    def source(tensor: str, reader: _Part) -> tuple[_Part, str]:
        producer = base.graph.producer(tensor)
        if producer is None or donor.graph.producer(tensor) is None:
            return reader, tensor
        # One draw of noise serves both.
        is_random = producer.op_type.startswith("Random")
        if base.component(producer) != component or is_random:
            return base, tensor
        rounded = f"{tensor}{ROUNDED}"
        return donor, rounded if reader is base and donor.holds(rounded) else tensor

    wanted = [source(name, base) for name in base.graph.outputs]
    made = [part.named(tensor) for part, tensor in wanted]
    results = list(zip(made, base.graph.outputs, strict=True))
    while wanted:
        part, tensor = wanted.pop()
        if tensor in part.graph.initializers:
            part.constants[tensor] = part.graph.initializers[tensor]
        node = part.graph.producer(tensor)
        if node is None or node.output[0] in part.taken:
            continue
        sources = {read: source(read, part) for read in tensors_read(node)}
        wanted += sources.values()
        names = {read: found.named(name) for read, (found, name) in sources.items()}
        part.taken[node.output[0]] = _renamed(node, names, part)
    if base.has_strays(component, inside=False) or donor.has_strays(component, inside=True):
        raise ModelError(
            f"component '{component}' cannot be parted from its neighbours in the compressed graph"
        )
    return _assembled(parts, [pair for pair in results if pair[0] != pair[1]])


def _renamed(node: onnx.NodeProto, names: Mapping[str, str], part: _Part) -> onnx.NodeProto:
    """Return a copy of an operator that reads tensors by other names, also in its branches."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = f"{part.prefix}{node.name}"
    copy.output[:] = [part.named(tensor) for tensor in node.output]
    rename_read(copy, names)
    return copy


def _assembled(
    parts: tuple[_Part, _Part], renamed_outputs: list[tuple[str, str]]
) -> onnx.ModelProto:
    """Return the model of what was taken from both graphs."""
    base, donor = parts
    made = copy_model(base.graph.model)
    versions: dict[str, int] = {}
    for opset in (*made.opset_import, *donor.graph.model.opset_import):
        versions[opset.domain] = max(opset.version, versions.get(opset.domain, 0))
    del made.opset_import[:], made.graph.node[:], made.graph.initializer[:]
    made.opset_import.extend(helper.make_opsetid(*pair) for pair in versions.items())
    made.ir_version = max(made.ir_version, donor.graph.model.ir_version)
    known = {(function.domain, function.name) for function in made.functions}
    made.functions.extend(f for f in donor.graph.model.functions if (f.domain, f.name) not in known)
    for part in parts:
        for name, tensor in part.constants.items():
            stored = made.graph.initializer.add()
            stored.CopyFrom(tensor)
            stored.name = part.named(name)
        # In the order of their graph: noise is numbered by it.
        copies = (part.taken.get(node.output[0]) for node in part.graph.nodes)
        made.graph.node.extend(copy for copy in copies if copy is not None)
    made.graph.node.extend(
        helper.make_node("Identity", [inner], [outer], outer) for inner, outer in renamed_outputs
    )
    return Graph(made).finish()
