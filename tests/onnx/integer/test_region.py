"""Regions on 8-bit codes: near the real graph, nothing between two convolutions, clear refusals."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.integer import emit_integer, observed_tensors

PLANNED = frozenset({"pre", "up", "first", "second"})


def _vocoder(stride: int = 4, pads: tuple[int, int] = (2, 2)) -> onnx.ModelProto:
    """Return pre → up → a residual block → mean → post, 16 channels, as HiFi-GAN has it."""
    generator = np.random.default_rng(0)
    shapes = {"pre": (32, 8, 7), "up": (32, 16, 8), "first": (16, 16, 3), "second": (16, 16, 3)}
    shapes["post"] = (1, 16, 7)
    constants = [numpy_helper.from_array(np.array(3, np.float32), "three")]
    for name, shape in shapes.items():
        weight = generator.normal(scale=0.15, size=shape).astype(np.float32)
        bias = generator.normal(scale=0.1, size=16 if name == "up" else shape[0])
        constants.append(numpy_helper.from_array(weight, f"{name}.w"))
        constants.append(numpy_helper.from_array(bias.astype(np.float32), f"{name}.b"))

    def conv(name: str, source: str, **attrs: object) -> onnx.NodeProto:
        return helper.make_node("Conv", [source, f"{name}.w", f"{name}.b"], [name], name, **attrs)  # type: ignore[arg-type]

    nodes = [
        conv("pre", "x", pads=[3, 3]),
        helper.make_node("LeakyRelu", ["pre"], ["pre.a"], alpha=0.1),
        helper.make_node(
            "ConvTranspose",
            ["pre.a", "up.w", "up.b"],
            ["up"],
            "up",
            strides=[stride],
            pads=list(pads),
        ),
        helper.make_node("LeakyRelu", ["up"], ["up.a"], alpha=0.1),
        conv("first", "up.a", pads=[1, 1]),
        helper.make_node("Add", ["first", "up"], ["sum"]),
        helper.make_node("LeakyRelu", ["sum"], ["sum.a"], alpha=0.1),
        conv("second", "sum.a", pads=[2, 2], dilations=[2]),
        helper.make_node("Add", ["second", "sum"], ["total"]),
        helper.make_node("Div", ["total", "three"], ["mean"]),
        helper.make_node("LeakyRelu", ["mean"], ["mean.a"]),
        conv("post", "mean.a", pads=[3, 3]),
    ]
    graph = helper.make_graph(
        nodes,
        "vocoder",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8, "time"])],
        [helper.make_tensor_value_info("post", TensorProto.FLOAT, ["batch", 1, "samples"])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def _input(length: int) -> np.ndarray:
    return np.random.default_rng(length).normal(size=(2, 8, length)).astype(np.float32)


def _run(model: onnx.ModelProto, names: list[str], length: int) -> list[np.ndarray]:
    tapped = onnx.ModelProto()
    tapped.CopyFrom(model)
    known = {value.name for value in tapped.graph.output}
    tapped.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in names
        if name not in known
    )
    session = ort.InferenceSession(tapped.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(names, {"x": _input(length)})]


def _ranges(
    model: onnx.ModelProto, convolutions: frozenset[str] = PLANNED
) -> dict[str, tuple[float, float]]:
    names = observed_tensors(model, convolutions)
    values = _run(model, names, length=64)
    return {n: (float(v.min()), float(v.max())) for n, v in zip(names, values, strict=True)}


def _emit(
    model: onnx.ModelProto, convolutions: frozenset[str], ranges: dict[str, tuple[float, float]]
) -> onnx.ModelProto:
    graph = Graph(copy_model(model))
    emit_integer(graph, convolutions, ranges)
    return graph.model


@pytest.mark.parametrize("length", [5, 33])
def test_close_to_the_real_graph(length: int) -> None:
    """Some 8-bit roundings in a row leave about 30 dB here; a wrong scale leaves none."""
    model = _vocoder()
    integer = _emit(model, PLANNED, _ranges(model))
    (expected,), (found,) = (_run(m, ["post"], length) for m in (model, integer))
    assert expected.shape == found.shape
    assert 10 * np.log10(np.square(expected).sum() / np.square(expected - found).sum()) > 27


def test_audio_is_made_in_blocks() -> None:
    model = _vocoder(stride=8, pads=(0, 0))  # blocks are of eight samples
    convolutions = PLANNED | {"post"}
    integer = _emit(model, convolutions, _ranges(model, convolutions))
    assert "Split" in {node.op_type for node in integer.graph.node}
    (expected,), (found,) = (_run(m, ["post"], 33) for m in (model, integer))
    assert np.square(expected - found).sum() < 10**-2.7 * np.square(expected).sum()


def test_no_layout_or_code_change_between_convolutions() -> None:
    model = _vocoder()
    convolutions = PLANNED
    integer = _emit(model, convolutions, _ranges(model, convolutions))
    types = [node.op_type for node in integer.graph.node]
    assert types.count("QLinearConv") == 4
    assert types.count("Conv") == 1
    inner = types[types.index("QLinearConv") : len(types) - types[::-1].index("QLinearConv")]
    assert not {"Transpose", "QuantizeLinear", "DequantizeLinear"} & set(inner)


def test_the_same_input_gives_the_same_bytes() -> None:
    model = _vocoder()
    convolutions = PLANNED
    ranges = _ranges(model, convolutions)
    before = model.SerializeToString()
    made = (_emit(model, convolutions, ranges) for _ in range(2))
    first, second = (integer.SerializeToString() for integer in made)
    assert first == second
    assert model.SerializeToString() == before


def test_every_subset_of_the_convolutions_works() -> None:
    """Real and coded readers of one tensor must both be served, wherever the border runs."""
    model = _vocoder()
    (expected,) = _run(model, ["post"], 16)
    for size in range(1, 5):
        for nodes in itertools.combinations(sorted(PLANNED), size):
            convolutions = frozenset(nodes)
            integer = _emit(model, convolutions, _ranges(model, convolutions))
            (found,) = _run(integer, ["post"], 16)
            assert np.square(expected - found).sum() < 1e-3 * np.square(expected).sum(), nodes
