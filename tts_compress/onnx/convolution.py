"""Convolutions along time, as operators of a graph state them."""

from dataclasses import dataclass

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph, attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A Conv or ConvTranspose with a constant FP32 weight and bias that states its padding."""

    weight: Array
    """Shape (C_out, C_in, K); of a ConvTranspose (C_in, C_out, K)."""

    bias: Array
    """Shape (C_out,), zeros where there is none."""

    pads: tuple[int, int] = (0, 0)
    dilation: int = 1
    stride: int = 1
    groups: int = 1

    @property
    def keeps_length(self) -> bool:
        """True if the output of a Conv is as long as its input."""
        return self.stride == 1 and sum(self.pads) == self.dilation * (self.weight.shape[2] - 1)


def read_convolution(graph: Graph, node: onnx.NodeProto) -> Convolution | None:
    """Return the convolution along time that a node is, or None for any other node."""
    if node.op_type not in {"Conv", "ConvTranspose"}:
        return None
    weight, groups = graph.constant(node.input[1]), attribute(node, "group", 1)
    if weight is None or weight.ndim != 3 or weight.dtype != np.float32:
        return None
    bias: Array | None = np.zeros(weight.shape[0 if node.op_type == "Conv" else 1], np.float32)
    if len(node.input) > 2 and node.input[2]:
        bias = graph.constant(node.input[2])
    if bias is None or attribute(node, "auto_pad", "NOTSET") != "NOTSET":
        return None
    return Convolution(
        weight=weight,
        bias=bias,
        pads=attribute(node, "pads", (0, 0)),
        dilation=attribute(node, "dilations", (1,))[0],
        stride=attribute(node, "strides", (1,))[0],
        groups=groups,
    )
