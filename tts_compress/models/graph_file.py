"""ONNX files that nothing trusts: read within bounds, with their weights checked.

Infinities are accepted where they mean something: exporters write masks with -inf, as weights or in
`Constant` nodes. What a layer multiplies has to be finite; NaN is refused everywhere.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError, Message
from onnx import numpy_helper
from onnx.external_data_helper import (
    load_external_data_for_model,
    set_external_data,
    uses_external_data,
)

from tts_compress.errors import ModelError, model_errors, reason
from tts_compress.onnx.modules import LAYERS, OPERATORS, initializer_names
from tts_compress.onnx.nodes import bodies, nested_nodes
from tts_compress.reading import MOST_MODEL_BYTES, check_file, read_bytes

_TYPES = onnx.TensorProto
_FLOATS = {_TYPES.FLOAT, _TYPES.FLOAT16, _TYPES.BFLOAT16, _TYPES.DOUBLE}
_SMALLEST_SHARED = 1024
"""Smaller weights stay in their graph, where shapes are inferred by them."""

_FREE_IR = 4
"""Version of the file format since which weights need not be inputs."""

_MULTIPLYING = {*LAYERS, "QuantizeLinear", "DequantizeLinear"}
"""Operators that multiply the constants they read, or divide by them."""


def read_graph(path: Path) -> onnx.ModelProto:
    """Read an untrusted ONNX file, weights included."""
    model = read_structure(path)
    if not model.graph.node or not model.opset_import:
        raise ModelError(f"'{path}' holds no ONNX graph; is it a voice's .onnx file?")
    if not model.graph.output:
        raise ModelError(f"'{path}' has a graph without outputs, which computes nothing")
    with model_errors(f"'{path}' is not a readable ONNX file"):
        _check_external(path, model)
        load_external_data_for_model(model, str(path.parent))
    problem = weight_problem(model)
    if problem is not None:
        raise ModelError(f"'{path}': {problem}")
    _use_one_name(model)
    _take_weights_from_inputs(model)
    return model


def _use_one_name(model: onnx.ModelProto) -> None:
    """Call the domain of the standard operators by its short name, which has two."""
    imports = (entry for held in (model, *model.functions) for entry in held.opset_import)
    for entry in (*imports, *_all_nodes(model)):
        if entry.domain == "ai.onnx":
            entry.domain = ""


def _take_weights_from_inputs(model: onnx.ModelProto) -> None:
    """Let weights be no inputs, as they had to be before IR version 4 and still may be.

    An input with a value of its own stays where no layer's weight is one: the caller may leave
    such an input out, but weights are listed by exporters, all or none.
    """
    graph = model.graph
    stored = initializer_names(graph)
    listed = stored.intersection(value.name for value in graph.input)
    layers = [node for node in _all_nodes(model) if node.op_type in LAYERS]
    weights = {name for node in layers for name in node.input[OPERATORS[node.op_type].weight :][:1]}
    if model.ir_version < _FREE_IR or listed & weights:
        inputs = [value for value in graph.input if value.name not in stored]
        del graph.input[:]
        graph.input.extend(inputs)
        model.ir_version = max(model.ir_version, _FREE_IR)


def weight_problem(model: onnx.ModelProto) -> str | None:
    """Return what is wrong with a graph's constants, as the end of a message; None if nothing is.

    Constants are looked for in branches, loop bodies and functions, too.
    """
    nodes = _all_nodes(model)
    multiplied = {name for n in nodes if n.op_type in _MULTIPLYING for name in n.input}
    for name, tensor in _constants(model, nodes):
        problem = _problem(tensor, is_multiplied=name in multiplied)
        if problem is not None:
            return f"weight '{name}' {problem}"
    return None


def read_structure(path: Path) -> onnx.ModelProto:
    """Read an ONNX file without the weights that are in other files."""
    try:
        model = onnx.load_model_from_string(read_bytes(path, MOST_MODEL_BYTES))
    except FileNotFoundError as error:
        raise ModelError(f"no file '{path}'") from error
    except (DecodeError, OSError, ValueError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {reason(error)}") from error
    if (name := _wrong_name(model)) is not None:
        raise ModelError(
            f"'{path}' is not a readable ONNX file: it has the name {name[:40]!r}, which is not "
            "UTF-8; export it again"
        )
    return model


def _wrong_name(message: Message) -> bytes | None:
    """Return a name that is not UTF-8, which protocol buffers give as bytes; None without any."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            wrong = next((v for v in _several(value) if isinstance(v, bytes)), None)
        elif field.type == field.TYPE_MESSAGE:
            wrong = next(filter(None, map(_wrong_name, _several(value))), None)
        else:
            continue
        if wrong is not None:
            return wrong
    return None


