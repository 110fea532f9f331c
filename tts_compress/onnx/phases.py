"""Phases: sums of frequencies over time, whose sine is taken, and angles of quotients.

Phases grow with every period, to thousands of radians in seconds of speech, where half precision
has steps of whole radians: nothing would be left of the sine. Angles are `atan(a / b)` of two parts
of a spectrum, which are so small where it is quiet that half precision makes them 0 / 0. Vocoders
with a sine source have both.
"""

from tts_compress.onnx.graph import Graph, reach
from tts_compress.onnx.modules import CONVERTIBLE, LAYERS

_LAYERS = LAYERS.intersection(CONVERTIBLE)


def phase_outputs(graph: Graph) -> frozenset[str]:
    """Return the tensors that phases are computed from, back to the layers that predict them.

    For angles, the outputs of these layers are included.
    """
    makers = {name: node for node in graph.nodes for name in node.output if name}
    layers = {name for name, node in makers.items() if node.op_type in _LAYERS}
    sums = {name for name, node in makers.items() if node.op_type == "CumSum"}

    def sources(tensor: str) -> list[str]:
        return [] if tensor in layers else [name for name in makers[tensor].input if name in makers]

    phases: set[str] = set()
    for node in graph.nodes:
        if node.op_type not in {"Sin", "Cos", "Atan"} or node.input[0] not in makers:
            continue
        computed = set(reach(node.input[:1], sources))
        if node.op_type != "Atan":
            phases |= set() if sums.isdisjoint(computed - layers) else computed - layers
        elif makers[node.input[0]].op_type == "Div":
            phases |= computed
    return frozenset(phases)
