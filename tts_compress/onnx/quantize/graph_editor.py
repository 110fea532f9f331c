"""Editing ONNX graphs: look tensors up, put operators between others, keep the order valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import helper, numpy_helper

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import sort_nodes, tensors_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np
    import numpy.typing as npt
    import onnx

__all__ = ["GraphEditor"]


class GraphEditor:
    """A model under conversion; `finish` puts its operators into a valid order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self.nodes: list[onnx.NodeProto] = list(model.graph.node)
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._outputs = {value.name for value in model.graph.output}
        self._original = set(self.weights)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a constant's values."""
        return numpy_helper.to_array(self.weights[name])

    def add_weight(self, name: str, values: npt.NDArray[np.generic]) -> str:
        """Add a constant, once; return its name.

        Raises:
            QuantizationError: The graph itself has another constant of that name.
        """
        return self.add_tensor(numpy_helper.from_array(values, name))

    def add_tensor(self, tensor: onnx.TensorProto) -> str:
        """Add a constant that numpy has no type for, once; return its name.

        Raises:
            QuantizationError: The graph itself has another constant of that name.
        """
        if tensor.name in self._original:
            raise QuantizationError(
                f"the graph has a constant named '{tensor.name}', and compression needs the name; "
                "give it another one"
            )
        if tensor.name not in self.weights:
            self.weights[tensor.name] = tensor
        return tensor.name

    def add_node(self, operator: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        """Add an operator with one output; return that output."""
        # An original operator may bear the output's own name, and names have to be unique.
        name = f"{output}/{operator}"
        self.nodes.append(helper.make_node(operator, list(inputs), [output], name, **attributes))
        return output

    def remove(self, node: onnx.NodeProto) -> None:
        """Take an operator out."""
        self.nodes = [other for other in self.nodes if other is not node]

    def redirect(self, tensor: str, to: str, where: Callable[[onnx.NodeProto], bool]) -> None:
        """Let the operators that `where` accepts read `to` in the place of `tensor`."""
        for node in self.nodes:
            for position, name in enumerate(node.input):
                if name == tensor and where(node):
                    node.input[position] = to

    def is_output(self, tensor: str) -> bool:
        """Return whether the graph gives this tensor to its caller."""
        return tensor in self._outputs

    def finish(self) -> onnx.ModelProto:
        """Return the model with its operators sorted and without constants nobody reads."""
        ordered = sort_nodes(self.nodes)
        used = {name for node in ordered for name in tensors_read(node)} | self._outputs
        del self.graph.node[:]
        self.graph.node.extend(ordered)
        del self.graph.initializer[:]
        self.graph.initializer.extend(t for name, t in self.weights.items() if name in used)
        del self.graph.value_info[:]
        return self.model
