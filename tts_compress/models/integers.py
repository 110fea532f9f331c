"""A model's integer layers, and their hazards on a processor that they were not made for.

Files of this release are exact on every processor. Files of other tools and of earlier releases may
hold weights that overflow `vpmaddubsw` (`numerics.weights`), or signed activations, which
onnxruntime multiplies on x86 more slowly than real numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from tts_compress.environment import Processor
from tts_compress.models.base import Model, OnnxGraph, TorchModel
from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums
from tts_compress.onnx.modules import INTEGER_LSTM, OPERATORS, WeightFinder

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerLayers:
    """Numbers of a model's layers that multiply integers, and of those with hazards."""

    count: int
    overflowing: int
    """Layers in which two neighbouring products can exceed 16 bits."""

    signed: int
    """Layers whose activations are int8."""


def count_integer_layers(model: Model) -> IntegerLayers:
    """Count a model's layers that multiply integers, by hazard."""
    layers: list[tuple[bool, bool]] = []  # (can overflow, is signed)
    if isinstance(model, OnnxGraph):
        layers = [layer for part in model.parts for layer in _layers_of_graph(model.graph(part))]
    elif isinstance(model, TorchModel):
        layers = [(overflows, False) for overflows in _layers_of_module(model.root())]
    return IntegerLayers(
        count=len(layers),
        overflowing=sum(overflows for overflows, _ in layers),
        signed=sum(signed for _, signed in layers),
    )


def find_hazards(layers: IntegerLayers, processor: Processor) -> tuple[str, ...]:
    """Return the hazards of a model's integer layers on a processor, as sentences."""
    again = "compress the original again with this release"
    hazards = []
    if layers.overflowing and processor.adds_in_16_bits:
        hazards.append(
            f"{layers.overflowing} of {layers.count} integer layers can overflow the 16-bit sums "
            f"of this processor's kernels ({processor.integer_kernels}), so the model is worse "
            f"here than elsewhere; {again}"
        )
    if layers.signed and processor.is_x86:
        hazards.append(
            f"{layers.signed} of {layers.count} integer layers have signed activations, for which "
            f"x86 processors have no fast kernel: slower than FP32 here; {again}"
        )
    return tuple(hazards)


def _layers_of_graph(model: onnx.ModelProto) -> Iterator[tuple[bool, bool]]:
    """Yield (can overflow, is signed) of each integer layer."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    weights = WeightFinder(model.graph)
    for node in model.graph.node:
        weight = weights.find(node)
        zero = _zero_point(node, weights)
        if weight is None or zero is None:
            continue
        # Products of two unsigned bytes are added in 32 bits everywhere.
        overflows = weight.data_type == TensorProto.INT8 and node.op_type != "ConvInteger"
        if overflows:
            stored = [numpy_helper.to_array(tensor) for tensor in weights.find_all(node)]
            overflows = any(_can_overflow(rows) for codes in stored for rows in _rows(node, codes))
        yield overflows, types.get(zero) == TensorProto.INT8


def _rows(node: onnx.NodeProto, codes: npt.NDArray[np.int8]) -> list[npt.NDArray[np.int8]]:
    """Return weights with their outputs first; a recurrent operator has one for each direction."""
    if node.op_type == INTEGER_LSTM:
        return [direction.T for direction in codes]
    return [codes.T if "MatMul" in node.op_type else codes]


def _zero_point(node: onnx.NodeProto, weights: WeightFinder) -> str | None:
    """Return the name of an integer layer's activations' zero point; None for any other layer."""
    if node.op_type == INTEGER_LSTM:
        return ""  # its activations are always unsigned
    if node.op_type in OPERATORS and (position := OPERATORS[node.op_type].zero):
        return node.input[position] if len(node.input) > position else ""
    # The portable form: an operator on real numbers whose input and weight were codes just before.
    if node.op_type not in {"Conv", "MatMul"} or not weights.is_widened(node):
        return None
    source = weights.producer(node.input[0])
    if source is None or source.op_type != "DequantizeLinear" or len(source.input) < 3:
        return None
    return str(source.input[2])


def _layers_of_module(root: "nn.Module") -> Iterator[bool]:
    from tts_compress.torch.layers.base import walk_layers
    from tts_compress.torch.layers.integer import IntegerLayer

    for _, module in walk_layers(root):
        if isinstance(module, IntegerLayer):
            yield _can_overflow(module.state()["weight"].numpy())


def _can_overflow(codes: npt.NDArray[np.int8]) -> bool:
    sums = neighbour_sums(codes.astype(np.int16))
    return bool(np.abs(sums).max(initial=0) > PAIR_LIMIT)
