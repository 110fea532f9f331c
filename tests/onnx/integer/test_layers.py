"""Each integer layer by itself, against the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import emit_integer, observed_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], output, **attributes)


def _model(
    nodes: Sequence[onnx.NodeProto],
    weights: dict[str, tuple[int, ...]],
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    values = {
        name: generator.normal(scale=1 / np.sqrt(np.prod(shape[1:])), size=shape)
        for name, shape in weights.items()
    }
    constants = (constants or {}) | {n: v.astype(np.float32) for n, v in values.items()}
    graph = helper.make_graph(
        list(nodes),
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, "time"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def _run(model: onnx.ModelProto, names: list[str], length: int) -> list[np.ndarray]:
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    extra = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names if n != "y"]
    tapped.graph.output.extend(extra)
    session = ort.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(7).normal(size=(2, 8, length)).astype(np.float32)
    return [np.asarray(value) for value in session.run(names, {"x": x})]


def _integer(model: onnx.ModelProto, *convolutions: str) -> onnx.ModelProto:
    wanted = frozenset(convolutions)
    names = [name for name in observed_tensors(model, wanted) if name != "x"]
    values = _run(model, names, 50) if names else []
    ranges = {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}
    graph = Graph(copy_model(model))
    emit_integer(graph, wanted, ranges | {"x": (-4.0, 4.0)})
    return graph.model


def _types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture
def close(snr_db: Callable[[Any, Any], float]) -> Callable[..., None]:
    """Return a function that asserts that an integer graph is a number of dB above its error."""

    def check(model: onnx.ModelProto, integer: onnx.ModelProto, *, at_least: float) -> None:
        for length in (3, 50):
            (expected,), (found,) = (_run(m, ["y"], length) for m in (model, integer))
            assert expected.shape == found.shape
            assert snr_db(expected, found) > at_least

    return check


@pytest.mark.parametrize("channels", [3, 8, 18, 32])
def test_any_number_of_channels(close: Callable[..., None], channels: int) -> None:
    """Kernels want 16 outputs and fours; what is missing is filled up and cut off again."""
    nodes = [
        _node("Conv", "x w1 b1", "h", pads=[1, 1]),
        _node("LeakyRelu", "h", "a", alpha=0.1),
        _node("Conv", "a w2", "g", pads=[2, 2], dilations=[2]),
        _node("Add", "g h", "s"),
        _node("Tanh", "s", "y"),
    ]
    shapes = {"w1": (channels, 8, 3), "b1": (channels,), "w2": (channels, channels, 3)}
    model = _model(nodes, shapes)
    close(model, _integer(model, "h", "g"), at_least=30)


def test_gates_of_a_wavenet(close: Callable[..., None]) -> None:
    nodes = [
        _node("Conv", "x w1 b1", "h", pads=[2, 2]),
        _node("Conv", "x w2", "g", pads=[2, 2]),
        _node("Tanh", "h", "t"),
        _node("Sigmoid", "g", "s"),
        _node("Mul", "t s", "m"),
        _node("Concat", "m t", "c", axis=1),
        _node("Conv", "c w3 b3", "y"),
    ]
    shapes = {"w1": (16, 8, 5), "b1": (16,), "w2": (16, 8, 5), "w3": (24, 32, 1), "b3": (24,)}
    model = _model(nodes, shapes)
    integer = _integer(model, "h", "g", "y")
    assert not {"Tanh", "Sigmoid", "Mul", "Conv", "DequantizeLinear"} & set(_types(integer))
    close(model, integer, at_least=33)


def test_a_relu_costs_nothing(close: Callable[..., None]) -> None:
    """Codes that begin at zero clip by themselves what lies below."""
    nodes = [
        _node("Conv", "x w1 b1", "h", pads=[1, 1]),
        _node("Relu", "h", "r"),
        _node("Conv", "r w2", "y", pads=[1, 1]),
    ]
    model = _model(nodes, {"w1": (32, 8, 3), "b1": (32,), "w2": (16, 32, 3)})
    integer = _integer(model, "h", "y")
    assert "Max" not in _types(integer)
    close(model, integer, at_least=38)


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_results_read_as_real_numbers_are_not_rounded(
    close: Callable[..., None], kernel: int
) -> None:
    """Only the input and the weights are: 8 bits of a Gaussian's range leave some 40 dB."""
    nodes = [_node("Conv", "x w b", "y", pads=[kernel // 2, kernel // 2])]
    model = _model(nodes, {"w": (16, 8, kernel), "b": (16,)})
    integer = _integer(model, "y")
    assert "QLinearConv" not in _types(integer)
    close(model, integer, at_least=38)


@pytest.mark.parametrize("outputs", [1, 2])
def test_audio_is_made_in_blocks(close: Callable[..., None], outputs: int) -> None:
    nodes = [
        _node("ConvTranspose", "x up bias", "h", strides=[8], pads=[4, 4]),
        _node("LeakyRelu", "h", "a", alpha=0.01),
        _node("Conv", "a w b", "y", pads=[3, 3]),
    ]
    shapes = {"up": (8, 16, 16), "bias": (16,), "w": (outputs, 16, 7), "b": (outputs,)}
    model = _model(nodes, shapes)
    integer = _integer(model, "h", "y")
    assert "MatMulIntegerToFloat" in _types(integer)
    close(model, integer, at_least=33)


def _grouped(outputs: int, taps: int, stride: int, dilation: int = 1) -> onnx.ModelProto:
    reach = dilation * (taps - 1)
    nodes = [
        _node("ConvTranspose", "x up", "h", strides=[stride], pads=[0, 0]),
        _node("LeakyRelu", "h", "a", alpha=0.01),
        _node("Conv", "a w b", "y", pads=[reach // 2, -(-reach // 2)], dilations=[dilation]),
    ]
    shapes = {"up": (8, 8, stride), "w": (outputs, 8, taps), "b": (outputs,)}
    return _model(nodes, shapes)


@pytest.mark.parametrize("length", [1, 5, 33])
@pytest.mark.parametrize(("outputs", "taps"), [(16, 3), (8, 7), (8, 11), (4, 4)])
def test_groups_of_samples_give_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, outputs: int, taps: int, length: int
) -> None:
    """Laid side by side or each for itself, the same integers are multiplied and scaled."""
    model = _grouped(outputs, taps, stride=4)
    together = _integer(model, "h", "y")
    assert _columns(together) == 4 * outputs
    monkeypatch.setattr("tts_compress.onnx.integer.projection._GROUP", 1)
    monkeypatch.setattr("tts_compress.onnx.integer.projection._MANY", 1)
    alone = _integer(model, "h", "y")
    assert _columns(alone) == outputs
    expected, found = (_run(integer, ["y"], length)[0] for integer in (alone, together))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("outputs", "stride", "dilation", "columns"),
    [
        (16, 3, 1, 16),
        (16, 2, 1, 2 * 16),
        (16, 4, 3, 16),
        (20, 4, 1, 20),
        (8, 1, 1, 0),
    ],
    ids=["odd-length", "pairs", "dilated", "wide", "narrow-odd-length"],
)
def test_only_what_can_be_grouped_is(
    outputs: int, stride: int, dilation: int, columns: int
) -> None:
    integer = _integer(_grouped(outputs, 7, stride, dilation), "h", "y")
    assert _columns(integer) == columns
    assert _run(integer, ["y"], 5)[0].shape == (2, outputs, 5 * stride)


def _columns(model: onnx.ModelProto) -> int:
    """Return the width of the matrix that makes the result, 0 where none does."""
    weights = {t.name: t for t in model.graph.initializer}
    made = [n for n in model.graph.node if n.op_type == "MatMulIntegerToFloat"]
    return int(weights[made[0].input[1]].dims[1]) if made else 0


def test_a_factor_moves_no_byte(close: Callable[..., None]) -> None:
    nodes = [
        _node("Conv", "x w1", "h", pads=[1, 1]),
        _node("Mul", "h third", "f"),
        _node("Conv", "f w2", "y", pads=[1, 1]),
    ]
    third = {"third": np.array([1 / 3], np.float32)}
    model = _model(nodes, {"w1": (16, 8, 3), "w2": (16, 16, 3)}, third)
    integer = _integer(model, "h", "y")
    assert "Mul" not in _types(integer)
    close(model, integer, at_least=33)
