"""Rewrites of a few nodes: equal where they apply, refused where that cannot be proven."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import make_node, operators_of
from tests.onnx.rewrite.along_time import build, rewritten
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.rewrite.convolutions import (
    fold_cropping,
    fold_padding,
    merge_pointwise,
    split_convolutions,
)
from tts_compress.onnx.rewrite.eliminate_identity import eliminate_identity

_LAYER = {"w": (6, 4, 3), "b": (6,)}
_CUTS = {
    name: np.array([value])
    for name, value in {"zero": 0, "three": 3, "six": 6, "one": 1, "two": 2}.items()
}
_SKIPS = {"w1": (8, 4, 1), "b1": (8,), "w2": (8, 4, 1), "w3": (2, 8, 1), "b3": (2,)}


def _zeros(
    like: str,
    value: float = 0.0,
    *,
    before: Sequence[onnx.NodeProto] = (),
    to: str = "h",
    **part: Any,
) -> list[onnx.NodeProto]:
    """Add zeros of the shape of a tensor, or of a part of that, at run time."""
    filling = helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
    return [
        make_node("Conv", "x w b", "h", pads=[1, 1]),
        *before,
        make_node("Shape", like, "shape", **part),
        make_node("ConstantOfShape", "shape", "zeros", value=filling),
        make_node("Add", f"zeros {to}", "sum"),
        make_node("Tanh", "sum", "y"),
    ]


_MONO = make_node("Conv", "x w1 b1", "mono", pads=[1, 1])
_LAYERS = {"w": (6, 4, 3), "b": (6,), "w1": (1, 4, 3), "b1": (1,)}


def _zeros_of_one_channel(cut: str) -> list[onnx.NodeProto]:
    """Add zeros of one channel to a slice of six."""
    return _zeros("mono", before=[_MONO, make_node("Slice", f"h {cut}", "part")], to="part")


def _padded(mode: str = "constant", **conv: Any) -> list[onnx.NodeProto]:
    return [
        make_node("Pad", "x pads value", "padded", mode=mode),
        make_node("Conv", "padded w b", "y", **conv),
    ]


def _pads(*pads: int, value: float = 0.0) -> dict[str, np.ndarray]:
    return {"pads": np.array(pads), "value": np.array(value, np.float32)}


def _sliced(**conv: Any) -> list[onnx.NodeProto]:
    """Read a convolution in slices."""
    return [
        make_node("Conv", "x w b", "h", **conv),
        make_node("Slice", "h zero three one one", "left"),
        make_node("Slice", "h three six one one", "right"),
        make_node("Tanh", "left", "t"),
        make_node("Mul", "t right", "y"),
    ]


def _skips(**conv: Any) -> list[onnx.NodeProto]:
    """Project a sum of projections."""
    return [
        make_node("Tanh", "x", "t"),
        make_node("Conv", "x w1 b1", "first", **conv),
        make_node("Conv", "t w2", "second"),
        make_node("Add", "first second", "sum"),
        make_node("Conv", "sum w3 b3", "y"),
    ]


@pytest.mark.parametrize(
    ("before", "like"),
    [
        (None, "h"),
        (make_node("Slice", "h last first one last", "turned"), "turned"),
        (make_node("Mul", "h factor", "scaled"), "scaled"),
        (make_node("Mul", "factor h", "scaled"), "scaled"),
        (make_node("Mul", "h h", "squared"), "squared"),
    ],
    ids=["itself", "turned channels", "a number's product", "its product", "a product of two"],
)
def test_zeros_of_the_same_shape_are_dropped(before: onnx.NodeProto | None, like: str) -> None:
    constants = _CUTS | {"last": np.array([-1]), "first": np.array([-(2**31)])}
    constants["factor"] = np.array(0.5, np.float32)
    model = build(_zeros(like, before=[before] if before else []), _LAYER, constants)
    assert operators_of(rewritten(eliminate_identity, model)) == ["Conv", "Tanh"]


@pytest.mark.parametrize(("curve", "count"), [("Exp", 1), ("Tanh", 0)])
def test_a_scale_of_one_is_dropped(curve: str, count: int) -> None:
    """A flow that only shifts scales by exp(-0)."""
    nodes = [
        make_node("Conv", "x w b", "h", pads=[1, 1]),
        make_node("Shape", "h", "shape"),
        make_node("ConstantOfShape", "shape", "zeros"),
        make_node("Neg", "zeros", "negative"),
        make_node(curve, "negative", "scale"),
        make_node("Mul", "h scale", "scaled"),
        make_node("Tanh", "scaled", "y"),
    ]
    rewritten(eliminate_identity, build(nodes, _LAYER), count)


@pytest.mark.parametrize("part", ["left", "right"])
def test_zeros_of_a_part_are_dropped(part: str) -> None:
    split = make_node("Split", "h sizes", "left right", axis=1)
    model = build(_zeros(part, before=[split], to=part), _LAYER, {"sizes": np.array([2, 4])})
    assert operators_of(rewritten(eliminate_identity, model)) == ["Conv", "Split", "Tanh"]


@pytest.mark.parametrize("own", [{}, {"pads": [1, 0]}], ids=["unpadded", "padded"])
def test_padding_is_folded(own: dict[str, Any]) -> None:
    after = rewritten(fold_padding, build(_padded(**own), _LAYER, _pads(0, 0, 2, 0, 0, 1)))
    assert operators_of(after) == ["Conv"]


def _cropped(operator: str, begin: int, end: int, **stated: Any) -> list[onnx.NodeProto]:
    """Cut the time of what a convolution makes, by a number of steps at each side."""
    ends = f"c{begin} e{end} two"
    return [make_node(operator, "x w b", "h", **stated), make_node("Slice", f"h {ends}", "y")]


def _cut(slices: str) -> list[onnx.NodeProto]:
    """Cut what a padded convolution makes by other values."""
    return [make_node("Conv", "x w b", "h", pads=[2, 2]), make_node("Slice", f"h {slices}", "y")]


_ENDS = {f"c{n}": np.array([n]) for n in range(3)} | {f"e{n}": np.array([-n]) for n in (1, 2)}
_ENDS |= {"e0": np.array([2**63 - 1]), "two": np.array([2])}
_WHOLE_UP = {"w": (4, 6, 4), "b": (6,)}


@pytest.mark.parametrize("ends", [(0, 2), (2, 0), (1, 1)])
def test_cuts_are_folded(ends: tuple[int, int]) -> None:
    causal = build(_cropped("Conv", *ends, pads=[2, 2]), _LAYER, _ENDS)
    assert operators_of(rewritten(fold_cropping, causal)) == ["Conv"]
    up = build(_cropped("ConvTranspose", *ends, strides=[2]), _WHOLE_UP, _ENDS)
    assert operators_of(rewritten(fold_cropping, up)) == ["ConvTranspose"]


def test_negative_padding_is_folded() -> None:
    nodes = [
        make_node("ConvTranspose", "x w b", "h", strides=[2]),
        make_node("Pad", "h pads value", "y"),
    ]
    after = rewritten(fold_cropping, build(nodes, _WHOLE_UP, _pads(0, 0, -1, 0, 0, -1)))
    assert operators_of(after) == ["ConvTranspose"]


def test_sliced_convolutions_are_split() -> None:
    nodes = _sliced(pads=[2, 2], dilations=[2])
    after = rewritten(split_convolutions, build(nodes, _LAYER, _CUTS))
    assert sorted(operators_of(after)) == ["Conv", "Conv", "Mul", "Tanh"]


@pytest.mark.parametrize("sizes", ["", " sizes"], ids=["halves", "sizes"])
def test_convolutions_are_split_where_split(sizes: str) -> None:
    nodes = [
        make_node("Conv", "x w b", "h", pads=[1, 1]),
        make_node("Split", f"h{sizes}", "left right", axis=1),
        *_sliced()[3:],
    ]
    constants = {"sizes": np.array([3, 3])}
    after = rewritten(split_convolutions, build(nodes, _LAYER, constants))
    assert sorted(operators_of(after)) == ["Conv", "Conv", "Mul", "Tanh"]


def test_projections_are_merged() -> None:
    after = rewritten(merge_pointwise, build(_skips(), _SKIPS))
    assert operators_of(after) == ["Tanh", "Concat", "Conv"]


def test_a_part_that_is_repeated_over_time_stays_apart() -> None:
    """A speaker's projection was laid beside those of frames, and the graph could not run."""
    nodes = _skips()
    nodes[0] = make_node("ReduceMax", "x", "t", axes=[2])
    graph = Graph(build(nodes, _SKIPS))
    graph.infer_types()
    assert merge_pointwise(graph) == 0


