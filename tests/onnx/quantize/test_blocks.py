"""Convolutions with a height of one: the same values, by the kernels for blocks of channels."""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.quantize import convert as module
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.quantize.decisions import decide
from tts_compress.onnx.quantize.prepare import open_optimized

_CHANNELS = 32


def _network() -> onnx.ModelProto:
    """Return two components: a residual block of the second reads what the first one adds up."""
    generator = np.random.default_rng(0)
    taps = {"w": 5, "a": 3, "b": 7, "c": 3, "d": 5}
    tensors = {
        name: generator.normal(0, 0.1, (_CHANNELS, _CHANNELS, kernel))
        for name, kernel in taps.items()
    }
    tensors |= {f"{name}.bias": generator.normal(0, 0.1, _CHANNELS) for name in taps}
    tensors |= {
        "up": generator.normal(0, 0.1, (_CHANNELS, _CHANNELS, 4)),
        "last": generator.normal(0, 0.1, (1, _CHANNELS, 7)),
        "third": np.array(1 / 3),
    }
    dilated = {"dilations": [3], "pads": [3, 3]}
    nodes = [
        make_node("Conv", "x w w.bias", "f", "/flow/pre/Conv", pads=[4, 0]),
        make_node("Tanh", "f", "g", "/flow/Tanh"),
        make_node("Add", "f g", "h", "/flow/Add"),
        make_node("ConvTranspose", "h up", "u", "/dec/up/ConvTranspose", strides=[2], pads=[1, 1]),
        make_node("LeakyRelu", "u", "v", "/dec/LeakyRelu", alpha=0.1),
        make_node("Conv", "v a a.bias", "a.out", "/dec/a/Conv", **dilated),
        make_node("Conv", "v b b.bias", "b.out", "/dec/b/Conv", pads=[3, 3]),
        make_node("Sum", "a.out u b.out", "s", "/dec/Sum"),
        make_node("Relu", "s", "r", "/dec/Relu"),
        make_node("Conv", "r c c.bias", "c.out", "/dec/c/Conv", pads=[1, 1], strides=[1]),
        make_node("Add", "c.out s", "t", "/dec/Add"),
        make_node("Mul", "t third", "m", "/dec/Mul"),
        make_node("Conv", "m d d.bias", "d.out", "/dec/d/Conv", pads=[2, 2], strides=[2]),
        make_node("Conv", "d.out last", "y", "/dec/last/Conv", pads=[3, 3]),
    ]
    return make_model(nodes, {"x": ["batch", _CHANNELS, "t"]}, {"y": None}, tensors)


def _feeds(number: int, batch: int = 1) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {"x": generator.normal(size=(batch, _CHANNELS, 40 + number)).astype(np.float32)}


def _finished(model: onnx.ModelProto, *rules: dict[str, Any]) -> onnx.ModelProto:
    form = {"format": "qoperator"} if any("activations" in rule for rule in rules) else {}
    recipe = make_recipe(*rules, **form)
    return convert(prepared(model, recipe, make_calls(_feeds)))


_WEIGHTS = {
    "int8": {"weights": "int8"},
    "int16": {"weights": "int16"},
    "int12": {"weights": "int12"},
    "float16": {"weights": "float16"},
    "bfloat16": {"weights": "bfloat16"},
    "int4": {"weights": "int4", "group_size": 16},
}


_CODED = [
    {"match": "dec.up", "activations": "channels"},
    {"match": "dec.a", "activations": "inputs"},
    {},
]
"""Convolutions in integers beside those in floats."""


@pytest.mark.parametrize(
    "rules", [*([rule] for rule in _WEIGHTS.values()), _CODED], ids=[*_WEIGHTS, "beside integers"]
)
def test_values_are_those_of_three_axes(
    monkeypatch: pytest.MonkeyPatch, rules: list[dict[str, Any]]
) -> None:
    with_height = _finished(_network(), *rules)
    monkeypatch.setattr(module, "add_height", lambda *_: 0)
    without = _finished(_network(), *rules)
    assert len(with_height.graph.node) > len(without.graph.node)
    for batch in (1, 3):
        (wanted,), (got,) = (run_model(m, _feeds(2, batch)) for m in (without, with_height))
        assert got.shape == wanted.shape
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def _blocked(model: onnx.ModelProto) -> int:
    """Return the number of convolutions that the runtime computes in blocks of channels."""
    nodes = open_optimized(model, "a graph")[1].graph.node
    return sum((node.domain, node.op_type) == ("com.microsoft.nchwc", "Conv") for node in nodes)


