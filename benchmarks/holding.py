"""Tensors of a graph as outputs, and as inputs in place of what the graph itself computes."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tts_compress.errors import ModelError
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.session import Feeds, open_session, run_session

Held = dict[str, "npt.NDArray[np.float64]"]
"""Values of held tensors, by label."""

_PREFIX = "benchmarks.held."
_TYPES = {
    "tensor(float)": (TensorProto.FLOAT, np.float32),
    "tensor(float16)": (TensorProto.FLOAT16, np.float16),
    "tensor(double)": (TensorProto.DOUBLE, np.float64),
    "tensor(int32)": (TensorProto.INT32, np.int32),
    "tensor(int64)": (TensorProto.INT64, np.int64),
}


class HoldingSession:
    """A graph that says what it computed for some tensors, and may be given other values of them.

    Args:
        model: The graph; changed in place.
        tensors: The tensors, by label.
        given: Values they have in place of the graph's own, from which only their number of axes is
            taken; None to leave the graph as it is.
        spec: Its name in messages.

    Raises:
        ModelError: The graph has no such tensor, or cannot be opened.
    """

    def __init__(
        self, model: onnx.ModelProto, tensors: Mapping[str, str], given: Held | None, spec: str
    ) -> None:
        self._tensors, self._spec = dict(tensors), spec
        self._held = given is not None
        self.first_output = model.graph.output[0].name
        _expose(model.graph, tensors.values(), spec)
        self._session = open_session(model, spec)
        types = {value.name: value.type for value in self._session.get_outputs()}
        self._dtypes: dict[str, Any] = {}
        if given is None:
            return
        for label, tensor in tensors.items():
            element, self._dtypes[label] = _TYPES[types[tensor]]
            name, axes = _PREFIX + label, [None] * given[label].ndim
            model.graph.input.append(helper.make_tensor_value_info(name, element, axes))
            _replace(model.graph, tensor, name)
        self._session = open_session(model, spec)

    @property
    def session(self) -> onnxruntime.InferenceSession:
        """The graph, opened."""
        return self._session

    def run(self, feeds: Feeds, given: Held | None) -> tuple[npt.NDArray[np.float32], Held]:
        """Return the first output, and what the graph itself computed for the tensors.

        Args:
            feeds: Inputs of the graph.
            given: Values of the held tensors, if the session was made for some.
        """
        assert (given is not None) == self._held, "a session is made for held tensors or without"
        for label, values in (given or {}).items():
            feeds = feeds | {_PREFIX + label: values.astype(self._dtypes[label])}
        wanted = [self.first_output, *self._tensors.values()]
        first, *own = run_session(self._session, feeds, self._spec, wanted)
        computed = (np.asarray(value, np.float64) for value in own)
        return np.asarray(first, np.float32), dict(zip(self._tensors, computed, strict=True))


def bake(
    model: onnx.ModelProto, tensors: Mapping[str, str], given: Held, spec: str
) -> onnx.ModelProto:
    """Return a copy of a graph in which tensors have values for good.

    Args:
        model: The graph.
        tensors: The tensors, by label.
        given: Their values.
        spec: Its name in messages.

    Raises:
        ModelError: The graph has no such tensor, or cannot be opened.
    """
    copy = copy_model(model)
    types = _types(copy_model(model), tensors.values(), spec)
    for label, tensor in tensors.items():
        values = given[label].astype(types[tensor][1])
        copy.graph.initializer.append(numpy_helper.from_array(values, _PREFIX + label))
        _replace(copy.graph, tensor, _PREFIX + label)
    return copy


def _types(model: onnx.ModelProto, tensors: Iterable[str], spec: str) -> dict[str, tuple[Any, Any]]:
    """Return the types of tensors of a graph, which is changed, as the runtime finds them."""
    _expose(model.graph, tensors, spec)
    found = open_session(model, spec).get_outputs()
    return {value.name: _TYPES[value.type] for value in found if value.type in _TYPES}


def _expose(graph: onnx.GraphProto, tensors: Iterable[str], spec: str) -> None:
    made = {name for node in graph.node for name in node.output}
    known = {value.name for value in graph.output}
    for tensor in tensors:
        if tensor not in made:
            raise ModelError(f"'{spec}' has no tensor '{tensor}', which is held for comparing")
        if tensor not in known:
            graph.output.append(helper.make_empty_tensor_value_info(tensor))


def _replace(graph: onnx.GraphProto, tensor: str, name: str) -> None:
    """Let all operators read another tensor, also those in branches and bodies."""
    for node in graph.node:
        for position, read in enumerate(node.input):
            if read == tensor:
                node.input[position] = name
        for entry in node.attribute:
            for body in (entry.g, *entry.graphs):
                _replace(body, tensor, name)
                for value in body.output:
                    # A branch may return a tensor from outside of it as it is.
                    if value.name == tensor:
                        value.name = name