_OTHER_READER = [
    _padded()[0],
    make_node("Conv", "padded w b", "h"),
    make_node("Relu", "padded", "r"),
    make_node("Concat", "h r", "y", axis=2),
]
_LONGER = [make_node("Conv", "x w b", "longer", pads=[2, 2]), *_zeros("longer")]
_HALVES = [
    make_node("Conv", "x w b", "h"),
    make_node("Split", "h", "left right", axis=1),
    make_node("Mul", "left right", "y"),
]
_WHOLE = [
    *_sliced()[:-1],
    make_node("Mul", "t right", "m"),
    make_node("Concat", "m h", "y", axis=1),
]
_TIME = [_sliced()[0], make_node("Slice", "h zero three two one", "s"), make_node("Tanh", "s", "y")]
_UNKNOWN = [*_sliced()[:2], make_node("Slice", "h three lengths one", "right"), *_sliced()[3:]]
_READ_TWICE = [
    *_skips()[:-1],
    make_node("Conv", "sum w3 b3", "p"),
    make_node("Concat", "p sum", "y", axis=1),
]
_GATED = [make_node("Tanh", "left", "t"), make_node("Mul", "t right", "y")]
_SPLIT_TIME = [_sliced()[0], make_node("Split", "h", "left right", axis=2), *_GATED]
_SPLIT_ANYHOW = [_sliced()[0], make_node("Split", "h lengths", "left right", axis=1), *_GATED]
_AXES = [make_node("Pad", "x pads value axes", "padded"), _padded()[1]]
_LARGER = {"w1": (2, 4, 1), "b1": (2,), "w2": (2, 4, 1), "w3": (9, 2, 1), "b3": (9,)}
_WIDE = {"w": (6, 5, 3), "b": (6,)}


