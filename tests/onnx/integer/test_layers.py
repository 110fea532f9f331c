"""Each integer layer by itself, against the real one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tests.onnx.integer.emitted import emitted


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
    return make_model(nodes, {"x": ["batch", 8, "time"]}, {"y": None}, values | (constants or {}))


def _signal(length: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(7).normal(size=(2, 8, length)).astype(np.float32)}


def _integer(model: onnx.ModelProto, *convolutions: str) -> onnx.ModelProto:
    return emitted(model, frozenset(convolutions), _signal(50), x=(-4.0, 4.0))


def _check(model: onnx.ModelProto, integer: onnx.ModelProto, *, at_least: float) -> None:
    """An integer graph is so many dB above its error."""
    for length in (3, 50):
        (expected,), (result,) = (run_model(m, _signal(length)) for m in (model, integer))
        assert expected.shape == result.shape
        assert snr_db(expected, result) > at_least


@pytest.mark.parametrize("channels", [3, 8, 18, 32])
def test_any_number_of_channels(channels: int) -> None:
    """Kernels want 16 outputs and fours; what is missing is filled up and cut off again."""
    nodes = [
        make_node("Conv", "x w1 b1", "h", pads=[1, 1]),
        make_node("LeakyRelu", "h", "a", alpha=0.1),
        make_node("Conv", "a w2", "g", pads=[2, 2], dilations=[2]),
        make_node("Add", "g h", "s"),
        make_node("Tanh", "s", "y"),
    ]
    shapes = {"w1": (channels, 8, 3), "b1": (channels,), "w2": (channels, channels, 3)}
    model = _model(nodes, shapes)
    _check(model, _integer(model, "h", "g"), at_least=30)


def test_a_rectified_sum_is_rounded_where_it_is_added() -> None:
    """A convolution's codes may begin at zero instead, those of other operators may not."""
    nodes = [
        make_node("Conv", "x w1", "h", pads=[1, 1]),
        make_node("Conv", "x w2", "g", pads=[1, 1]),
        make_node("Add", "h g", "s"),
        make_node("Relu", "s", "r"),
        make_node("Conv", "r w3", "y", pads=[1, 1]),
    ]
    model = _model(nodes, {"w1": (16, 8, 3), "w2": (16, 8, 3), "w3": (16, 16, 3)})
    integer = _integer(model, "h", "g", "y")
    assert "QLinearAdd" in operators_of(integer)
    _check(model, integer, at_least=30)


def test_gates_of_a_wavenet() -> None:
    nodes = [
        make_node("Conv", "x w1 b1", "h", pads=[2, 2]),
        make_node("Conv", "x w2", "g", pads=[2, 2]),
        make_node("Tanh", "h", "t"),
        make_node("Sigmoid", "g", "s"),
        make_node("Mul", "t s", "m"),
        make_node("Concat", "m t", "c", axis=1),
        make_node("Conv", "c w3 b3", "y"),
    ]
    shapes = {"w1": (16, 8, 5), "b1": (16,), "w2": (16, 8, 5), "w3": (24, 32, 1), "b3": (24,)}
    model = _model(nodes, shapes)
    integer = _integer(model, "h", "g", "y")
    assert not {"Tanh", "Sigmoid", "Mul", "Conv", "DequantizeLinear"} & set(operators_of(integer))
    _check(model, integer, at_least=33)


@pytest.mark.parametrize("gate", ["s", "x"])
def test_a_single_channel_scales_all(gate: str) -> None:
    """Filled up, its codes did not fit the others', and the runtime refused the graph."""
    nodes = [
        make_node("Conv", "x w1", "h", pads=[1, 1]),
        make_node("Conv", "x w2", "g", pads=[1, 1]),
        make_node("Sigmoid", "g", "s"),
        make_node("Mul", f"h {gate}", "m"),
        make_node("Conv", "m w3", "y", pads=[1, 1]),
    ]
    channels = 8 if gate == "x" else 32
    model = _model(nodes, {"w1": (channels, 8, 3), "w2": (1, 8, 3), "w3": (16, channels, 3)})
    _check(model, _integer(model, "h", "g", "y"), at_least=30)


def test_codes_that_hardly_reach_up_are_not_turned_round() -> None:
    """Below zero a falling line goes up, beyond the codes of what it reads."""
    nodes = [
        make_node("Conv", "x w1 b1", "h", pads=[1, 1]),
        make_node("LeakyRelu", "h", "a", alpha=-1.0),
        make_node("Conv", "a w2", "y", pads=[1, 1]),
    ]
    low = {"b1": np.full(32, -3, np.float32)}
    model = _model(nodes, {"w1": (32, 8, 3), "w2": (16, 32, 3)}, low)
    _check(model, _integer(model, "h", "y"), at_least=30)


