"""Blocks whose branch is multiplied by one trained number: x + g · f(x)."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model, make_node, run_model
from tests.measures import snr_db
from tests.onnx.conversion import make_calls, prepared
from tests.rules import make_recipe
from tts_compress.onnx.quantize.convert import convert


def _network(*, constant_first: bool) -> onnx.ModelProto:
    """Return a convolution, two blocks x + g · conv(silu(conv(x))), and a convolution."""
    generator = np.random.default_rng(0)
    make, nodes, tensors = helper.make_node, [], {}

    def convolve(name: str, source: str) -> str:
        tensors[f"{name}.w"] = generator.normal(0, 0.15, (16, 16, 3))
        tensors[f"{name}.b"] = generator.normal(0, 0.1, 16)
        inputs = [source, f"{name}.w", f"{name}.b"]
        nodes.append(make("Conv", inputs, [name], f"/{name}/Conv", pads=[1, 1]))
        return name

    stream = convolve("first", "x")
    for block in ("a", "b"):
        inner = convolve(f"{block}.in", stream)
        nodes.append(make_node("Sigmoid", inner, f"{block}.sigmoid"))
        nodes.append(make_node("Mul", f"{inner} {block}.sigmoid", f"{block}.silu"))
        branch = convolve(f"{block}.out", f"{block}.silu")
        tensors[f"{block}.g"] = np.array([0.3])
        inputs = [f"{block}.g", branch] if constant_first else [branch, f"{block}.g"]
        nodes.append(make("Mul", inputs, [f"{block}.scaled"]))
        nodes.append(make_node("Add", f"{stream} {block}.scaled", f"{block}.sum"))
        stream = f"{block}.sum"
    convolve("last", stream)
    return make_model(nodes, {"x": [1, 16, "t"]}, {"last": [1, 16, "t"]}, tensors)


def _signal(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(1, 16, 64)).astype(np.float32)


@pytest.mark.parametrize("constant_first", [True, False])
def test_the_constant_may_stand_first(constant_first: bool) -> None:
    """As torch exports a parameter times a tensor; that ended in a KeyError."""
    network = _network(constant_first=constant_first)
    calls = make_calls(lambda seed: {"x": _signal(seed)}, 4)
    recipe = make_recipe({"activations": "static"}, format="qoperator")
    conversion = prepared(network, recipe, calls)
    runs = [run_model(model, {"x": _signal(9)})[0] for model in (network, convert(conversion))]
    assert snr_db(runs[0], runs[1]) > 25
