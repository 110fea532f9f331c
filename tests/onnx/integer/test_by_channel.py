"""Convolutions in integers whose ranges are by channel, against arithmetic in float64."""

from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model, make_node, operators_of, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import ChannelCodes
from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums
from tts_compress.onnx.quantize.convert import (
    Conversion,
    convert,
    count_operators,
    with_chosen_codes,
)
from tts_compress.onnx.quantize.prepare import open_optimized
from tts_compress.onnx.weight_codes import WholeCodes
from tts_compress.progress import Silent

_LOUDNESS = np.logspace(-2, 0, 18).astype(np.float32)
"""Loudness of each channel of the input."""

_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "Conv": {"pads": [6, 2], "dilations": [2]},
    "ConvTranspose": {"pads": [2, 2], "strides": [4]},
}


def _network(operator: str, kernel_size: int = 8, **stated: Any) -> onnx.ModelProto:
    """Return two convolutions with a LeakyRelu between; the first is named `net.layer`."""
    generator, stated = np.random.default_rng(1), _ATTRIBUTES[operator] | stated
    shape = (24, 18, 5) if operator == "Conv" else (18, 24, kernel_size)
    tensors = {
        "w": generator.normal(0, 0.2, shape)
        / _LOUDNESS.reshape((1, -1, 1) if operator == "Conv" else (-1, 1, 1)),
        "b": generator.normal(0, 0.5, 24),
        "v": generator.normal(0, 0.2, (20, 24, 3)),
    }
    nodes = [
        make_node(operator, "x w b", "c", f"/net/layer/{operator}", **stated),
        make_node("LeakyRelu", "c", "d", "/net/LeakyRelu", alpha=0.1),
        make_node("Conv", "d v", "e", "/net/next/Conv", pads=[1, 1]),
        make_node("Mul", "e e", "y", "/net/Mul"),
    ]
    return make_model(nodes, {"x": ["batch", 18, "t"]}, {"y": None}, tensors)


def _signal(seed: int, batch: int = 1) -> Any:
    draw = np.random.default_rng(seed)
    noise = draw.normal(0.3, 0.5, (batch, 18, 600)) + draw.normal(0.0, 1.0, (batch, 1, 600))
    return (noise * _LOUDNESS[:, None]).astype(np.float32)


_CALLS = make_calls(lambda seed: {"x": _signal(seed)})


def _conversion(
    operator: str, activations: str, match: str = "*", form: str = "qoperator"
) -> Conversion:
    recipe = make_recipe({"match": match, "activations": activations}, format=form)
    return prepared(_network(operator), recipe, _CALLS, batch_one=False)


def _run(model: onnx.ModelProto, x: Any, output: str = "y") -> Any:
    return run_model(model, {"x": x}, output)[0]


def _rounded(values: Any, codes: ChannelCodes) -> Any:
    scales, zeros = (v.astype(np.float64)[:, None] for v in (codes.scales, codes.zeros))
    return (np.clip(np.rint(values / scales) + zeros, 0, 255) - zeros) * scales


def _expected(operator: str, conversion: Conversion, x: Any, *, result: bool) -> Any:
    """Return what the first convolution makes, in float64 and by torch's convolution."""
    weight, bias = (
        numpy_helper.to_array(t).astype(np.float64)
        for t in conversion.graph.graph.initializer
        if t.name in {"w", "b"}
    )
    read = conversion.by_channel["x"]
    axis = (1, -1, 1) if operator == "Conv" else (-1, 1, 1)
    steps = read.scales.astype(np.float64).reshape(axis)
    # Every output has a scale; of an upsampling convolution each phase of it has one.
    rows = weight * steps
    if operator == "Conv":
        scales = _scales(rows)[:, None, None]
    else:
        phases = rows.reshape(18, 24, 2, 4).transpose(3, 1, 0, 2)[:, :, :, ::-1].reshape(96, 18, 2)
        scales = np.tile(_scales(phases).reshape(4, 24).T, (1, 2))[None]
    wide = np.rint(rows / scales) * scales / steps
    values = _rounded(x.astype(np.float64), read)
    signal, kernel, offset = (torch.from_numpy(v) for v in (values, wide, bias))
    if operator == "Conv":
        padded = torch.nn.functional.pad(signal, (6, 2))
        made = torch.nn.functional.conv1d(padded, kernel, offset, dilation=2)
    else:
        made = torch.nn.functional.conv_transpose1d(signal, kernel, offset, stride=4, padding=2)
    return _rounded(made.numpy(), conversion.by_channel["c"]) if result else made.numpy()


def _scales(rows: Any) -> Any:
    """Return the scales of outputs, such that no two neighbours overflow 16 bits."""
    flat = rows.swapaxes(1, 2).reshape(len(rows), -1)
    sums = np.abs(flat[:, ::2] + flat[:, 1::2]).max(1)
    return np.maximum(np.abs(flat).max(1) / 127, sums / 127.999)


