"""An editable graph: producers and readers of tensors, and constants."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, inliner, numpy_helper, shape_inference

from tts_compress.errors import ModelError, first_line
from tts_compress.onnx.nodes import (
    STANDARD_DOMAINS,
    ancestors,
    bodies,
    rename_read,
    sort_nodes,
    tensors_read,
)

Array: TypeAlias = NDArray[Any]
Pattern: TypeAlias = str | tuple[Any, ...]
T = TypeVar("T")


CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators, part of every build of it."""

_REAL_CONTRIB = frozenset(
    {"BiasGelu", "FastGelu", "FusedMatMul", "Gelu", "QuickGelu", "SkipLayerNormalization"}
)
"""Those that return real numbers and that its optimizer puts into files."""

_LARGEST_SHAPE = 4096
"""Bytes up to which a constant may be a shape."""


class Graph:
    """A model under editing, indexed by tensor name.

    The model itself is changed. Nodes may be added in any order: `finish` sorts them and drops
    those whose results nobody reads.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self._read()
        self.types = element_types(model.graph)
        """Recorded element types of the original's tensors."""

    def _read(self) -> None:
        graph = self.model.graph
        self.nodes: list[onnx.NodeProto] = list(graph.node)
        self.outputs = [output.name for output in graph.output]
        self.inputs = {value.name: value for value in graph.input}
        # The caller may give another value to an input that has one.
        fixed = (t for t in graph.initializer if t.name not in self.inputs)
        self.initializers: dict[str, onnx.TensorProto] = {t.name: t for t in fixed}
        self._shared: dict[str, str] = {}
        self._removed: set[int] = set()
        self._producer: dict[str, onnx.NodeProto] = {}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            self._index(node)
        self._taken = {*self.initializers, *self.inputs, *self._producer}

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """Return the node that makes a tensor; None for inputs and initializers."""
        return self._producer.get(tensor)

    def readers(self, tensor: str) -> list[onnx.NodeProto]:
        """Return the nodes that read a tensor, each once."""
        return list(self._readers.get(tensor, ()))

    def only_reader(self, tensor: str) -> onnx.NodeProto | None:
        """Return the single node that reads a tensor; None where it has more, or is an output."""
        readers = self.readers(tensor)
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None

    def constant(self, tensor: str) -> Array | None:
        """Return the value of an initializer or of a `Constant` node; None if it is neither."""
        if tensor in self.initializers:
            return numpy_helper.to_array(self.initializers[tensor])
        node = self._producer.get(tensor)
        if node is not None and node.op_type == "Constant" and node.attribute[0].name == "value":
            return numpy_helper.to_array(node.attribute[0].t)
        if node is not None and node.op_type == "Identity":
            return self.constant(node.input[0])
        return None

    def value(self, tensor: str) -> Array:
        """Return the value of a tensor that is known to be constant."""
        value = self.constant(tensor)
        assert value is not None, tensor
        return value

    def scalar(self, tensor: str) -> float | None:
        """Return the value of a constant with one element; None if it is anything else."""
        value = self.constant(tensor)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def by_channel(self, tensor: str) -> Array | None:
        """Return an FP32 constant (1, C, 1) or (C, 1) as (C,), or None for anything else."""
        value = self.constant(tensor)
        if value is None or value.ndim not in {2, 3} or value.size != value.shape[-2]:
            return None
        return value.reshape(-1) if value.dtype == np.float32 else None

    def add_constant(self, name: str, value: Array) -> str:
        """Store an initializer and return its name, made unique."""
        name = self.fresh(name)
        self._store(name, value)
        return name

    def add_bounds(self, name: str, *values: int) -> list[str]:
        """Store numbers as a `Slice` reads them, each a vector of one; return their names."""
        return [self.add_constant(name, np.array([value], np.int64)) for value in values]

    def share_constant(self, name: str, value: Array | onnx.TensorProto) -> str:
        """Store an initializer unless this was done before; return its name, made unique."""
        if name not in self._shared:
            self._shared[name] = self.fresh(name)
            self._store(self._shared[name], value)
        return self._shared[name]

    def add_constants(self, stem: str, **values: Array) -> list[str]:
        """Store initializers named after a stem; return their names, made unique."""
        return [self.add_constant(f"{stem}.{name}", value) for name, value in values.items()]

    def share_constants(self, stem: str, **values: Array) -> list[str]:
        """Store initializers named after a stem unless this was done before; return their names."""
        return [self.share_constant(f"{stem}.{name}", value) for name, value in values.items()]

    def insert(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Append a node with one output, under a name that no original node has; return it."""
        # An original operator may bear the output's own name, and names have to be unique.
        return self.add(op, inputs, [output], f"{output}/{op}", **attributes)

    def add(
        self, op: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attrs: Any
    ) -> str:
        """Append a node and return its first output; `domain` is an attribute among the others."""
        node = helper.make_node(op, list(inputs), list(outputs), name or outputs[0], **attrs)
        self.nodes.append(node)
        self._index(node)
        self._taken.update(outputs)
        return outputs[0]

    def make(self, op: str, inputs: Sequence[str], stem: str, name: str = "", **attrs: Any) -> str:
        """Append a node and return its output, named after a stem and made unique."""
        return self.add(op, inputs, [self.fresh(stem)], name, **attrs)

    def remove(self, node: onnx.NodeProto) -> None:
        """Take a node out; other nodes must make its outputs before `finish`."""
        self._removed.add(id(node))
        for tensor in node.output:
            if self._producer.get(tensor) is node:
                del self._producer[tensor]
        for tensor in {*node.input, *tensors_read(node)}:
            self._readers[tensor] = [r for r in self._readers[tensor] if r is not node]

    def redirect(self, old: str, new: str, readers: Sequence[onnx.NodeProto] | None = None) -> None:
        """Let every reader of a tensor, or some of them, read another one instead.

        A graph output keeps its name: the producer of `new` then has to write `old` instead.
        """
        for node in self.readers(old) if readers is None else readers:
            rename_read(node, {old: new})
            if new in tensors_read(node):
                self._reindex(node, old, new)

    def bypass(self, node: onnx.NodeProto, tensor: str | None) -> bool:
        """Remove a node, whose readers read a tensor instead; False for None, and for an output."""
        if tensor is None or node.output[0] in self.outputs:
            return False
        self.remove(node)
        self.redirect(node.output[0], tensor)
        return True

    def replace_input(self, node: onnx.NodeProto, position: int, tensor: str) -> None:
        """Let one node read another tensor at one place."""
        old = node.input[position]
        node.input[position] = tensor
        self._reindex(node, old, tensor)

    def match(
        self, tensor: str, pattern: Pattern, through: Collection[str] = ()
    ) -> dict[str, str] | None:
        """Return the tensors that a pattern names, or None where a tensor is made otherwise.

        Args:
            tensor: The tensor.
            pattern: An operator and the patterns of its first inputs, in any order for `Add`, `Mul`
                and `Max`; or a name, which stands for one tensor wherever it occurs.
            through: Operators that are skipped, along their first inputs, where another is
                expected.
        """
        return next(iter(self.matches(tensor, pattern, through)), None)

    def matches(
        self,
        tensor: str,
        pattern: Pattern,
        through: Collection[str] = (),
        named: Mapping[str, str] = MappingProxyType({}),
    ) -> list[dict[str, str]]:
        """Return the tensors that a pattern names, in each order of operands that fits.

        Args:
            tensor: As for `match`, like the next two.
            pattern: An operator or a name.
            through: Operators that are skipped.
            named: Tensors that names stand for already.
        """
        if isinstance(pattern, str):
            return [{**named, pattern: tensor}] if named.get(pattern, tensor) == tensor else []
        node, (operator, *parts) = self.producer(tensor), pattern
        while node is not None and node.op_type in through:
            node = self.producer(node.input[0])
        if node is None or node.op_type != operator or len(node.input) < len(parts):
            return []
        inputs, several = list(node.input)[: len(parts)], list[dict[str, str]]()
        for order in (inputs, inputs[::-1])[: 1 + (operator in {"Add", "Mul", "Max"})]:
            fitting = [dict(named)]
            for source, part in zip(order, parts, strict=True):
                fitting = [m for n in fitting for m in self.matches(source, part, through, n)]
            several += fitting
        return several

    def rename_output(self, node: onnx.NodeProto, position: int, tensor: str) -> None:
        """Let a node write another tensor; the readers of the old one stay."""
        del self._producer[node.output[position]]
        node.output[position] = tensor
        self._producer[tensor] = node
        self._taken.add(tensor)

    def fresh(self, name: str) -> str:
        """Return a tensor name nobody uses yet, and reserve it."""
        unique, number = name, 1
        while unique in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique)
        return unique

    def require_opset(self, domain: str, version: int) -> None:
        """Declare that the graph uses an operator domain."""
        for opset in self.model.opset_import:
            if opset.domain == domain:
                opset.version = max(opset.version, version)
                return
        self.model.opset_import.append(helper.make_opsetid(domain, version))

    def opset(self) -> int:
        """Return the version of the standard operators."""
        return standard_opset(self.model)

    def sweep(self) -> None:
        """Take out nodes that no graph output depends on: they no longer count as readers."""
        makers = {name: node for node in self._present() for name in node.output}
        live = {id(node) for node in ancestors(makers, self.outputs)}
        for node in self._present():
            if id(node) not in live:
                self.remove(node)
        self.nodes = self._present()
        self._removed.clear()  # nobody holds them any more: their ids may be given again

    def finish(self) -> onnx.ModelProto:
        """Return the model: nodes sorted, unread nodes and initializers dropped.

        Editing may go on afterwards.
        """
        self.sweep()
        ordered = sort_nodes(self.nodes)
        read = set[str]().union(self.inputs, self.outputs, *map(tensors_read, ordered))
        graph = self.model.graph
        del graph.node[:], graph.value_info[:]
        graph.node.extend(ordered)
        # Weights stay where they are: a message frees the memory of its parts only as a whole.
        stored = [tensor.name for tensor in graph.initializer]
        for position in reversed(range(len(stored))):
            if stored[position] not in read:
                del graph.initializer[position]
        new = self.initializers.keys() - set(stored)
        graph.initializer.extend(
            tensor for name, tensor in self.initializers.items() if name in new and name in read
        )
        self._read()
        return self.model

    def infer_types(self) -> None:
        """Finish the model and record the type and shape of every tensor that can be inferred."""
        infer_types(self.finish(), self.types)
        self.types = element_types(self.model.graph)

    def _store(self, name: str, value: Array | onnx.TensorProto) -> None:
        if isinstance(value, onnx.TensorProto):  # its type may be one that numpy lacks
            value.name = name
            self.initializers[name] = value
        else:
            flat = np.ascontiguousarray(value).reshape(value.shape)
            self.initializers[name] = numpy_helper.from_array(flat, name)

    def _index(self, node: onnx.NodeProto) -> None:
        for tensor in node.output:
            self._producer[tensor] = node
        # Sorted, because a set's order differs from run to run.
        for tensor in dict.fromkeys([*node.input, *sorted(tensors_read(node))]):
            self._readers.setdefault(tensor, []).append(node)

    def _reindex(self, node: onnx.NodeProto, old: str, new: str) -> None:
        """Record that a node reads another tensor, and perhaps no longer the old one."""
        if old not in node.input and old not in tensors_read(node):
            self._readers[old] = [reader for reader in self._readers[old] if reader is not node]
        readers = self._readers.setdefault(new, [])
        if all(reader is not node for reader in readers):
            readers.append(node)

    def _present(self) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if id(node) not in self._removed]


def copy_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a deep copy."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def infer_types(model: onnx.ModelProto, types: Mapping[str, int] | None = None) -> None:
    """Record the element type and shape of every tensor that can be inferred, or types tell."""
    typed, types = element_types(model.graph), types or {}
    for node in model.graph.node:
        # onnx knows the standard operators alone, and infers nothing behind any other one.
        is_real = node.domain == CONTRIB and node.op_type in _REAL_CONTRIB
        for output in filter(None, node.output):
            kind = types.get(output) or (onnx.TensorProto.FLOAT if is_real else 0)
            if kind and output not in typed:
                info = helper.make_tensor_value_info(output, kind, None)
                model.graph.value_info.append(info)
    inferred = shape_inference.infer_shapes(_without_weights(model)).graph
    for field in ("value_info", "output"):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(getattr(inferred, field))


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose large weights are inputs: onnx would write and read all their bytes.

    Small ones may be shapes, which decide other shapes.
    """
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = model.graph.name
    for field in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _LARGEST_SHAPE:
            light.graph.initializer.append(tensor)
        else:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            light.graph.input.append(value)
    return light


def element_types(graph: onnx.GraphProto) -> dict[str, int]:
    """Return the recorded element types of the tensors of a graph, 0 where there is none."""
    values = (*graph.value_info, *graph.input, *graph.output)
    types: dict[str, int] = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}


