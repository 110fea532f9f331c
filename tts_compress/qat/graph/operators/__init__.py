"""ONNX operators as functions of torch tensors that gradients flow through.

They are those of networks that speak: convolutions, products, what stands between them, and what
lengths and positions are computed with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.errors import QuantizationError
from tts_compress.qat.graph.operators.attributes import Attributes, read_tensor
from tts_compress.qat.graph.operators.elementwise import ELEMENTWISE
from tts_compress.qat.graph.operators.indexing import INDEXING
from tts_compress.qat.graph.operators.products import PRODUCTS
from tts_compress.qat.graph.operators.reductions import REDUCTIONS
from tts_compress.qat.graph.operators.shapes import SHAPES

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx
    from torch import Tensor

    from tts_compress.qat.graph.operators.attributes import Operator

__all__ = ["OPERATORS", "find_operator", "read_tensor"]

OPERATORS: dict[str, Operator] = {
    **ELEMENTWISE,
    **INDEXING,
    **PRODUCTS,
    **REDUCTIONS,
    **SHAPES,
}
"""By name, of the standard domain. Random ones are missing: noise has to be an input."""


def find_operator(node: onnx.NodeProto, opset: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return what computes a node from its inputs, None for each that is left out.

    Args:
        node: Of a graph in FP32.
        opset: The version of the standard operators that it is written in.

    Raises:
        QuantizationError: There is no such operator here.
    """
    operator = OPERATORS.get(node.op_type) if node.domain in {"", "ai.onnx"} else None
    attributes = Attributes.of(node, opset)
    if operator is None:
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        raise QuantizationError(
            f"operator {name} of node '{node.name or node.output[0]}' cannot be trained; "
            "leave it outside of the part that is"
        )

    def compute(*inputs: Tensor | None) -> tuple[Tensor, ...]:
        result = operator(attributes, *inputs)
        return result if isinstance(result, tuple) else (result,)

    return compute