@pytest.mark.parametrize(
    ("between", "absent", "least"),
    [
        (make_node("Relu", "h", "r"), {"Max"}, 38),  # codes that begin at zero clip what lies below
        (make_node("Mul", "h third", "r"), {"Mul"}, 33),
        # On codes the upper of two lines is taken, which below zero is not the steeper one.
        (make_node("LeakyRelu", "h", "r", alpha=-0.5), set(), 30),
        (make_node("LeakyRelu", "h", "r", alpha=1.5), set(), 30),
        (make_node("Mul", "h below", "r"), set(), 30),
        (make_node("Div", "third h", "r"), set(), 30),
        (make_node("Concat", "h h", "r", axis=2), set(), 30),
    ],
    ids=["relu", "factor", "slope below", "slope above", "negative", "reciprocal", "in time"],
)
def test_what_lies_between_layers_is_computed_on_codes(
    between: onnx.NodeProto, absent: set[str], least: int
) -> None:
    nodes = [
        make_node("Conv", "x w1 b1", "h", pads=[1, 1]),
        between,
        make_node("Conv", "r w2", "y", pads=[1, 1]),
    ]
    numbers = {"third": np.array([1 / 3]), "below": np.array([-1.0])}
    if between.op_type == "Div":
        numbers["b1"] = np.full(32, 9.0)  # nothing near zero, to divide by
    model = _model(nodes, {"w1": (32, 8, 3), "b1": (32,), "w2": (16, 32, 3)}, numbers)
    integer = _integer(model, "h", "y")
    assert not absent & set(operators_of(integer))
    _check(model, integer, at_least=least)


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_results_read_as_real_numbers_are_not_rounded(kernel: int) -> None:
    """Only the input and the weights are: 8 bits of a Gaussian's range leave some 40 dB."""
    nodes = [
        make_node("Conv", "x w b", "h", pads=[kernel // 2, kernel // 2]),
        make_node("Neg", "h", "y"),
    ]
    model = _model(nodes, {"w": (32, 8, kernel), "b": (32,)})
    integer = _integer(model, "h")
    assert "QLinearConv" not in operators_of(integer)
    _check(model, integer, at_least=38)


@pytest.mark.parametrize("outputs", [1, 2])
def test_audio_is_made_in_blocks(outputs: int) -> None:
    nodes = [
        make_node("ConvTranspose", "x up bias", "h", strides=[8], pads=[4, 4]),
        make_node("LeakyRelu", "h", "a", alpha=0.01),
        make_node("Conv", "a w b", "y", pads=[3, 3]),
    ]
    shapes = {"up": (8, 16, 16), "bias": (16,), "w": (outputs, 16, 7), "b": (outputs,)}
    model = _model(nodes, shapes)
    integer = _integer(model, "h", "y")
    assert "MatMulIntegerToFloat" in operators_of(integer)
    _check(model, integer, at_least=33)


def _grouped(
    outputs: int, taps: int, stride: int, dilation: int = 1, cut: int = 0
) -> onnx.ModelProto:
    reach = dilation * (taps - 1)
    pads = [reach // 2, -(-reach // 2) - cut]
    nodes = [
        make_node("ConvTranspose", "x up", "h", strides=[stride], pads=[0, 0]),
        make_node("LeakyRelu", "h", "a", alpha=0.01),
        make_node("Conv", "a w b", "y", pads=pads, dilations=[dilation]),
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
    expected, result = (run_model(integer, _signal(length))[0] for integer in (alone, together))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("outputs", "stride", "dilation", "cut", "columns"),
    [
        (16, 3, 1, 0, 16),
        (16, 2, 1, 0, 2 * 16),
        (16, 4, 3, 0, 16),
        (20, 4, 1, 0, 20),
        (8, 1, 1, 0, 0),
        (2, 8, 2, 0, 0),
        (20, 4, 1, 2, 0),
    ],
    ids=["odd-length", "pairs", "dilated", "wide", "narrow-odd-length", "narrow-dilated", "cut"],
)
def test_only_what_can_be_grouped_is(
    outputs: int, stride: int, dilation: int, cut: int, columns: int
) -> None:
    integer = _integer(_grouped(outputs, 7, stride, dilation, cut), "h", "y")
    assert _columns(integer) == columns
    assert run_model(integer, _signal(5))[0].shape == (2, outputs, 5 * stride - cut)


def _columns(model: onnx.ModelProto) -> int:
    """Return the width of the matrix that makes the result, 0 where none does."""
    weights = {t.name: t for t in model.graph.initializer}
    made = [n for n in model.graph.node if n.op_type == "MatMulIntegerToFloat"]
    return int(weights[made[0].input[1]].dims[1]) if made else 0
