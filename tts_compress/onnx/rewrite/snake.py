"""Snake activations in fewer passes: x + sin²(αx) / α.

After Ziyin et al., "Neural Networks Fail to Learn Periodic Functions and How to Fix It" (2020), as
BigVGAN, Kokoro and the decoders of neural codecs have it.
"""

import numpy as np
import onnx

from tts_compress.onnx.graph import Graph

_SINE = ("Sin", ("Mul", "alpha", "x"))
_FORMS = (
    ("Add", "x", ("Mul", "share", ("Pow", _SINE, "exponent"))),
    ("Add", "x", ("Mul", "share", ("Mul", _SINE, _SINE))),
)

_LARGEST = 64
"""The largest factor s: a cosine near one, times s, is off by up to 3e-8 s."""


def simplify_snakes(graph: Graph) -> int:
    """Write x + s · sin²(αx) as x + s/2 - s/2 · cos(2αx); return how many were written.

    `Pow` takes longer than a product, and `BatchNormalization` multiplies and adds in one pass.

    Required: constant α and s, one for each channel of (B, C, T), and no s above 64.
    """
    return sum(_simplify(graph, node) for node in list(graph.nodes) if node.op_type == "Add")


def _simplify(graph: Graph, node: onnx.NodeProto) -> bool:
    output = node.output[0]
    parts = next((p for form in _FORMS if (p := graph.match(output, form)) is not None), None)
    if parts is None or ("exponent" in parts and graph.scalar(parts["exponent"]) != 2.0):
        return False
    alpha, share = (graph.by_channel(parts[name]) for name in ("alpha", "share"))
    if alpha is None or share is None or alpha.size != share.size:
        return False
    if np.abs(share).max() > _LARGEST:
        return False
    graph.remove(node)
    double = graph.add_constant(f"{output}.double", 2 * alpha[:, None])
    phase = graph.make("Mul", [parts["x"], double], f"{output}.phase")
    wave = graph.make("Cos", [phase], f"{output}.wave")
    half, mean = share / 2, np.zeros_like(share)
    constants = graph.add_constants(output, factor=-half, offset=half, mean=mean, variance=mean + 1)
    # With a variance of one and nothing added to it this is a product and a sum.
    square = graph.make("BatchNormalization", [wave, *constants], f"{output}.square", epsilon=0.0)
    graph.add("Add", [parts["x"], square], [output], node.name)
    return True
