"""Channels whose weights training took to nothing, and whose bias is all that they say.

Piper's trained medium voices have such (`joe`): a bias of 0.009 and no weight above 5e-7. In steps
of such weights a bias has no code of 32 bits.
"""

from functools import cache
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


@cache
def _levels(
    operator: str, weights: str, activations: str, form: str, size: float
) -> dict[bool, float]:
    """Return the signal-to-noise ratio with codes that are the nearest, and that are chosen."""
    model, calls = _network(operator, size), make_calls(_signal)
    rule: dict[str, Any] = {"match": "*", "weights": weights, "activations": activations}
    rule |= {"group_size": 16} if weights == "int4" else {}
    nearest = prepared(model, make_recipe(rule, format=form), calls)
    exact = run_model(model, _signal(9))[0]
    return {
        chosen: snr_db(exact, run_model(convert(conversion), _signal(9))[0])
        for chosen, conversion in (
            (False, nearest),
            (True, with_chosen_codes(nearest, calls, Silent())),
        )
    }


@pytest.mark.parametrize("size", [0.0, 1e-6])
@pytest.mark.parametrize(
    ("operator", "weights", "activations", "form"),
    [
        ("Conv", "int8", "static", "qoperator"),
        ("Conv", "int4", "static", "qoperator"),
        ("Conv", "int8", "channels", "qoperator"),
        ("Conv", "int8", "static", "qdq"),
        ("Conv", "int4", "static", "qdq"),
        ("Conv", "int8", "static", "qdq16"),
        ("ConvTranspose", "int8", "static", "qoperator"),
        ("ConvTranspose", "int4", "static", "qoperator"),
        ("ConvTranspose", "int8", "channels", "qoperator"),
        ("ConvTranspose", "int8", "static", "qdq"),
        ("ConvTranspose", "int8", "static", "qdq16"),
    ],
)
def test_a_channel_without_weights_keeps_its_bias(
    operator: str, weights: str, activations: str, form: str, size: float
) -> None:
    usual, dead = (_levels(operator, weights, activations, form, s) for s in (1.0, size))
    for chosen in (False, True):
        assert dead[chosen] > usual[chosen] - 4


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
