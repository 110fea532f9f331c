"""Transposed convolutions as ordinary ones: equal to rounding, refused where they are not equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tts_compress.onnx.graph import Graph
from tts_compress.onnx.rewrite.upsample import expand_upsampling


@dataclass(frozen=True)
class Case:
    """One transposed convolution."""

    kernel: int
    stride: int
    pads: tuple[int, int]
    output_padding: int = 0
    dilation: int = 1
    group: int = 1


def _model(case: Case, *, bias: bool = True) -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weight = generator.normal(size=(6, 4 // case.group, case.kernel)).astype(np.float32)
    constants = [numpy_helper.from_array(weight, "weight")]
    if bias:
        constants.append(numpy_helper.from_array(np.arange(4, dtype=np.float32), "bias"))
    node = helper.make_node(
        "ConvTranspose",
        ["x", *(tensor.name for tensor in constants)],
        ["y"],
        "up",
        strides=[case.stride],
        pads=list(case.pads),
        output_padding=[case.output_padding],
        dilations=[case.dilation],
        group=case.group,
    )
    graph = helper.make_graph(
        [node],
        "upsampling",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6, "time"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4, "samples"])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


EXACT = {
    "piper-first": Case(kernel=16, stride=8, pads=(4, 4)),
    "piper-last": Case(kernel=8, stride=4, pads=(2, 2)),
    "high-last": Case(kernel=4, stride=2, pads=(1, 1)),
    "odd-stride": Case(kernel=6, stride=3, pads=(2, 2), output_padding=1),
    "one-tap": Case(kernel=4, stride=4, pads=(0, 0)),
    "three-taps": Case(kernel=12, stride=4, pads=(4, 4)),
}


@pytest.mark.parametrize("length", [1, 7, 32])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT.keys())
def test_equal_to_the_transposed_convolution(case: Case, bias: bool, length: int) -> None:
    model = _model(case, bias=bias)
    graph = Graph(model)
    assert expand_upsampling(graph) == 1
    x = np.random.default_rng(1).normal(size=(2, 6, length)).astype(np.float32)
    expected, found = _run(model, x), _run(graph.finish(), x)
    assert expected.shape == found.shape
    assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


REFUSED = {
    "length-not-a-multiple": Case(kernel=16, stride=8, pads=(3, 4)),
    "ragged-kernel": Case(kernel=9, stride=8, pads=(0, 1)),
    "dilated": Case(kernel=4, stride=2, pads=(1, 1), dilation=2),
    "grouped": Case(kernel=4, stride=2, pads=(1, 1), group=2),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused(case: Case) -> None:
    graph = Graph(_model(case))
    assert expand_upsampling(graph) == 0
    assert [node.op_type for node in graph.finish().graph.node] == ["ConvTranspose"]
