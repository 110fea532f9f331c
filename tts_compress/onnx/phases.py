"""Phases: frequencies summed up over time, of which a sine is taken.

They grow with every period, to thousands of radians in seconds of speech, where half precision has
steps of whole radians: nothing would be left of the sine. Vocoders with a sine source have them.
"""

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.modules import RECURRENT

_SINES = frozenset({"Sin", "Cos"})
_LAYERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", *RECURRENT})


def phase_outputs(graph: Graph) -> frozenset[str]:
    """Return the tensors that phases are computed from, back to the layers that predict them."""
    found: set[str] = set()
    for node in graph.nodes:
        if node.op_type not in _SINES:
            continue
        behind, summed = _behind(graph, node.input[0])
        if summed:
            found |= behind
    return frozenset(found)


def _behind(graph: Graph, tensor: str) -> tuple[set[str], bool]:
    """Return a tensor and those it is computed from by no layer, and True if one is a sum."""
    seen, wanted, summed = set[str](), [tensor], False
    while wanted:
        name = wanted.pop()
        maker = graph.producer(name)
        if name in seen or maker is None or maker.op_type in _LAYERS:
            continue
        seen.add(name)
        summed |= maker.op_type == "CumSum"
        wanted += [read for read in maker.input if read]
    return seen, summed
