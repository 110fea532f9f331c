"""Phases: frequencies summed up over time, of which a sine is taken, and angles of quotients.

Phases grow with every period, to thousands of radians in seconds of speech, where half precision
has steps of whole radians: nothing would be left of the sine. Angles are `atan(a / b)`, of parts of
a spectrum, which are so small where it is quiet that half precision makes them 0 / 0. Vocoders with
a sine source have both.
"""

import onnx

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import RECURRENT

_SINES = frozenset({"Sin", "Cos"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", *RECURRENT})


def phase_outputs(graph: Graph) -> frozenset[str]:
    """Return the tensors that phases are computed from, back to the layers that predict them.

    Of angles the outputs of these layers are among them.
    """
    found: set[str] = set()
    for node in graph.nodes:
        if node.op_type in _SINES:
            behind, _, summed = _behind(graph, node.input[0])
            found |= behind if summed else set()
        elif node.op_type == "Atan" and _divides(graph.producer(node.input[0])):
            behind, layers, _ = _behind(graph, node.input[0])
            found |= behind | layers
    return frozenset(found)


def _divides(node: onnx.NodeProto | None) -> bool:
    return node is not None and node.op_type == "Div"


def _behind(graph: Graph, tensor: str) -> tuple[set[str], set[str], bool]:
    """Return a tensor and those it is computed from by no layer.

    Returns:
        These tensors; the outputs of layers that they are computed from; True if one is a sum.
    """
    seen, layers, wanted, summed = set[str](), set[str](), [tensor], False
    while wanted:
        name = wanted.pop()
        maker = graph.producer(name)
        if name in seen or maker is None:
            continue
        if maker.op_type in _LAYERS:
            layers.add(name)
            continue
        seen.add(name)
        summed |= maker.op_type == "CumSum"
        wanted += [read for read in maker.input if read]
    return seen, layers, summed
