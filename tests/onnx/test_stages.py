"""Where a graph is cut in time, by the arithmetic of its operators."""

import numpy as np

from tests.graphs import make_model, make_node
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.stages import cut_graph


def test_each_head_of_an_attention_multiplies_its_own_channels() -> None:
    """The heads were counted twice, and a vocoder of most arithmetic was refused for them."""
    nodes = [
        make_node("Reshape", "x heads", "split"),
        make_node("Transpose", "split", "q", perm=[0, 2, 1, 3]),
        make_node("Transpose", "split", "k", perm=[0, 2, 3, 1]),
        make_node("MatMul", "q k", "s"),
        make_node("Softmax", "s", "p", axis=-1),
        make_node("MatMul", "p q", "o"),
        make_node("Transpose", "o", "turned", perm=[0, 1, 3, 2]),
        make_node("Reshape", "turned channels", "h"),
        make_node("Conv", "h w", "y", pads=[3, 3]),
    ]
    weights = {"heads": np.array([0, 0, 8, 4]), "channels": np.array([0, 32, -1])}
    weights["w"] = np.ones((48, 32, 7))
    model = make_model(nodes, {"x": [1, "T", 32]}, {"y": [1, 48, "T"]}, weights)
    calls: list[Feeds] = [{"x": np.ones((1, length, 32), np.float32)} for length in (24, 36)]
    assert cut_graph(model, calls, ["y"], "a test").share > 0.8
