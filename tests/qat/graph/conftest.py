"""Graphs to train, and what onnxruntime makes of parts of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.graphs import make_model, make_node
from tts_compress.onnx.graph import copy_model
from tts_compress.onnx.nodes import tensors_read
from tts_compress.onnx.session import open_session


@pytest.fixture(scope="session")
def run_part() -> Callable[..., list[Any]]:
    """Return a function that computes tensors of a graph in onnxruntime from other ones of it."""

    def run(model: onnx.ModelProto, feeds: dict[str, Any], outputs: Sequence[str]) -> list[Any]:
        part = copy_model(model)
        wanted, nodes = set(outputs), []
        for node in reversed(model.graph.node):
            if wanted.intersection(node.output) and not feeds.keys() & set(node.output):
                wanted |= tensors_read(node)
                nodes.append(node)
        del part.graph.node[:], part.graph.input[:], part.graph.output[:], part.graph.value_info[:]
        part.graph.node.extend(reversed(nodes))
        for name, value in feeds.items():
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            part.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        part.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in outputs)
        session = open_session(part, "a part", threads=1)
        return list(session.run(list(outputs), feeds))

    return run


@pytest.fixture(scope="session")
def vocoder() -> onnx.ModelProto:
    """Return a graph (B, 8, T) with everything that a region on codes can hold."""
    generator = np.random.default_rng(0)
    shapes = {
        "pre": (32, 8, 7),
        "up": (32, 16, 8),
        "one": (16, 16, 3),
        "two": (16, 16, 3),
        "wide": (16, 16, 1),
        "gate": (16, 16, 3),
        "value": (16, 16, 3),
        "joined": (16, 48, 1),
        "post": (1, 16, 7),
    }
    constants: dict[str, Any] = {"three": np.array(3.0)}
    for name, shape in shapes.items():
        constants[f"net.{name}.weight"] = generator.normal(scale=0.15, size=shape)
        bias = generator.normal(scale=0.1, size=16 if name == "up" else shape[0])
        constants[f"net.{name}.bias"] = bias

    def conv(name: str, source: str, **attributes: Any) -> onnx.NodeProto:
        inputs = f"{source} net.{name}.weight net.{name}.bias"
        kind = "ConvTranspose" if name == "up" else "Conv"
        return make_node(kind, inputs, name, f"/net/{name}/{kind}", **attributes)

    nodes = [
        conv("pre", "x", pads=[3, 3]),
        make_node("LeakyRelu", "pre", "pre.a", alpha=0.1),
        conv("up", "pre.a", strides=[4], pads=[2, 2]),
        make_node("LeakyRelu", "up", "up.a", alpha=0.1),
        conv("one", "up.a", pads=[1, 1]),
        make_node("Add", "one up", "sum"),
        make_node("LeakyRelu", "sum", "sum.a", alpha=0.1),
        conv("two", "sum.a", pads=[2, 2], dilations=[2]),
        make_node("Add", "two sum", "total"),
        make_node("Div", "total three", "mean"),
        make_node("LeakyRelu", "mean", "mean.a"),
        conv("wide", "mean.a"),
        make_node("Relu", "wide", "wide.a"),
        conv("gate", "wide.a", pads=[1, 1]),
        conv("value", "wide.a", pads=[1, 1]),
        make_node("Sigmoid", "gate", "gate.a"),
        make_node("Tanh", "value", "value.a"),
        make_node("Mul", "gate.a value.a", "gated"),
        make_node("Concat", "gated sum up", "parts", axis=1),
        conv("joined", "parts"),
        make_node("Tanh", "joined", "joined.a"),
        conv("post", "joined.a", pads=[3, 3]),
    ]
    inputs, outputs = {"x": ["batch", 8, "time"]}, {"post": ["batch", 1, "samples"]}
    return make_model(nodes, inputs, outputs, constants, opset=17)
