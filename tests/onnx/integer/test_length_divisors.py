"""Lengths that are known to be divisible, and those that are not."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer.region import length_divisors


def _known(*layers: tuple[str, str, str, dict[str, Any]]) -> dict[str, int]:
    generator = np.random.default_rng(0)
    shapes = {"w3": (8, 8, 3), "up": (8, 8, 8), "third": (1,), "square": (8, 8, 3, 3)}
    model: onnx.ModelProto = make_model(
        [helper.make_node(op, i.split(), [o], o, **a) for op, i, o, a in layers],
        {"x": [1, 8, "time"]},
        {layers[-1][2]: None},
        {name: generator.normal(size=shape) for name, shape in shapes.items()},
    )
    return length_divisors(Graph(model))


_UP = ("ConvTranspose", "x up", "h", {"strides": [4], "pads": [2, 2]})


def test_upsampling_multiplies_and_what_keeps_lengths_passes_on() -> None:
    known = _known(
        _UP,
        ("LeakyRelu", "h", "a", {}),
        ("Conv", "a w3", "c", {"pads": [3, 3], "dilations": [3]}),
        ("Add", "c h", "s", {}),
        ("Mul", "s third", "m", {}),
        ("Concat", "m a", "j", {"axis": 1}),
        ("ConvTranspose", "m up", "y", {"strides": [2], "pads": [3, 3]}),
    )
    assert known == dict.fromkeys(["h", "a", "c", "s", "m", "j"], 4) | {"y": 8}


@pytest.mark.parametrize(
    "layer",
    [
        ("Conv", "h w3", "y", {"pads": [1, 0]}),
        ("Conv", "h w3", "y", {"pads": [1, 1], "strides": [2]}),
        ("Conv", "h w3", "y", {"auto_pad": "VALID"}),
        ("Conv", "h square", "y", {"pads": [1, 1, 1, 1]}),
        ("ConvTranspose", "h up", "y", {"strides": [4], "pads": [1, 2]}),
        ("Add", "h x", "y", {}),
        ("Concat", "h h", "y", {"axis": 2}),
        ("Flatten", "h", "y", {"axis": 1}),
        ("Transpose", "h", "y", {"perm": [0, 2, 1]}),
    ],
    ids=lambda layer: f"{layer[0]}-{layer[1]}-{layer[3]}",
)
def test_any_other_length_is_unknown(layer: tuple[str, str, str, dict[str, Any]]) -> None:
    assert _known(_UP, layer) == {"h": 4}
