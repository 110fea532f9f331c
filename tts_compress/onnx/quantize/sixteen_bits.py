"""The part of a graph that gets codes of 16 bits throughout, as NPUs compute it.

What has no codes they compute in FP16, or not at all.
"""

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.session import Feeds


def local_tensors(graph: Graph, calls: Iterator[Feeds]) -> frozenset[str]:
    """Return the tensors in FP32 that outputs are made of, as far as that is local in time.

    Args:
        graph: The graph.
        calls: Its inputs, with fed noise; without two of different sizes nothing is known.
    """
    first = next(calls, dict[str, Any]())
    others = (c for c in calls if any(c[name].shape != a.shape for name, a in first.items()))
    if (other := next(others, None)) is None:
        return frozenset()
    model = feed_noise(graph.model)
    local = walk(Graph(model), observe_shapes(model, [first, other], "the graph"), graph.outputs)
    names = {name for node in local.nodes for name in node.output}
    return frozenset(name for name in names if graph.types.get(name) == TensorProto.FLOAT)
