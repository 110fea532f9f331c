"""Forms that exporters and optimizers write become plain operators, equal to them."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from tests.graphs import make_node, operators_of
from tests.onnx.rewrite.along_time import build, rewritten
from tts_compress.onnx.graph import Graph, infer_types
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.quantize.convert import convertible_graph
from tts_compress.onnx.quantize.prepare import optimize
from tts_compress.onnx.rewrite.plain_forms import (
    flatten_convolutions,
    split_fused,
    state_padding,
    unify_activations,
)

_SCALARS = {
    name: np.array(value, np.float32)
    for name, value in {"zero": 0.0, "slope": 0.1, "three": 3.0, "minus": -1.0, "half": 0.5}.items()
}
_SCALED, _TURNED = make_node("Mul", "x slope", "s"), make_node("Mul", "slope x", "s")


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    infer_types(model)
    return model


@pytest.mark.parametrize(
    "nodes",
    [
        [_SCALED, make_node("Max", "s x", "y")],
        [_TURNED, make_node("Max", "x s", "y")],
        [_SCALED, make_node("Greater", "x zero", "c"), make_node("Where", "c x s", "y")],
        [_TURNED, make_node("LessOrEqual", "x zero", "c"), make_node("Where", "c s x", "y")],
        [
            make_node("Mul", "x three", "s"),
            make_node("Less", "x zero", "c"),
            make_node("Where", "c s x", "y"),
        ],
        [make_node("Mul", "x axes", "s"), make_node("Max", "s x", "y")],
        [
            make_node("Relu", "x", "above"),
            make_node("Neg", "x", "n"),
            make_node("Relu", "n", "below"),
            make_node("Mul", "below slope", "s"),
            make_node("Sub", "above s", "y"),
        ],
    ],
)
def test_leaky_relus_are_one_operator(nodes: list[onnx.NodeProto]) -> None:
    constants = _SCALARS | {"axes": np.full((1, 1, 1), 0.1, np.float32)}
    after = rewritten(unify_activations, _typed(build(nodes, {}, constants)))
    assert operators_of(after) == ["LeakyRelu"]


@pytest.mark.parametrize("node", ["Max x zero", "Max zero x", "Clip x zero"])
def test_relus_are_one_operator(node: str) -> None:
    operator, inputs = node.split(maxsplit=1)
    model = _typed(build([make_node(operator, inputs, "y")], {}, _SCALARS))
    assert operators_of(rewritten(unify_activations, model)) == ["Relu"]


@pytest.mark.parametrize(
    "nodes",
    [
        [make_node("Mul", "x each", "s"), make_node("Max", "s x", "y")],
        [make_node("Mul", "x three", "s"), make_node("Max", "s x", "y")],
        [make_node("Mul", "x minus", "s"), make_node("Max", "s x", "y")],
        [_SCALED, make_node("Max", "s half", "y")],
        [_SCALED, make_node("Max", "s x zero", "y")],
        [_SCALED, make_node("Greater", "x half", "c"), make_node("Where", "c x s", "y")],
        [_SCALED, make_node("Greater", "x zero", "c"), make_node("Where", "c s x", "y")],
        [make_node("Clip", "x zero half", "y")],
        [make_node("Max", "x wide", "y")],
        [make_node("Mul", "x wide", "s"), make_node("Max", "s x", "y")],
        [make_node("Max", "lengths none", "i"), make_node("Cast", "i", "y", to=TensorProto.FLOAT)],
    ],
    ids=[
        *("by channel", "steep", "falling", "no activation", "three", "another bend"),
        *("upside down", "bounded", "more axes", "slope of more axes", "integers"),
    ],
)
def test_other_curves_stay(nodes: list[onnx.NodeProto]) -> None:
    constants = _SCALARS | {
        "each": np.array([[0.1], [0.2], [0.1], [0.1]], np.float32),
        "wide": np.zeros((1, 1, 1, 1), np.float32),  # the result has four axes
        "none": np.array(0),
    }
    assert unify_activations(Graph(_typed(build(nodes, {}, constants)))) == 0


_IMAGES = {"w": (6, 4, 1, 3), "b": (6,), "up": (6, 4, 1, 4)}


def _images(axis: int) -> onnx.ModelProto:
    """Convolve, activate, upsample and cut images of one row, or of one column."""

    def pair(value: int, other: int) -> list[int]:
        return [other, value] if axis == 2 else [value, other]

    nodes = [
        make_node("Unsqueeze", "x axis", "image"),
        make_node("Conv", "image w b", "h", pads=pair(1, 0) * 2, kernel_shape=pair(3, 1)),
        make_node("LeakyRelu", "h", "a"),
        make_node("Mul", "a factors", "m"),
        make_node("Concat", "m h", "both", axis=1),
        make_node("Slice", "both three nine channels", "cut"),
        make_node("ConvTranspose", "cut up", "u", strides=pair(2, 1), pads=pair(1, 0) * 2),
        make_node("Squeeze", "u axis", "flat"),
        make_node("Tanh", "flat", "y"),
    ]
    ints = {"axis": axis, "three": 3, "nine": 9, "channels": 1}
    factors = np.random.default_rng(3).normal(size=(6, 1, 1)).astype(np.float32)
    constants: dict[str, Any] = {n: np.array([v]) for n, v in ints.items()} | {"factors": factors}
    generator = np.random.default_rng(0)
    for name, shape in _IMAGES.items():
        weight = generator.normal(size=shape).astype(np.float32)
        turned = weight.ndim == 4 and axis == 3
        constants[name] = weight.swapaxes(2, 3).copy() if turned else weight
    return _typed(build(nodes, {}, constants, batch=1))


@pytest.mark.parametrize("axis", [2, 3], ids=["rows", "columns"])
def test_images_of_one_row_are_convolved_along_time(axis: int) -> None:
    after = rewritten(flatten_convolutions, _images(axis), count=2)
    assert not {"Squeeze", "Unsqueeze"} & {*operators_of(after)}


def test_an_activation_of_rows_is_one_operator_along_time() -> None:
    nodes = [
        make_node("Unsqueeze", "x axis", "image"),
        make_node("Conv", "image w", "h", pads=[0, 1, 0, 1]),
        make_node("Mul", "h slope", "s"),
        make_node("Greater", "h zero", "c"),
        make_node("Where", "c h s", "a"),
        make_node("Conv", "a w", "z", pads=[0, 1, 0, 1]),
        make_node("Squeeze", "z axis", "y"),
    ]
    model = build(nodes, {"w": (4, 4, 1, 3)}, _SCALARS | {"axis": np.array([2])}, batch=1)
    graph = convertible_graph(model, "qoperator", batch_one=True)
    assert operators_of(graph.finish())[:3] == ["Conv", "LeakyRelu", "Conv"]


def test_images_of_several_rows_stay() -> None:
    model = _images(2)
    model.graph.node[1].attribute.extend([onnx.helper.make_attribute("strides", [2, 1])])
    model.graph.node[6].input[1] = "computed"
    model.graph.node.insert(0, make_node("Neg", "up", "computed"))
    assert flatten_convolutions(Graph(model)) == 0


_ROW, _CONVOLVED = make_node("Unsqueeze", "x two", "image"), make_node("Conv", "image w", "h")


@pytest.mark.parametrize(
    ("nodes", "count"),
    [
        (
            [
                make_node("ReduceMean", "x", "mean", axes=[2], keepdims=0),
                make_node("Unsqueeze", "mean rest", "image"),
                make_node("Conv", "image w", "y"),
            ],
            1,
        ),
        ([make_node("Reshape", "x rows", "image"), make_node("Conv", "image narrow", "y")], 0),
        (
            [
                make_node("Shape", "x", "size"),
                make_node("Slice", "size zero two", "leading"),
                make_node("Concat", "leading one minus", "computed", axis=0),
                make_node("Reshape", "x computed", "image"),
                make_node("Conv", "image w", "y"),
            ],
            0,
        ),
        ([_ROW, make_node("ConvTranspose", "image high", "y")], 0),
        ([_ROW, make_node("Conv", "image w", "y", pads=[1, 0, 0, 0])], 0),
        ([_ROW, make_node("Conv", "image w", "y", pads=[0, 0, 1, 0])], 0),
        ([_ROW, _CONVOLVED, make_node("Mul", "h tall", "y")], 1),
        ([_ROW, _CONVOLVED, make_node("Mul", "h five", "y")], 1),
        ([_ROW, _CONVOLVED, make_node("Slice", "h zero one three", "y")], 1),
        ([_ROW, _CONVOLVED, make_node("Slice", "h zero one", "y")], 1),
        ([_ROW, _CONVOLVED, make_node("Transpose", "h", "y", perm=[0, 3, 2, 1])], 1),
        ([_ROW, _CONVOLVED, make_node("Squeeze", "h", "y")], 1),
    ],
    ids=[
        *("two axes at once", "two rows", "a computed shape", "a kernel of two rows"),
        *("a row before", "a row behind", "a factor for each row", "a factor of five axes"),
        *("cut along time", "cut along the first axis", "turned", "squeezed everywhere"),
    ],
)
def test_only_rows_are_taken_for_signals(nodes: list[onnx.NodeProto], count: int) -> None:
    ints = {"zero": 0, "one": 1, "two": 2, "three": 3, "minus": -1}
    constants: dict[str, Any] = {name: np.array([value]) for name, value in ints.items()}
    constants |= {"rest": np.array([2, 3]), "rows": np.array([1, 2, 2, -1])}
    constants |= {"tall": np.ones((5, 1), np.float32), "five": np.ones((1,) * 5, np.float32)}
    shapes = {"w": (4, 4, 1, 1), "narrow": (4, 2, 1, 1), "high": (4, 4, 2, 1)}
    rewritten(flatten_convolutions, _typed(build(nodes, shapes, constants, batch=1)), count=count)


@pytest.mark.parametrize("axis", [0, 1])
def test_another_axis_of_size_one_is_no_row(axis: int) -> None:
    """Channels are the second axis only where the axis that is put in stands behind them."""
    nodes = [
        make_node("Unsqueeze", "x behind", "image"),
        make_node("Conv", "image w", "h", pads=[0, 1, 0, 1]),
        make_node("Squeeze", "h behind", "flat"),
        make_node("Unsqueeze", "flat axis", "other"),
        make_node("Concat", "other other", "y", axis=1),
    ]
    constants = {"behind": np.array([2]), "axis": np.array([axis])}
    rewritten(flatten_convolutions, _typed(build(nodes, {"w": (4, 4, 1, 3)}, constants, batch=1)))


def _layers() -> onnx.ModelProto:
    nodes = [
        make_node("Conv", "x w b", "h", "/net/conv/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "h", "a", alpha=0.2),
        make_node("Transpose", "a", "t", perm=[0, 2, 1]),
        make_node("MatMul", "t m", "p", "/net/out/MatMul"),
        make_node("Transpose", "p", "y", perm=[0, 2, 1]),
    ]
    return build(nodes, {"w": (6, 4, 3), "b": (6,), "m": (6, 5)}, batch=1)


def test_what_the_runtime_fused_is_split() -> None:
    fused = optimize(_layers(), fuse=True)
    assert operators_of(fused)[0] == "FusedConv"
    after = rewritten(split_fused, fused)
    assert operators_of(after)[:2] == ["Conv", "LeakyRelu"]
    nodes = convertible_graph(fused, "qoperator", batch_one=True).nodes
    assert [n.name for n in nodes if n.op_type == "Conv"] == ["/net/conv/Conv"]


def test_fused_bounds_are_inputs_again() -> None:
    """The layer stayed as it was, and the finished graph held more than was promised."""
    fused: dict[str, Any] = {"activation": "Clip", "activation_params": [-0.5, 0.5]}
    node = make_node("FusedConv", "x w b", "y", domain="com.microsoft", pads=[1, 1], **fused)
    model = build([node], {"w": (4, 4, 3), "b": (4,)})
    model.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1)])
    assert operators_of(rewritten(split_fused, model)) == ["Conv", "Clip"]


def test_fused_sums_and_factors_are_kept() -> None:
    params: dict[str, Any] = {
        "activation": "LeakyRelu",
        "activation_params": [0.3],
        "domain": "com.microsoft",
    }
    turned: dict[str, Any] = {"transB": 1, "alpha": 0.5, "domain": "com.microsoft"}
    nodes = [
        make_node("FusedConv", "x w b x", "h", pads=[1, 1], **params),
        make_node("Transpose", "h", "t", perm=[0, 2, 1]),
        make_node("FusedMatMul", "t m", "y", **turned),
    ]
    model = build(nodes, {"w": (4, 4, 3), "b": (4,), "m": (5, 4)})
    model.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1)])
    after = rewritten(split_fused, model, count=2)
    assert operators_of(after) == ["Conv", "Add", "LeakyRelu", "Transpose", "MatMul"]


def test_a_fused_product_keeps_no_parameter_of_its_activation() -> None:
    params: dict[str, Any] = {f"activation_{name}": 0.3 for name in ("alpha", "beta", "gamma")}
    nodes = [
        make_node("Reshape", "x rows", "r"),
        make_node(
            "FusedGemm", "r m b", "y", domain="com.microsoft", activation="HardSigmoid", **params
        ),
    ]
    model = build(nodes, {"m": (4, 5), "b": (5,)}, {"rows": np.array([-1, 4])})
    model.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1)])
    assert operators_of(rewritten(split_fused, model)) == ["Reshape", "Gemm", "HardSigmoid"]


@pytest.mark.parametrize(
    ("node", "weights"),
    [
        (make_node("Gelu", "x", "y", domain="com.microsoft"), {}),
        (make_node("FusedMatMul", "x x", "y", domain="com.microsoft", transB=1), {}),
        (make_node("FusedMatMul", "x m", "y", domain="com.microsoft"), {"m": (2, 6, 5)}),
        (make_node("FusedConv", "x w", "y", domain="com.microsoft"), {"w": (4, 4, 1)}),
    ],
    ids=["another operator", "a product of computed tensors", "a matrix for each text", "a layer"],
)
def test_other_operators_of_the_runtime_stay(
    node: onnx.NodeProto, weights: dict[str, tuple[int, ...]]
) -> None:
    assert split_fused(Graph(build([node], weights))) == 0


@pytest.mark.parametrize("alpha", [1.0, 1.702])
def test_a_swish_is_a_product(alpha: float) -> None:
    node = make_node("QuickGelu", "x", "y", domain="com.microsoft", alpha=alpha)
    model = build([node], {})
    model.opset_import.extend([onnx.helper.make_opsetid("com.microsoft", 1)])
    scaled = ["Mul"] if alpha != 1 else []
    assert operators_of(rewritten(split_fused, model)) == [*scaled, "Sigmoid", "Mul"]


@pytest.mark.parametrize("kind", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("operator", "shape", "stated"),
    [
        ("Conv", (6, 4, 2), {}),
        ("Conv", (6, 4, 1), {"dilations": [1]}),
        ("ConvTranspose", (4, 6, 5), {"strides": [2]}),
        ("ConvTranspose", (4, 6, 4), {"strides": [2], "output_padding": [1]}),
    ],
)
def test_padding_of_a_kind_is_stated(
    operator: str, shape: tuple[int, ...], stated: dict[str, Any], kind: str
) -> None:
    if kind == "VALID" and shape[2] == 2:
        shape = (*shape[:2], 1)  # the shortest signal has one frame
    model = build([make_node(operator, "x w", "y", auto_pad=kind, **stated)], {"w": shape})
    after = rewritten(state_padding, model)
    assert attribute(after.graph.node[0], "auto_pad", "") == "NOTSET"


@pytest.mark.parametrize(
    ("operator", "shape", "stated", "count"),
    [
        ("Conv", (6, 4, 3), {"auto_pad": "SAME_UPPER"}, 0),  # depends on the length
        ("Conv", (6, 4, 3), {"auto_pad": "VALID"}, 1),
        ("ConvTranspose", (4, 6, 3), {"auto_pad": "SAME_UPPER", "output_shape": [9]}, 0),
        ("ConvTranspose", (4, 6, 1), {"auto_pad": "SAME_UPPER"}, 0),  # would be negative
    ],
)
def test_padding_is_stated_only_where_it_is_a_number(
    operator: str, shape: tuple[int, ...], stated: dict[str, Any], count: int
) -> None:
    node = make_node(operator, "x w", "y", strides=[2], **stated)
    assert state_padding(Graph(build([node], {"w": shape}))) == count