def test_codes_are_chosen_as_if_all_channels_had_steps_of_one() -> None:
    """The steps go into the weight; the same network, scaled, has the same codes."""
    conversion = with_chosen_codes(_conversion("Conv", "inputs", "net.layer"), _CALLS, Silent())
    steps, scaled = conversion.by_channel["x"].scales[:, None], _network("Conv")
    weight = scaled.graph.initializer[0]
    values = numpy_helper.to_array(weight) * steps
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    calls = make_calls(lambda seed: {"x": _signal(seed) / steps})
    recipe = make_recipe({"match": "net.layer", "activations": "static"}, format="qoperator")
    whole = with_chosen_codes(prepared(scaled, recipe, calls), calls, Silent())
    one, other = (made.chosen["c"] for made in (conversion, whole))
    assert isinstance(one, WholeCodes)
    assert isinstance(other, WholeCodes)
    assert one.shift is not None
    assert other.shift is not None
    assert np.mean(one.codes != other.codes) < 0.02
    np.testing.assert_allclose(one.shift, other.shift, atol=0.02 * np.abs(other.shift).max())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("activations", ["channels", "inputs"])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_arithmetic_is_that_of_the_rounded_numbers(
    operator: str, activations: str, batch: int
) -> None:
    """Also at the edges, where a channel's own code stands for zero."""
    conversion = _conversion(operator, activations, match="net.layer")
    x = _signal(3, batch)
    made = _run(convert(conversion), x, "c")
    rounds = activations == "channels"
    expected = _expected(operator, conversion, x, result=rounds)
    assert made.shape == expected.shape
    # A result on the border of two codes may fall to either side.
    assert snr_db(expected, made) > (45 if rounds else 90)
    assert snr_db(expected[..., :6], made[..., :6]) > (45 if rounds else 90)


def test_channels_of_any_loudness_are_kept() -> None:
    x, outputs = _signal(9), {}
    exact = _run(_network("Conv"), x)
    for activations in ("static", "channels", "inputs"):
        conversion = with_chosen_codes(_conversion("Conv", activations), _CALLS, Silent())
        outputs[activations] = snr_db(exact, _run(convert(conversion), x))
    assert outputs["channels"] > outputs["static"] + 10
    assert outputs["inputs"] > outputs["channels"] + 1
    assert outputs["inputs"] > 29


@pytest.mark.parametrize("beyond", [1.0, 1.45])
def test_the_loudest_moment_of_a_call_is_kept_and_what_exceeds_it_by_half(beyond: float) -> None:
    """Clipped, it would be noise as loud as itself, of which a mean over texts shows little."""

    def call(seed: int, loud: float) -> Any:
        x = _signal(seed)
        x[:, :, 300:320] *= loud if seed == loudest else 1.0
        return {"x": x}

    loudest = 47
    calls = make_calls(lambda seed: call(seed, 4.0), count=48)
    recipe = make_recipe({"match": "*", "activations": "inputs"}, format="qoperator")
    conversion = prepared(_network("Conv"), recipe, calls, batch_one=False)
    x = call(loudest, beyond * 4.0)["x"]
    exact, made = _run(_network("Conv"), x), _run(convert(conversion), x)
    assert snr_db(exact[..., 300:320], made[..., 300:320]) > 25


@pytest.mark.parametrize("activations", ["channels", "inputs"])
@pytest.mark.parametrize(("kernel_size", "pads"), [(4, [0, 0]), (8, [0, 4]), (8, [3, 1])])
def test_samples_are_cut_where_an_upsampling_is_padded(
    kernel_size: int, pads: list[int], activations: str
) -> None:
    model, x = _network("ConvTranspose", kernel_size, pads=pads), _signal(3)
    recipe = make_recipe({"match": "*", "activations": activations}, format="qoperator")
    after = convert(prepared(model, recipe, _CALLS, batch_one=False))
    assert "ConvTranspose" not in operators_of(after)
    exact, made = (_run(graph, x, "c") for graph in (model, after))
    assert exact.shape == made.shape
    assert snr_db(exact, made) > 30


@pytest.mark.parametrize("activations", ["channels", "inputs"])
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_the_runtime_keeps_scales_by_channel_on_the_second_axis(
    operator: str, activations: str
) -> None:
    """It would move transpositions until they are on the last one, and take ten times as long."""
    _, optimized = open_optimized(convert(_conversion(operator, activations)), "a test")
    axes = [
        helper.get_attribute_value(attribute)
        for node in optimized.graph.node
        if node.op_type in {"QuantizeLinear", "DequantizeLinear"}
        for attribute in node.attribute
        if attribute.name == "axis"
    ]
    assert axes == [1] * len(axes)
    assert len(axes) >= (4 if activations == "channels" else 2)
    operators = {node.op_type for node in optimized.graph.node}
    assert "LeakyRelu" in operators  # not on codes, whose channels it would take for one range
    assert operators.isdisjoint({"Conv", "ConvTranspose", "FusedConv"})


@pytest.mark.parametrize("activations", ["channels", "inputs"])
def test_layers_are_counted_and_no_neighbours_overflow(activations: str) -> None:
    model = convert(_conversion("Conv", activations))
    assert dict(count_operators(model)) == {"Conv int8/static": 2}
    weights = [
        numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == TensorProto.INT8
    ]
    layers = [w for w in weights if w.ndim > 1]
    assert len(layers) == 2
    for codes in layers:
        sums = neighbour_sums(
            codes.astype(np.int32) if codes.ndim == 3 else codes.T.astype(np.int32)
        )
        assert np.abs(sums).max() <= PAIR_LIMIT


@pytest.mark.parametrize("activations", ["channels", "inputs"])
def test_the_portable_form_has_no_such_operators(activations: str) -> None:
    with pytest.raises(QuantizationError, match="make the recipe's format 'qoperator'"):
        _conversion("Conv", activations, form="qdq")


def test_codes_of_channels_hold_zero_and_a_share_of_the_widest() -> None:
    codes = ChannelCodes.spanning([-1.0, 0.5, 0.0, -2.0], [3.0, 2.0, 1e-6, -1.0])
    assert codes.zeros.tolist() == [64, 0, 0, 255]
    assert codes.scales.tolist() == pytest.approx([4 / 255, 2 / 255, 4 / 64 / 255, 2 / 255])
    silent = ChannelCodes.spanning([0.0, 0.0], [0.0, 0.0])
    assert (silent.scales > 0).all()
    assert not silent.zeros.any()
