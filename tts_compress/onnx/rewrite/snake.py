"""Snake activations in fewer passes: x + sin²(αx) / α.

After Ziyin et al., "Neural Networks Fail to Learn Periodic Functions and How to Fix It" (2020), as
BigVGAN, Kokoro and the decoders of neural codecs have it.
"""

import numpy as np
import onnx

from tts_compress.onnx.graph import Array, Graph

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
    made = node.output[0]
    found = next((f for form in _FORMS if (f := graph.match(made, form)) is not None), None)
    if found is None or ("exponent" in found and graph.scalar(found["exponent"]) != 2.0):
        return False
    alpha, share = (_by_channel(graph, found[name]) for name in ("alpha", "share"))
    if alpha is None or share is None or alpha.size != share.size:
        return False
    if np.abs(share).max() > _LARGEST:
        return False
    graph.remove(node)
    double = graph.add_constant(f"{made}.double", 2 * alpha[:, None])
    phase = graph.make("Mul", [found["x"], double], f"{made}.phase")
    wave = graph.make("Cos", [phase], f"{made}.wave")
    zeros = np.zeros_like(share)
    rows = {"factor": -share / 2, "offset": share / 2, "mean": zeros, "variance": zeros + 1}
    constants = [graph.add_constant(f"{made}.{name}", value) for name, value in rows.items()]
    # With a variance of one and nothing added to it this is a product and a sum.
    square = graph.make("BatchNormalization", [wave, *constants], f"{made}.square", epsilon=0.0)
    graph.add("Add", [found["x"], square], [made], node.name)
    return True


def _by_channel(graph: Graph, tensor: str) -> Array | None:
    """Return a constant (1, C, 1) or (C, 1) as (C,), or None for anything else."""
    value = graph.constant(tensor)
    fits = value is not None and value.ndim in {2, 3} and value.size == value.shape[-2]
    return value.reshape(-1) if value is not None and fits and value.dtype == np.float32 else None
