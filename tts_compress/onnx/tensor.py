"""Tensors of a graph as values to compute with, by which operators are written."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from tts_compress.onnx.graph import Array, Graph

Operand: TypeAlias = "Tensor | Array | Sequence[int] | float"
"""Integers of a list are int64; any other numbers are float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor of a graph to compute with: each operation on it appends a node."""

    graph: Graph
    stem: str
    """Beginning of the names of nodes and constants."""

    name: str
    constants: dict[tuple[str, bytes], str] = field(default_factory=dict)
    """Names of constants by shape and type, and value."""

    def of(self, operand: Operand) -> "Tensor":
        """Return an operand as a tensor; equal constants are one."""
        if isinstance(operand, Tensor):
            return operand
        value = np.asarray(operand, np.int64 if isinstance(operand, list) else np.float32)
        key = (f"{value.shape} {value.dtype}", value.tobytes())
        if key not in self.constants:
            self.constants[key] = self.graph.add_constant(f"{self.stem}/constant", value)
        return replace(self, name=self.constants[key])

    def apply(self, op: str, *others: Operand, **attributes: Any) -> "Tensor":
        """Return the result of an operator that reads this tensor and then others."""
        inputs = [self.name, *(self.of(other).name for other in others)]
        return replace(self, name=self.graph.make(op, inputs, f"{self.stem}/{op}", **attributes))

    def cut(self, begin: int, end: int, axis: int) -> "Tensor":
        """Return a slice along one axis."""
        return self.apply("Slice", [begin], [end], [axis])

    def split(self, *channels: int) -> "list[Tensor]":
        """Return parts of a tensor (B, C, ...), of so many channels each."""
        names = [self.graph.fresh(f"{self.stem}/Split") for _ in channels]
        self.graph.add("Split", [self.name, self.of([*channels]).name], names, axis=1)
        return [replace(self, name=name) for name in names]

    def __add__(self, other: Operand) -> "Tensor":
        return self.apply("Add", other)

    def __sub__(self, other: Operand) -> "Tensor":
        return self.apply("Sub", other)

    def __mul__(self, other: Operand) -> "Tensor":
        return self.apply("Mul", other)

    def __truediv__(self, other: Operand) -> "Tensor":
        return self.apply("Div", other)

    def __matmul__(self, other: Operand) -> "Tensor":
        return self.apply("MatMul", other)

    def __neg__(self) -> "Tensor":
        return self.apply("Neg")
