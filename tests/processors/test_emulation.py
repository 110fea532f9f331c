"""The other processors are what they are called, or the other tests would prove nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.processors.emulation import NATIVE, Processor, open_processor
from tests.processors.packages import NotAvailableError
from tests.processors.stage import Stage
from tts_compress.environment import describe_processor

pytestmark = pytest.mark.processors

_DESCRIBE = """
import dataclasses, json
from tts_compress.environment import describe_processor
print(json.dumps(dataclasses.asdict(describe_processor())))
"""

_WITHOUT_VNNI = ("haswell", "skylake")

_BLOCKS = """
import sys, numpy, onnxruntime
from onnx import load
options = onnxruntime.SessionOptions()
options.optimized_model_filepath = sys.argv[2]
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(load(sys.argv[2]).graph.initializer[0].dims[0])
"""
"""Prints how many output channels the runtime lays out weights for."""

_INPUTS, _OUTPUTS, _TIME = 16, 16, 25
_SUM = 2 * 127 * 255
"""Sum of two products, which does not fit into 16 bits: the largest number there is 32767."""


def test_processor_describes_itself(processor: Processor) -> None:
    told = json.loads(processor.run(["-c", _DESCRIBE]))
    if processor.name in _WITHOUT_VNNI:
        assert told["architecture"] == "x86_64"
        assert told["model"].lower() == f"intel core processor ({processor.name})"
        assert "avx2" in told["features"]
        assert not [name for name in told["features"] if "avx512" in name or "vnni" in name]
    else:
        assert told["architecture"] == "aarch64"
        assert "asimddp" in told["features"]


def test_neighbouring_products_saturate_without_vnni(processor: Processor, tmp_path: Path) -> None:
    """On ARM64 they do not, nor where this machine has VNNI."""
    stage = Stage(
        tmp_path,
        {"matmul": _matmul(), "conv": _conv()},
        [
            {
                "rows": np.full((3, _INPUTS), 255, np.uint8),
                "frames": np.full((1, _TIME, _INPUTS), 255, np.uint8),
            }
        ],
    )
    exact = {"matmul": _SUM, "conv": np.rint(_SUM / 512)}
    expected = (
        {"matmul": 32767, "conv": np.rint(32767 / 512)}
        if processor.name in _WITHOUT_VNNI
        else exact
    )
    for name, (codes,) in stage.play(processor).items():
        assert set(codes.tolist()) == {expected[name]}, name
    if {"avx_vnni", "avx512_vnni"}.intersection(describe_processor().features):
        for name, (codes,) in stage.play(NATIVE).items():
            assert set(codes.tolist()) == {exact[name]}, name


@pytest.mark.parametrize(("name", "block"), [("haswell", 8), ("skylake", 16)])
def test_kernels_in_fp32_are_as_wide_as_the_processors(
    name: str, block: int, tmp_path: Path
) -> None:
    """Convolutions of images have their channels in blocks as wide as a register."""
    try:
        processor = open_processor(name)
    except NotAvailableError as error:
        pytest.skip(str(error))
    if block == 16 and "avx512_vnni" not in describe_processor().features:
        pytest.skip("this machine may have no AVX512")
    weights = {"weights": np.ones((8, 3, 1, 3), np.float32)}
    model = _graph("Conv", ["image", "weights"], TensorProto.FLOAT, weights)
    model.graph.node[0].domain = ""
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 4, 9])
    model.graph.input[0].CopyFrom(image)
    onnx.save(model, tmp_path / "conv.onnx")
    files = [tmp_path / "conv.onnx", tmp_path / "optimized.onnx"]
    assert processor.run(["-c", _BLOCKS, *files]).split()[-1] == str(block)


def _neighbours(shape: tuple[int, ...], axis: int) -> Any:
    """Return weights with 127 at the first two inputs, which lie along an axis, else zero."""
    weights = np.zeros(shape, np.int8)
    np.moveaxis(weights, axis, 0)[:2] = 127
    return weights


def _matmul() -> onnx.ModelProto:
    """Return a graph that multiplies rows (3, 16) by weights (16, 16)."""
    constants = {
        "weights": _neighbours((_INPUTS, _OUTPUTS), 0),
        "one": np.float32(1),
        "ones": np.ones(_OUTPUTS, np.float32),
        "zero": np.uint8(0),
        "zeros": np.zeros(_OUTPUTS, np.int8),
    }
    inputs = ["rows", "weights", "one", "ones", "zero", "zeros"]
    return _graph("MatMulIntegerToFloat", inputs, TensorProto.FLOAT, constants)


def _conv() -> onnx.ModelProto:
    """Return a graph that convolves frames (1, 25, 16) with weights of one tap; one code is 512."""
    constants = {
        "weights": _neighbours((_OUTPUTS, _INPUTS, 1), 1),
        "one": np.float32(1),
        "scale": np.float32(512),
        "ones": np.ones(_OUTPUTS, np.float32),
        "zero": np.uint8(0),
        "zeros": np.zeros(_OUTPUTS, np.int8),
    }
    inputs = ["frames", "one", "zero", "weights", "ones", "zeros", "scale", "zero"]
    return _graph(
        "QLinearConv", inputs, TensorProto.UINT8, constants, kernel_shape=[1], channels_last=1
    )


def _graph(
    operator: str, inputs: list[str], output: int, constants: dict[str, Any], **attributes: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"], domain="com.microsoft", **attributes)],
        operator,
        [helper.make_tensor_value_info(inputs[0], TensorProto.UINT8, None)],
        [helper.make_tensor_value_info("y", output, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
