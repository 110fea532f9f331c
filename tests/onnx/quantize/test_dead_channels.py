"""Channels whose weights training took to nothing, and whose bias is all that they say.

Piper's trained medium voices have such (`joe`): a bias of 0.009 and no weight above 5e-7. In steps
of such weights a bias has no code of 32 bits.
"""

from typing import Any

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.numerics.weights import coarsen, coarsen_blocks, round_blocks, round_weight
from tts_compress.onnx.quantize.convert import convert, with_chosen_codes
from tts_compress.progress import Silent

_DEAD, _BIAS = 5, 3.0


def _network(operator: str, size: float) -> onnx.ModelProto:
    """Return two convolutions, the first of which has a channel with weights of a size."""
    generator = np.random.default_rng(1)
    is_plain = operator == "Conv"
    weight = generator.normal(0, 0.2, (32, 32, 3) if is_plain else (32, 32, 4))
    (weight if is_plain else weight.swapaxes(0, 1))[_DEAD] *= size
    bias = generator.normal(0, 0.3, 32)
    bias[_DEAD] = _BIAS
    tensors = {"w": weight, "b": bias, "v": generator.normal(0, 0.2, (16, 32, 3))}
    attributes: dict[str, Any] = {} if is_plain else {"strides": [2]}
    nodes = [
        make_node(operator, "x w b", "c", "/net/layer/Conv", pads=[1, 1], **attributes),
        make_node("LeakyRelu", "c", "d", "/net/LeakyRelu", alpha=0.1),
        make_node("Conv", "d v", "e", "/net/next/Conv", pads=[1, 1]),
        make_node("Mul", "e e", "y", "/net/Mul"),
    ]
    return make_model(nodes, {"x": [1, 32, "t"]}, {"y": None}, tensors)


def _signal(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(0, 1, (1, 32, 300)).astype(np.float32)}


@pytest.mark.parametrize("size", [0.0, 1e-9, 1e-6])
@pytest.mark.parametrize(
    ("weights", "activations", "form"),
    [
        ("int8", "static", "qoperator"),
        ("int4", "static", "qoperator"),
        ("int8", "channels", "qoperator"),
        ("int8", "static", "qdq"),
        ("int4", "static", "qdq"),
        ("int8", "static", "qdq16"),
    ],
)
@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose"])
def test_a_channel_without_weights_keeps_its_bias(
    operator: str, weights: str, activations: str, form: str, size: float
) -> None:
    if (operator, weights, form) == ("ConvTranspose", "int4", "qdq"):
        pytest.skip("such filters are not in blocks")
    outputs = {}
    for scale in (1.0, size):
        model = _network(operator, scale)
        rule: dict[str, Any] = {"match": "*", "weights": weights, "activations": activations}
        rule |= {"group_size": 16} if weights == "int4" else {}
        calls = make_calls(_signal)
        for chosen in (False, True):
            conversion = prepared(model, make_recipe(rule, format=form), calls)
            if chosen:
                conversion = with_chosen_codes(conversion, calls, Silent())
            exact, made = (run_model(m, _signal(9))[0] for m in (model, convert(conversion)))
            outputs[scale, chosen] = snr_db(exact, made)
    for chosen in (False, True):
        assert outputs[size, chosen] > outputs[1.0, chosen] - 4


def test_coarser_codes_stand_for_the_same_weights() -> None:
    weight = np.random.default_rng(0).normal(0, 1, (4, 32)).astype(np.float32)
    weight[3] = 0
    least = np.array([0.0, 0.05, 0.01, 0.2], np.float32)
    codes, scales = coarsen(*round_weight(weight, 0, multiplied=True), least)
    assert (scales >= least).all()
    assert scales[3] == least[3]
    assert np.abs(codes * scales[:, None] - weight).max() <= 0.05 / 2 + 0.02
    blocks = coarsen_blocks(round_blocks(weight, 8), least)
    assert (blocks.scales >= least).all()
    plain = round_blocks(weight, 8)
    made, before = (b.wide() * b.scales[:, None] for b in (blocks, plain))
    assert np.array_equal(made[0], before[0])
    errors = [np.abs(values - weight).max(1) for values in (made, before)]
    assert (errors[0] <= errors[1] + 2 * least).all()
