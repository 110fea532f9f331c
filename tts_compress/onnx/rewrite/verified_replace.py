"""Replacement of a subgraph by another form of it, verified by running both.

Exporters write one and the same formula in many ways, in hundreds of operators. Instead of knowing
each of them, a rewrite that knows the formula finds out where the subgraph begins and ends, and
both forms are run on the same inputs. Only where they agree is one replaced by the other.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import Array, Graph, tensors_read

_TOLERANCE = 1e-5
"""Share of the largest value by which results may differ: sums are taken in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subgraph:
    """The nodes between some tensors and one that follows from them and constants alone."""

    inputs: tuple[str, ...]
    output: str
    nodes: tuple[onnx.NodeProto, ...]


@dataclass(slots=True)
class SubgraphBuilder:
    """Nodes that may become part of a graph; their names are reserved there already."""

    graph: Graph
    stem: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node with one output and return the output's name."""
        name = self.graph.fresh(f"{self.stem}/{op}")
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def split(self, tensor: str, *channels: int) -> list[str]:
        """Return parts of a tensor (B, C, ...), of so many channels each."""
        names = [self.graph.fresh(f"{self.stem}/Split") for _ in channels]
        inputs = [tensor, self.integers(*channels)]
        self.nodes.append(helper.make_node("Split", inputs, names, names[0], axis=1))
        return names

    def constant(self, value: Array) -> str:
        """Return the name of a constant with a value; equal ones are one."""
        for name, known in self.constants.items():
            same = known.dtype == value.dtype and known.shape == value.shape
            if same and np.array_equal(known, value):
                return name
        name = self.graph.fresh(f"{self.stem}/constant")
        self.constants[name] = value
        return name

    def real(self, value: float) -> str:
        """Return the name of a constant number, rounded to float32."""
        return self.constant(np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """Return the name of a constant list of integers."""
        return self.constant(np.array(values, np.int64))


def subgraph_between(graph: Graph, inputs: Sequence[str], output: str) -> Subgraph | None:
    """Return the nodes that make a tensor of others; None where it depends on anything else."""
    borders, pending = set(inputs), [output]
    found: dict[int, onnx.NodeProto] = {}
    while pending:
        tensor = pending.pop()
        if not tensor or tensor in borders or graph.constant(tensor) is not None:
            continue
        node = graph.producer(tensor)
        if node is None or "Random" in node.op_type:
            return None
        if id(node) not in found:
            found[id(node)] = node
            pending.extend(tensors_read(node))
    nodes = tuple(node for node in graph.nodes if id(node) in found)
    return Subgraph(inputs=tuple(inputs), output=output, nodes=nodes)


def nodes_since(
    graph: Graph, tensor: str, borders: Collection[str]
) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Return the nodes a tensor is made by since the last operators of some types, and these."""
    nodes: dict[int, onnx.NodeProto] = {}
    sources: dict[int, onnx.NodeProto] = {}
    pending = [tensor]
    while pending:
        node = graph.producer(pending.pop())
        if node is None or id(node) in nodes:
            continue
        if node.op_type in borders:
            sources[id(node)] = node
            continue
        nodes[id(node)] = node
        pending.extend(node.input)
    return list(nodes.values()), list(sources.values())


def verified_replace(
    graph: Graph,
    subgraph: Subgraph,
    builder: SubgraphBuilder,
    result: str,
    trials: Sequence[Mapping[str, Array]],
) -> bool:
    """Replace a subgraph by a builder's result if both agree on every trial.

    Args:
        graph: The graph that both belong to.
        subgraph: The present form.
        builder: The other form, made of the same inputs.
        result: The builder's tensor that is to be the part's output.
        trials: Values of the part's inputs, float32 or int64; they should reach every case the
            formula distinguishes.
    """
    try:
        before = _session(
            graph, subgraph.inputs, subgraph.output, subgraph.nodes, _constants(graph, subgraph)
        )
        after = _session(graph, subgraph.inputs, result, builder.nodes, builder.constants)
        agree = all(_agree(before.run(None, t)[0], after.run(None, t)[0]) for t in trials)
    # onnxruntime's exceptions share no base class but this one: one form cannot be run.
    except Exception:
        return False
    if agree:
        graph.adopt(builder.nodes, builder.constants)
        graph.redirect(subgraph.output, result)
    return agree


def _agree(expected: Array, found: Array) -> bool:
    if expected.shape != found.shape or not np.isfinite(expected).all():
        return False
    largest = np.abs(expected).max(initial=0.0)
    return bool(np.abs(expected - found).max(initial=0.0) <= _TOLERANCE * largest)


def _constants(graph: Graph, subgraph: Subgraph) -> dict[str, Array]:
    read = sorted({tensor for node in subgraph.nodes for tensor in node.input if tensor})
    values = ((tensor, graph.constant(tensor)) for tensor in read)
    return {tensor: value for tensor, value in values if value is not None}


def _session(
    graph: Graph,
    inputs: Sequence[str],
    output: str,
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array],
) -> onnxruntime.InferenceSession:
    """Open some nodes as a graph of their own; inputs are (1, C, T) in FP32."""
    small = helper.make_graph(
        list(nodes),
        "part",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, None, None])
            for name in inputs
        ],
        [helper.make_empty_tensor_value_info(output)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(
        small, opset_imports=list(graph.model.opset_import), ir_version=graph.model.ir_version
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # a form that cannot be run is a result, not an incident
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