def _has_blocks() -> bool:
    """Return True where the runtime has such kernels: on x86, in newer ones on ARM64."""
    weights = {"w": np.ones((_CHANNELS, _CHANNELS, 1, 3))}
    shape = {"x": [1, _CHANNELS, 1, "t"]}
    return bool(_blocked(make_model([make_node("Conv", "x w", "y")], shape, {"y": None}, weights)))


@pytest.mark.skipif(not _has_blocks(), reason="this processor has no kernels for blocks")
@pytest.mark.parametrize("rule", _WEIGHTS.values(), ids=_WEIGHTS.keys())
def test_the_runtime_computes_them_in_blocks(rule: dict[str, Any]) -> None:
    assert _blocked(_finished(_network(), rule)) == 5


def test_sums_are_made_in_pairs() -> None:
    """`Sum` takes as long as five of `Add`, and no convolution takes it over."""
    rules = [{"activations": "static"}]
    kinds = [node.op_type for node in _finished(_network(), *rules).graph.node]
    assert "Sum" not in kinds
    assert kinds.count("Add") >= 2


def test_borders_of_components_keep_their_tensors() -> None:
    model = _finished(_network(), {"weights": "int8"})
    inputs = {value.name: value for value in Graph(model).inputs.values()}
    assert [dim.dim_value for dim in inputs["x"].type.tensor_type.shape.dim][1] == _CHANNELS
    (border,) = run_model(model, _feeds(0), "h")
    assert border.shape == (1, _CHANNELS, 40)
    assert Graph(model).producer("s") is None  # read inside only


def _single(shape: tuple[int, ...], **attributes: Any) -> onnx.ModelProto:
    """Return a graph whose only operator with several taps is a convolution of its own kind."""
    generator = np.random.default_rng(0)
    nodes = [
        make_node("Conv", "x first", "h", "/net/first/Conv"),
        make_node("Conv", "h w", "y", "/net/layer/Conv", **attributes),
    ]
    channels = shape[1] * attributes.get("group", 1)
    tensors = {
        "first": generator.normal(size=(channels, _CHANNELS, 1)),
        "w": generator.normal(size=shape),
    }
    return make_model(nodes, {"x": ["batch", _CHANNELS, "t"]}, {"y": None}, tensors)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_single((32, 20, 3)), id="channels that fill no block"),
        pytest.param(_single((32, 8, 3)), id="channels that fill half a block"),
        pytest.param(_single((32, 16, 3), group=2), id="groups"),
        pytest.param(_single((32, 32, 1)), id="one tap"),
        pytest.param(_single((32, 32, 4), auto_pad="SAME_UPPER"), id="padded by the runtime"),
        pytest.param(_single((32, 24, 3), pads=[1, 1]), id="fits"),
    ],
)
def test_others_keep_three_axes(model: onnx.ModelProto, request: pytest.FixtureRequest) -> None:
    finished = _finished(model, {"weights": "int8"})
    kinds = [node.op_type for node in finished.graph.node]
    assert ("Unsqueeze" in kinds) == ("fits" in request.node.name)


def test_a_table_of_three_axes_is_no_convolution() -> None:
    """A row that a single number looks up in it has two axes, and got a height before time."""
    model = _single((32, 32, 3), pads=[1, 1])
    table = np.ones((5, 32, 40), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "table"))
    number = onnx.helper.make_tensor_value_info("third", onnx.TensorProto.INT64, [])
    model.graph.input.append(number)
    model.graph.node.extend(
        [
            make_node("Gather", "table third", "row", "/net/table/Gather"),
            make_node("Add", "y row", "sum", "/net/Add"),
            make_node("Softmax", "y", "shares", "/net/Softmax", axis=2),  # of time, not of height
            make_node("Add", "sum shares", "z", "/net/Add_1"),
        ]
    )
    model.graph.output[0].name = "z"
    decisions = tuple(decide(model, make_recipe({})))
    finished = convert(Conversion(graph=model, decisions=decisions, ranges={}))
    feeds = _feeds(0) | {"third": np.array(3)}
    (wanted,), (got,) = (run_model(m, feeds) for m in (model, finished))
    assert np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_what_durations_depend_on_keeps_three_axes() -> None:
    model = _single((32, 32, 3))
    model.graph.node.extend(
        [
            make_node("ReduceSum", "y", "total", keepdims=0),
            make_node("Ceil", "total", "whole"),
            make_node("Cast", "whole", "length", to=onnx.TensorProto.INT64),
            make_node("Range", "begin length step", "z"),
        ]
    )
    whole = {"begin": np.array(0), "step": np.array(1)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in whole.items())
    model.graph.output[0].CopyFrom(onnx.helper.make_empty_tensor_value_info("z"))
    finished = _finished(model, {"weights": "int8"})
    assert "Unsqueeze" not in [node.op_type for node in finished.graph.node]