def with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """Let a graph return other tensors, without the nodes that these do not need; return it."""
    kept = {value.name: value for value in model.graph.output}
    values = [kept.get(name) or helper.make_empty_tensor_value_info(name) for name in names]
    del model.graph.output[:]
    model.graph.output.extend(values)
    return Graph(model).finish()


def standard_opset(model: onnx.ModelProto) -> int:
    """Return the version of the standard operators that a model uses."""
    return next((o.version for o in model.opset_import if o.domain in STANDARD_DOMAINS), 1)


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the operators of its own functions in the place of calls."""
    try:
        return inliner.inline_local_functions(model)
    # onnx raises errors of its own, which share no base class but this one.
    except Exception as error:
        raise ModelError(
            f"the graph's functions cannot be expanded: {first_line(error)}; export it again"
        ) from error


_MOVES = frozenset(
    {"Dropout", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that onnxruntime takes a `DequantizeLinear` past."""


def fence_bodies(graph: Graph) -> int:
    """Have branches and loop bodies read a copy of dequantized codes that were moved.

    Where they read the moved codes themselves, onnxruntime (1.31.1, QDQPropagationTransformer) ends
    the process: it looks for the tensor among the inputs of the operator that has the body.

    Returns:
        The number of copies.
    """
    copies = 0
    for node in [node for node in graph.nodes if bodies(node)]:
        for tensor in sorted(tensors_read(node).difference(node.input)):
            maker = graph.producer(tensor)
            while maker is not None and maker.op_type in _MOVES:
                maker = graph.producer(maker.input[0])
            if maker is None or maker.op_type != "DequantizeLinear":
                continue
            if graph.constant(maker.input[0]) is None:
                graph.redirect(tensor, graph.make("Max", [tensor], f"{tensor}.copy"), [node])
                copies += 1
    return copies
