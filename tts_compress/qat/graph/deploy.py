"""From a trained network back to the graph it was cut from.

Learned weights and ranges take the places of the original ones in the prepared conversion; then the
builder that post-training quantization uses writes the graph, with the very same operators.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from onnx import numpy_helper

from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import copy_model
from tts_compress.qat.graph.code_plan import plan_codes

if TYPE_CHECKING:
    import onnx

    from tts_compress.numerics.histogram import Range
    from tts_compress.onnx.quantize.convert import Conversion
    from tts_compress.qat.graph.network import GraphNetwork

__all__ = ["learned_conversion"]


def learned_conversion(conversion: Conversion, student: GraphNetwork) -> Conversion:
    """Return a conversion with a student's weights and ranges in the places of the original ones.

    Raises:
        QuantizationError: A learned value is not finite.
    """
    graph = copy_model(conversion.graph)
    _put_constants(graph, student)
    return replace(conversion, graph=graph, ranges=_ranges(conversion, student))


def _put_constants(graph: onnx.ModelProto, student: GraphNetwork) -> None:
    learned = student.constants()
    for tensor in graph.graph.initializer:
        values = learned.get(tensor.name)
        if values is None:
            continue
        if not np.isfinite(values).all():
            raise QuantizationError(
                f"training left '{tensor.name}' with values that are not finite; "
                "train with a lower learning rate"
            )
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _ranges(conversion: Conversion, student: GraphNetwork) -> dict[str, Range]:
    """Return every observed range, as the student's quantizers left it."""
    ranges = dict(conversion.ranges)
    learned = student.ranges()
    for quantizer, shares in plan_codes(conversion).shares.items():
        if quantizer not in learned:
            continue
        low, high = learned[quantizer]
        if not np.isfinite([low, high]).all():
            raise QuantizationError(
                f"training left the range of '{quantizer}' at {low} .. {high}; "
                "train with a lower learning rate"
            )
        for share in shares:
            before = ranges[share.tensor]
            ranges[share.tensor] = (
                low / share.low if share.low else before[0],
                high / share.high if share.high else before[1],
            )
    return ranges
