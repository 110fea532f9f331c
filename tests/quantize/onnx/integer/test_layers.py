"""Each integer layer by itself, against the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.quantize.onnx.integer import IntegerPlan, emit_integer, observed_tensors

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


def _integer(model: onnx.ModelProto, *convolutions: str, **choices: Any) -> onnx.ModelProto:
    plan = IntegerPlan(convolutions=frozenset(convolutions), **choices)
    names = [name for name in observed_tensors(model, plan) if name != "x"]
    values = _run(model, names, 50) if names else []
    ranges = {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}
    return emit_integer(model, plan, ranges | {"x": (-4.0, 4.0)})


def _types(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.fixture
def close(snr_db: Callable[[Any, Any], float]) -> Callable[..., None]:
    """Return what asserts that an integer graph is a number of dB above its error."""

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


@pytest.mark.parametrize("signed", [False, True])
def test_gates_of_a_wavenet(close: Callable[..., None], signed: bool) -> None:
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
    integer = _integer(model, "h", "g", "y", signed=signed)
    assert not {"Tanh", "Sigmoid", "Mul", "Conv", "DequantizeLinear"} & set(_types(integer))
    close(model, integer, at_least=33)


def test_gates_in_real_numbers(close: Callable[..., None]) -> None:
    """What is rounded before is real again for the gate, and rounded once more behind it."""
    nodes = [
        _node("Conv", "x w1", "h", pads=[2, 2]),
        _node("Conv", "x w2", "g", pads=[2, 2]),
        _node("Tanh", "h", "t"),
        _node("Sigmoid", "g", "s"),
        _node("Mul", "t s", "m"),
        _node("Conv", "m w3", "y"),
    ]
    model = _model(nodes, {"w1": (16, 8, 5), "w2": (16, 8, 5), "w3": (24, 16, 1)})
    integer = _integer(model, "h", "g", "y", gates="real")
    assert {"Tanh", "Sigmoid", "Mul"} <= set(_types(integer))
    assert "QLinearSigmoid" not in _types(integer)
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


def test_small_weights_for_processors_whose_sums_saturate() -> None:
    model = _model([_node("Conv", "x w", "y", pads=[1, 1])], {"w": (16, 8, 3)})
    plan = IntegerPlan(convolutions=frozenset({"y"}), weight_limit=63)
    integer = emit_integer(model, plan, {"x": (-4.0, 4.0)})
    weights = [numpy_helper.to_array(i) for i in integer.graph.initializer if i.name == "y.weight"]
    assert np.abs(weights[0]).max() == 63
