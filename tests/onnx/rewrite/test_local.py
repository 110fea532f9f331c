"""Rewrites of a few nodes: equal where they apply, refused where that cannot be proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.rewrite.convolutions import fold_padding, merge_pointwise, split_convolutions
from tts_compress.onnx.rewrite.eliminate_identity import eliminate_identity

if TYPE_CHECKING:
    from collections.abc import Callable

    Build = Callable[..., onnx.ModelProto]
    Equal = Callable[..., None]


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), outputs, **attributes)


def _types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def _indices(**values: int) -> dict[str, np.ndarray]:
    return {name: np.array([value], np.int64) for name, value in values.items()}


# Zeros added at run time


def _zeros(like: str) -> list[onnx.NodeProto]:
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    return [
        _node("Conv", "x w b", "h", pads=[1, 1]),
        _node("Shape", like, "shape"),
        _node("ConstantOfShape", "shape", "zeros", value=value),
        _node("Add", "zeros h", "sum"),
        _node("Tanh", "sum", "y"),
    ]


def test_zeros_of_the_same_shape_are_dropped(build: Build, equal: Equal) -> None:
    model = build(_zeros("h"), {"w": (6, 4, 3), "b": (6,)})
    graph = Graph(copy_model(model))
    assert eliminate_identity(graph) == 1
    after = graph.finish()
    assert _types(after) == ["Conv", "Tanh"]
    equal(model, after)


def test_zeros_that_may_broadcast_stay(build: Build) -> None:
    """X has as many frames, but its channels are unknown; a sum could be wider."""
    graph = Graph(build(_zeros("x"), {"w": (1, 4, 3), "b": (1,)}))
    assert eliminate_identity(graph) == 0


def test_zeros_that_may_be_longer_stay(build: Build) -> None:
    nodes = _zeros("longer")
    nodes.insert(0, _node("Conv", "x w b", "longer", pads=[2, 2]))
    graph = Graph(build(nodes, {"w": (6, 4, 3), "b": (6,)}))
    assert eliminate_identity(graph) == 0


def test_ones_are_not_neutral_to_a_sum(build: Build) -> None:
    nodes = _zeros("h")
    nodes[2].attribute[0].t.float_data[0] = 1.0
    graph = Graph(build(nodes, {"w": (6, 4, 3), "b": (6,)}))
    assert eliminate_identity(graph) == 0


# Padding


def _padded(mode: str = "constant", **conv: Any) -> list[onnx.NodeProto]:
    return [
        _node("Pad", "x pads value", "padded", mode=mode),
        _node("Conv", "padded w b", "y", **conv),
    ]


def _pad_constants(pads: list[int], value: float = 0.0) -> dict[str, np.ndarray]:
    return {"pads": np.array(pads, np.int64), "value": np.array(value, np.float32)}


@pytest.mark.parametrize("own", [{}, {"pads": [1, 0]}], ids=["unpadded", "padded"])
def test_padding_is_folded(build: Build, equal: Equal, own: dict[str, Any]) -> None:
    constants = _pad_constants([0, 0, 2, 0, 0, 1])
    model = build(_padded(**own), {"w": (6, 4, 3), "b": (6,)}, constants)
    graph = Graph(copy_model(model))
    assert fold_padding(graph) == 1
    after = graph.finish()
    assert _types(after) == ["Conv"]
    equal(model, after)


@pytest.mark.parametrize(
    ("mode", "pads", "value"),
    [
        ("constant", [0, 0, 2, 0, 0, 1], 0.5),
        ("reflect", [0, 0, 2, 0, 0, 1], 0.0),
        ("constant", [0, 1, 2, 0, 0, 1], 0.0),
        ("constant", [0, 0, -1, 0, 0, 2], 0.0),
    ],
    ids=["not-zero", "reflected", "channels", "cut"],
)
def test_other_padding_stays(build: Build, mode: str, pads: list[int], value: float) -> None:
    width = 4 + pads[1]
    model = build(_padded(mode), {"w": (6, width, 3), "b": (6,)}, _pad_constants(pads, value))
    assert fold_padding(Graph(copy_model(model))) == 0


def test_padding_with_another_reader_stays(build: Build) -> None:
    nodes = [*_padded()[:1], _node("Conv", "padded w b", "h"), _node("Relu", "padded", "r")]
    nodes += [_node("Concat", "h r", "y", axis=2)]
    constants = _pad_constants([0, 0, 1, 0, 0, 1])
    assert fold_padding(Graph(build(nodes, {"w": (4, 4, 3), "b": (4,)}, constants))) == 0


# Convolutions read in slices

_CUTS = _indices(zero=0, three=3, six=6, one=1)


def _sliced() -> list[onnx.NodeProto]:
    return [
        _node("Conv", "x w b", "h", pads=[2, 2], dilations=[2]),
        _node("Slice", "h zero three one one", "left"),
        _node("Slice", "h three six one one", "right"),
        _node("Tanh", "left", "t"),
        _node("Mul", "t right", "y"),
    ]


def test_sliced_convolutions_are_split(build: Build, equal: Equal) -> None:
    model = build(_sliced(), {"w": (6, 4, 3), "b": (6,)}, _CUTS)
    graph = Graph(copy_model(model))
    assert split_convolutions(graph) == 1
    after = graph.finish()
    assert sorted(_types(after)) == ["Conv", "Conv", "Mul", "Tanh"]
    equal(model, after)


def test_convolutions_read_whole_stay(build: Build) -> None:
    nodes = [*_sliced()[:-1], _node("Mul", "t right", "m"), _node("Concat", "m h", "y", axis=1)]
    assert split_convolutions(Graph(build(nodes, {"w": (6, 4, 3), "b": (6,)}, _CUTS))) == 0


def test_slices_of_time_stay(build: Build) -> None:
    cuts = _CUTS | _indices(two=2)
    nodes = [_sliced()[0], _node("Slice", "h zero three two one", "y")]
    assert split_convolutions(Graph(build(nodes, {"w": (6, 4, 3), "b": (6,)}, cuts))) == 0


def test_grouped_convolutions_stay(build: Build) -> None:
    nodes = _sliced()
    nodes[0] = _node("Conv", "x w b", "h", pads=[1, 1], group=2)
    assert split_convolutions(Graph(build(nodes, {"w": (6, 2, 3), "b": (6,)}, _CUTS))) == 0


# A projection of a sum of projections

_SKIPS = {"w1": (8, 4, 1), "b1": (8,), "w2": (8, 4, 1), "w3": (2, 8, 1), "b3": (2,)}


def _skips() -> list[onnx.NodeProto]:
    return [
        _node("Tanh", "x", "t"),
        _node("Conv", "x w1 b1", "first"),
        _node("Conv", "t w2", "second"),
        _node("Add", "first second", "sum"),
        _node("Conv", "sum w3 b3", "y"),
    ]


def test_projections_are_merged(build: Build, equal: Equal) -> None:
    model = build(_skips(), _SKIPS)
    graph = Graph(copy_model(model))
    assert merge_pointwise(graph) == 1
    after = graph.finish()
    assert _types(after) == ["Tanh", "Concat", "Conv"]
    equal(model, after)


def test_a_sum_that_is_read_elsewhere_stays(build: Build) -> None:
    nodes = [*_skips()[:-1], _node("Conv", "sum w3 b3", "p"), _node("Concat", "p sum", "y", axis=1)]
    assert merge_pointwise(Graph(build(nodes, _SKIPS))) == 0


def test_wide_kernels_stay(build: Build) -> None:
    nodes = _skips()
    nodes[1] = _node("Conv", "x w1 b1", "first", pads=[1, 1])
    assert merge_pointwise(Graph(build(nodes, _SKIPS | {"w1": (8, 4, 3)}))) == 0


def test_a_merger_that_would_be_larger_stays(build: Build) -> None:
    shapes = {"w1": (2, 4, 1), "b1": (2,), "w2": (2, 4, 1), "w3": (9, 2, 1), "b3": (9,)}
    assert merge_pointwise(Graph(build(_skips(), shapes))) == 0