@pytest.mark.parametrize(
    ("rewrite", "nodes", "weights", "constants"),
    [
        # x has as many frames, but its channels are unknown; a sum could be wider.
        (eliminate_identity, _zeros("x"), {"w": (1, 4, 3), "b": (1,)}, {}),
        (eliminate_identity, _LONGER, _LAYER, {}),
        (eliminate_identity, _zeros("h", value=1.0), _LAYER, {}),
        (eliminate_identity, _zeros("h", start=1), _LAYER, {}),
        (eliminate_identity, _zeros("h", end=2), _LAYER, {}),
        (
            eliminate_identity,
            _zeros("wide", before=[_MONO, make_node("Add", "mono rows", "wide")], to="mono"),
            _LAYERS | {"rows": (6, 1)},
            {},
        ),
        (
            eliminate_identity,
            _zeros("wide", before=[_MONO, make_node("Add", "mono h", "wide")], to="mono"),
            _LAYERS,
            {},
        ),
        (eliminate_identity, _zeros_of_one_channel("zero one two"), _LAYERS, _CUTS),
        (
            eliminate_identity,
            _zeros(
                "mono",
                before=[_MONO, make_node("Split", "h sizes", "left right", axis=2)],
                to="left",
            ),
            _LAYERS,
            {"sizes": np.array([1, 6])},
        ),
        (
            eliminate_identity,
            [*_zeros("h")[:3], make_node("Sub", "zeros h", "sum"), make_node("Tanh", "sum", "y")],
            _LAYER,
            {},
        ),
        (eliminate_identity, _HALVES, _LAYER, {}),
        (eliminate_identity, _SPLIT_ANYHOW, _LAYER, {}),
        (
            eliminate_identity,
            _zeros(
                "left",
                before=[
                    make_node("Split", "h sizes", "left right", axis=1),
                    make_node("Slice", "h zero one two", "step"),
                    make_node("Split", "step sizes", "first second", axis=1),
                ],
                to="first",
            ),
            _LAYER,
            _CUTS | {"sizes": np.array([2, 4])},
        ),
        (eliminate_identity, _zeros_of_one_channel("zero one"), _LAYERS, _CUTS),
        (eliminate_identity, _zeros_of_one_channel("zero lengths two"), _LAYERS, _CUTS),
        (
            eliminate_identity,
            _zeros("h", before=[make_node("Slice", "h none both axes", "part")], to="part"),
            _LAYERS,
            {n: np.array(v) for n, v in (("none", [0, 0]), ("both", [6, 1]), ("axes", [1, 2]))},
        ),
        (fold_padding, _padded(), _LAYER, _pads(0, 0, 2, 0, 0, 1, value=0.5)),
        (fold_padding, _padded("reflect"), _LAYER, _pads(0, 0, 2, 0, 0, 1)),
        (fold_padding, _padded(), _WIDE, _pads(0, 1, 2, 0, 0, 1)),
        (fold_padding, _padded(), _WIDE, _pads(0, 0, 2, 0, 1, 1)),
        (fold_padding, _AXES, _LAYER, _pads(0, 0, 2, 0, 0, 1) | {"axes": np.arange(3)}),
        (fold_padding, _padded(), _LAYER, _pads(0, 0, -1, 0, 0, 2)),
        (fold_padding, _OTHER_READER, {"w": (4, 4, 3), "b": (4,)}, _pads(0, 0, 1, 0, 0, 1)),
        (
            fold_padding,
            _padded(auto_pad="SAME_UPPER", strides=[2]),
            _LAYER,
            _pads(0, 0, 2, 0, 0, 1),
        ),
        (
            fold_padding,
            [make_node("Pad", "x pads value", "y"), make_node("Conv", "y w b", "h")],
            _LAYER,
            _pads(0, 0, 2, 0, 0, 1),
        ),
        (fold_padding, [make_node("Pad", "x lengths", "padded"), _padded()[1]], _LAYER, {}),
        (fold_cropping, _cropped("Conv", 0, 2, pads=[1, 1]), _LAYER, _ENDS),
        (
            fold_cropping,
            [
                *_cropped("Conv", 0, 2, pads=[2, 2]),
                make_node("Relu", "h", "r"),
                make_node("Concat", "y r", "both", axis=2),
            ],
            _LAYER,
            _ENDS,
        ),
        (
            fold_cropping,
            _cropped("ConvTranspose", 0, 2, strides=[2], output_shape=[12]),
            _WHOLE_UP,
            _ENDS,
        ),
        (
            fold_cropping,
            [make_node("Conv", "x w b", "h", pads=[1, 1]), make_node("Pad", "h pads value", "y")],
            _LAYER,
            _pads(0, 0, 2, 0, 0, 1),
        ),
        (fold_cropping, _cropped("Conv", 0, 1, pads=[1, 1], strides=[2]), _LAYER, _ENDS),
        (fold_cropping, _cut("c0 e2 one"), _LAYER, _ENDS | _CUTS),
        (fold_cropping, _cut("c0 e0 two two"), _LAYER, _ENDS),
        (fold_cropping, _cut("e2 e0 two"), _LAYER, _ENDS),
        (fold_cropping, _cut("c0 c2 two"), _LAYER, _ENDS),
        (fold_cropping, _cut("c0 lengths two"), _LAYER, _ENDS),
        (fold_cropping, _cut("c0 e2"), _LAYER, _ENDS),
        (
            fold_cropping,
            _cut("none ends axes"),
            _LAYER,
            {n: np.array(v) for n, v in (("none", [0, 0]), ("ends", [-2, 3]), ("axes", [2, 1]))},
        ),
        (split_convolutions, _SPLIT_TIME, _LAYER, {}),
        (split_convolutions, _SPLIT_ANYHOW, _LAYER, {}),
        (split_convolutions, _WHOLE, _LAYER, _CUTS),
        (
            split_convolutions,
            [
                make_node("Conv", "x w b", "y"),
                make_node("Slice", "y zero three one one", "left"),
                make_node("Slice", "y three six one one", "right"),
            ],
            _LAYER,
            _CUTS,
        ),
        (split_convolutions, _TIME, _LAYER, _CUTS),
        (split_convolutions, _UNKNOWN, _LAYER, _CUTS),
        (split_convolutions, _HALVES, _LAYER, {}),
        (split_convolutions, _sliced(group=2), {"w": (6, 2, 3), "b": (6,)}, _CUTS),
        (merge_pointwise, _READ_TWICE, _SKIPS, {}),
        (merge_pointwise, _skips(pads=[1, 1]), _SKIPS | {"w1": (8, 4, 3)}, {}),
        (merge_pointwise, _skips(), _LARGER, {}),
    ],
    ids=[
        *("zeros that may broadcast", "zeros that may be longer", "ones"),
        *("zeros of the last axes", "zeros of the first axes", "wider by a constant"),
        *("wider by a tensor", "a step of time", "a part of time", "zeros minus a tensor"),
        *("parts without sizes", "parts of open sizes"),
        *("a part of a step", "a cut without axes", "an open cut"),
        "a cut of two axes",
        *("padding with no zeros", "reflections", "padded channels", "channels padded behind"),
        *("named axes", "a cut", "padding read twice", "a kind of padding", "padding returned"),
        *("computed padding", "cut more than padded", "a whole read elsewhere", "stated lengths"),
        *("padded behind the layer", "cut behind strides", "cut channels", "each second step"),
        *("the last steps", "the first steps", "as many as are asked for"),
        *("a cut of the first axis", "a cut of steps and channels"),
        *("halves of time", "parts of any size"),
        *("read whole", "returned whole", "slices of time", "open ends"),
        *("halves without a gate", "groups"),
        *("a sum that is read elsewhere", "wide kernels", "a merger that would be larger"),
    ],
)
def test_what_cannot_be_proven_equal_stays(
    rewrite: Callable[[Graph], int], nodes: Any, weights: Any, constants: Any
) -> None:
    assert rewrite(Graph(build(nodes, weights, constants))) == 0
