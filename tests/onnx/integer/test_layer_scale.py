"""Blocks whose branch is multiplied by one trained number: x + g · f(x)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.quantize.collect import Calls
from tts_compress.onnx.quantize.convert import convert, prepare_conversion
from tts_compress.onnx.session import open_session
from tts_compress.progress import Silent
from tts_compress.recipes.recipe import Calibration, Recipe, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tts_compress.onnx.session import Feeds


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
        nodes.append(make("Sigmoid", [inner], [f"{block}.sigmoid"]))
        nodes.append(make("Mul", [inner, f"{block}.sigmoid"], [f"{block}.silu"]))
        branch = convolve(f"{block}.out", f"{block}.silu")
        tensors[f"{block}.g"] = np.array([0.3])
        inputs = [f"{block}.g", branch] if constant_first else [branch, f"{block}.g"]
        nodes.append(make("Mul", inputs, [f"{block}.scaled"]))
        nodes.append(make("Add", [stream, f"{block}.scaled"], [f"{block}.sum"]))
        stream = f"{block}.sum"
    convolve("last", stream)
    graph = helper.make_graph(
        nodes,
        "blocks",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, "t"])],
        [helper.make_tensor_value_info("last", TensorProto.FLOAT, [1, 16, "t"])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def _signal(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(1, 16, 64)).astype(np.float32)


@pytest.mark.parametrize("constant_first", [True, False])
def test_the_constant_may_stand_first(
    constant_first: bool, snr_db: Callable[[Any, Any], float]
) -> None:
    """As torch exports a parameter times a tensor; that ended in a KeyError."""

    def feeds() -> Iterator[Feeds]:
        for seed in range(4):
            yield {"x": _signal(seed)}

    rule = {"match": "*", "weights": "int8", "activations": "static"}
    recipe = Recipe(
        version=1,
        family="onnx",
        scheme="int8",
        summary="a test",
        format="qoperator",
        calibration=Calibration(),
        component=(Rule.model_validate(rule),),
    )
    network = _network(constant_first=constant_first)
    calls = Calls(feeds=feeds, total=4)
    conversion = prepare_conversion(
        lambda: copy_model(network), recipe, calls, batch_one=True, progress=Silent()
    )
    runs = [
        open_session(model, "test").run(None, {"x": _signal(9)})[0]
        for model in (network, convert(conversion))
    ]
    assert snr_db(runs[0], runs[1]) > 25