def _several(value: Any) -> Iterable[Any]:
    """Return the values of a field, which may be a single one."""
    return [value] if isinstance(value, str | bytes | Message) else value


def weight_files(path: Path) -> list[Path]:
    """Return the files beside an ONNX file in which it keeps weights; none of what is no file."""
    if not path.is_file():
        return []
    try:
        model = onnx.load_model_from_string(read_bytes(path, MOST_MODEL_BYTES))
    except DecodeError:
        return []  # not ONNX; copying loses nothing
    except (OSError, ValueError) as error:
        raise ModelError(f"'{path}' is not a readable ONNX file: {reason(error)}") from error
    outside = (t for _, t in _constants(model, _all_nodes(model)) if uses_external_data(t))
    entries = (entry for tensor in outside for entry in tensor.external_data)
    names = dict.fromkeys(entry.value for entry in entries if entry.key == "location")
    return [path.absolute().parent / name for name in names]


class SharedWeights:
    """A file of weights, in which equal ones of several graphs lie once.

    Args:
        path: The file, in the folder of the graphs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored: dict[str, int] = {}
        self._size = 0

    def write(self, model: onnx.ModelProto, path: Path) -> None:
        """Write a graph, whose weights are moved into the file."""
        with self.path.open("ab") as file:
            for tensor in model.graph.initializer:
                content = tensor.raw_data
                if len(content) < _SMALLEST_SHARED:
                    continue
                digest = hashlib.sha256(content).hexdigest()
                if digest not in self._stored:
                    self._stored[digest] = self._size
                    self._size += file.write(content)
                offset = self._stored[digest]
                set_external_data(tensor, self.path.name, offset, len(content))
                tensor.ClearField("raw_data")
        path.write_bytes(model.SerializeToString(deterministic=True))


def shared_weights(graphs: Iterable[Path], folder: Path) -> dict[Path, SharedWeights]:
    """Return new files in a folder for the weights of graphs that keep theirs in one, by graph."""
    files = {graph: weight_files(graph) for graph in graphs}
    counts = Counter(file for several in files.values() for file in several)
    new = {f: SharedWeights(folder / f.name) for f, count in counts.items() if count > 1}
    return {graph: new[f] for graph, several in files.items() for f in several if f in new}


def _all_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for part in (model.graph, *model.functions) for node in nested_nodes(part.node)]


def _constants(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]
) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yield all constants of a model with their names, given its nodes and those within them."""
    yield from ((tensor.name, tensor) for tensor in model.graph.initializer)
    for node in nodes:
        for entry in node.attribute:
            held = [entry.t] if entry.HasField("t") else []
            yield from ((", ".join(node.output), tensor) for tensor in (*held, *entry.tensors))
        for body in bodies(node):
            yield from ((tensor.name, tensor) for tensor in body.initializer)


def _check_external(path: Path, model: onnx.ModelProto) -> None:
    """Refuse files of weights that are no regular ones, or that give more than a model can hold."""
    total = 0
    for _, tensor in _constants(model, _all_nodes(model)):
        stated = {entry.key: entry.value for entry in tensor.external_data}
        if not uses_external_data(tensor) or "location" not in stated:
            continue
        file = path.parent / stated["location"]
        if not file.exists():
            continue  # onnx names it
        check_file(file, MOST_MODEL_BYTES)
        length, offset = (int(stated.get(key) or 0) for key in ("length", "offset"))
        total += length or max(file.stat().st_size - offset, 0)
        if total > MOST_MODEL_BYTES:
            raise ValueError(f"its weights have more than {MOST_MODEL_BYTES} bytes")


def _problem(tensor: onnx.TensorProto, *, is_multiplied: bool) -> str | None:
    """Return what is wrong with a constant, or None."""
    try:
        values = numpy_helper.to_array(tensor)
    # A type that there is none of, and shapes that do not fit the content.
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        return f"is malformed: {reason(error)}"
    if tensor.data_type not in _FLOATS or np.isfinite(values).all():
        return None
    if not is_multiplied and not np.isnan(values).any():
        return None
    return (
        "has values that are not finite; accepted are finite numbers, and infinities in masks and "
        "other constants that no layer multiplies: export from a checkpoint that is sound"
    )
