"""What a node of an ONNX graph says besides its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx
import torch
from onnx import helper, numpy_helper

from tts_compress.errors import QuantizationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

__all__ = ["Attributes", "Operator", "read_integers", "read_tensor", "torch_type"]

Operator: TypeAlias = "Callable[..., Tensor | tuple[Tensor, ...]]"
"""Computes a node: called with its `Attributes` and its inputs, None for each that is left out."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """A node's attributes, and what its operator's meaning hangs on besides."""

    label: str
    """Operator and name of the node, for messages."""

    opset: int
    """Version of the standard operators."""

    outputs: int
    """How many outputs the node has."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, node: onnx.NodeProto, opset: int) -> Attributes:
        """Return what a node says."""
        name = node.name or (node.output[0] if node.output else "")
        return cls(
            label=f"{node.op_type} '{name}'",
            opset=opset,
            outputs=len(node.output),
            values={a.name: helper.get_attribute_value(a) for a in node.attribute},
        )

    def integer(self, name: str, default: int) -> int:
        """Return an integer, or the default where it is not written."""
        return int(self.values.get(name, default))

    def integers(self, name: str) -> list[int] | None:
        """Return a list of integers, or None where it is not written."""
        found = self.values.get(name)
        return None if found is None else list(found)

    def real(self, name: str, default: float) -> float:
        """Return a number, or the default where it is not written."""
        return float(self.values.get(name, default))

    def text(self, name: str, default: str) -> str:
        """Return a word, or the default where it is not written."""
        found = self.values.get(name)
        return default if found is None else bytes(found).decode()

    def refuse(self, reason: str) -> QuantizationError:
        """Return the error that ends what cannot be computed here."""
        return QuantizationError(
            f"{self.label} {reason}; it cannot be trained: leave it outside of the part that is"
        )


def read_integers(values: Tensor | Sequence[int]) -> list[int]:
    """Return sizes, axes or positions that a graph holds as a tensor or an attribute."""
    if isinstance(values, torch.Tensor):
        return [int(value) for value in values.reshape(-1).tolist()]
    return list(values)


def read_tensor(tensor: onnx.TensorProto) -> Tensor:
    """Return a stored tensor as a copy of its own.

    Raises:
        QuantizationError: Its element type is none that torch computes with.
    """
    kind = torch_type(tensor.data_type, f"constant '{tensor.name}'")
    array = numpy_helper.to_array(tensor)
    if kind == torch.bfloat16:  # numpy has no such type of its own
        array = array.astype("float32")
    return torch.tensor(array).to(kind)


def torch_type(code: int, what: str) -> torch.dtype:
    """Return torch's name of an ONNX element type.

    Args:
        code: As in `onnx.TensorProto`.
        what: Whose type it is, for the message.

    Raises:
        QuantizationError: torch does not compute with it.
    """
    if code not in _TYPES:
        name = onnx.TensorProto.DataType.Name(code)
        raise QuantizationError(f"{what} is of type {name}, which cannot be trained with in torch")
    return _TYPES[code]
