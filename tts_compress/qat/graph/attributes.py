"""Attributes, stored tensors and element types of ONNX, as torch takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from tts_compress.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

__all__ = ["Attributes", "Operator", "read_integers", "read_tensor", "torch_type"]

Operator: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...]]"
"""Computes a node from its `Attributes` and its inputs, None for each that is left out."""

_TYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
    onnx.TensorProto.INT64: torch.int64,
    onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.INT8: torch.int8,
    onnx.TensorProto.UINT8: torch.uint8,
    onnx.TensorProto.BOOL: torch.bool,
}


class Attributes(dict[str, Any]):
    """A node's attributes, and what else the meaning of its operator depends on.

    Args:
        node: The node.
        opset: Version of the standard operators that it is written in.
    """

    def __init__(self, node: onnx.NodeProto, opset: int) -> None:
        read = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        super().__init__({n: v.decode() if isinstance(v, bytes) else v for n, v in read.items()})
        self.label = f"{node.op_type} '{node.name or node.output[0]}'"
        self.opset = opset
        self.outputs = len(node.output)

    def refuse(self, reason: str) -> QuantizationError:
        """Return the error for what cannot be computed here."""
        return QuantizationError(
            f"{self.label} {reason}; it cannot be trained: leave it outside of the part that is"
        )


def read_integers(values: Tensor | Sequence[int]) -> list[int]:
    """Return sizes, axes or positions that a graph holds as a tensor or an attribute."""
    return values.reshape(-1).tolist() if isinstance(values, torch.Tensor) else list(values)


def read_tensor(tensor: onnx.TensorProto) -> Tensor:
    """Return a copy of a stored tensor."""
    kind = torch_type(tensor.data_type, f"constant '{tensor.name}'")
    array = numpy_helper.to_array(tensor)
    # numpy has no bfloat16 of its own.
    return torch.tensor(array.astype(np.float32) if kind == torch.bfloat16 else array).to(kind)


def torch_type(code: int, owner: str) -> torch.dtype:
    """Return torch's name of an ONNX element type; `owner` has it, for the message.

    Raises:
        QuantizationError: torch does not compute with it.
    """
    if code not in _TYPES:
        name = onnx.TensorProto.DataType.Name(code)
        raise QuantizationError(f"{owner} is of type {name}, which cannot be trained with in torch")
    return _TYPES[code]
