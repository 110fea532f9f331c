"""The worst inputs there are, through every integer layer of whole models, are multiplied exactly.

Safe means: whatever uint8 codes flow in. For each output the test gives 255 to all inputs of
positive weights and 0 to the others, and the reverse: of all inputs these make the sums of two
neighbouring products, which AVX2's kernels keep in 16 bits, largest and smallest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.graphs import make_model
from tts_compress.environment import describe_processor
from tts_compress.models import load, open_model
from tts_compress.models.base import OnnxGraph, TTSModel
from tts_compress.numerics.weights import round_weight
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer import observed_tensors
from tts_compress.onnx.quantize.convert import Conversion, convert
from tts_compress.onnx.quantize.decisions import decide, static_outputs
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.onnx.rewrite import rewrite
from tts_compress.onnx.session import open_session
from tts_compress.recipes.recipe import find_recipe

Codes = npt.NDArray[np.int8]
Bytes = npt.NDArray[np.uint8]
Sums = npt.NDArray[np.int64]


def _converted(model: OnnxGraph) -> onnx.ModelProto:
    """Return a model by its recipe for `int8`; no code depends on the ranges, which are made up."""
    recipe = find_recipe(model.family, "int8")
    graph = Graph(prepare(model.graph()))
    rewrite(graph, batch_one=isinstance(model, TTSModel))
    decisions = decide(graph.model, recipe)
    names = observed_tensors(graph.model, static_outputs(decisions))
    ranges = dict.fromkeys(names, (-1.0, 1.0))
    return convert(
        Conversion(graph=graph.model, decisions=tuple(decisions), ranges=ranges, form="qoperator")
    )


def _layers(model: onnx.ModelProto) -> Iterator[tuple[str, Codes]]:
    """Return the operator and weight, (C_out, C_in, taps) or (C_out, inputs), of each layer."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QLinearConv":
            yield node.op_type, numpy_helper.to_array(tensors[node.input[3]])
        elif node.op_type == "MatMulIntegerToFloat":
            yield node.op_type, numpy_helper.to_array(tensors[node.input[1]]).T


def _rows(codes: Codes) -> Codes:
    """Return a weight's codes in the order in which kernels add products up: taps, then inputs."""
    return codes.swapaxes(1, -1).reshape(len(codes), -1)


def _worst(rows: Codes) -> Bytes:
    """Return the two worst inputs for each output, (2 · C_out, inputs)."""
    return np.concatenate([np.where(rows > 0, 255, 0), np.where(rows < 0, 255, 0)]).astype(np.uint8)


def _exact(rows: Codes, inputs: Bytes) -> Sums:
    """Return the sums of each output's two worst inputs, (2, C_out): the oracle."""
    wide = np.concatenate([rows, rows]).astype(np.int64)
    sums: Sums = (wide * inputs).sum(axis=1)
    return sums.reshape(2, -1)


def _saturating(rows: Codes, inputs: Bytes) -> Sums:
    """Return the same as AVX2 adds it up: two neighbouring products at a time in 16 bits."""
    products = np.concatenate([rows, rows]).astype(np.int64) * inputs
    products = np.pad(products, ((0, 0), (0, products.shape[1] % 2)))
    pairs = (products[:, ::2] + products[:, 1::2]).clip(-(2**15), 2**15 - 1)
    sums: Sums = pairs.sum(axis=1)
    return sums.reshape(2, -1)


def _run(
    operator: str, inputs: list[str], constants: dict[str, Any], kind: int, x: Bytes, **attrs: Any
) -> Any:
    node = helper.make_node(operator, inputs, ["y"], domain="com.microsoft", **attrs)
    model = make_model(
        [node],
        {"x": (TensorProto.UINT8, [1, None, None])},
        {"y": (kind, None)},
        constants,
        domains=("com.microsoft",),
    )
    return open_session(model, "layer", threads=1).run(None, {"x": x})[0]


def _is_convolved_exactly(codes: Codes, inputs: Bytes, expected: Sums) -> bool:
    """Return whether QLinearConv, whose outputs are bytes, is exact.

    The expected value is subtracted as a bias, so that 128 is left, and one more or less shows.
    """
    outputs, channels, taps = codes.shape
    ones, zeros = np.ones(outputs, np.float32), np.zeros(outputs, np.int8)
    scale, zero = np.float32(1), np.uint8(0)
    for half, wanted in zip(np.split(inputs, 2), expected, strict=True):
        constants = {"one": scale, "zero": zero, "w": codes, "ws": ones, "wz": zeros}
        constants |= {"middle": np.uint8(128), "bias": (-wanted).astype(np.int32)}
        names = ["x", "one", "zero", "w", "ws", "wz", "one", "middle", "bias"]
        x = half.reshape(1, outputs * taps, channels)
        attributes = {"channels_last": 1, "kernel_shape": [taps], "strides": [taps]}
        found = _run("QLinearConv", names, constants, TensorProto.UINT8, x, **attributes)
        if (np.diagonal(found[0]) != 128).any():
            return False
    return True


def _is_multiplied_exactly(codes: Codes, inputs: Bytes, expected: Sums) -> bool:
    """Return whether MatMulIntegerToFloat is off by nothing at all, up to FP32's own rounding."""
    outputs = len(codes)
    constants = {"w": codes.T.copy(), "one": np.float32(1), "ws": np.ones(outputs, np.float32)}
    constants |= {"zero": np.uint8(0), "wz": np.zeros(outputs, np.int8)}
    names = ["x", "w", "one", "ws", "zero", "wz"]
    found = _run("MatMulIntegerToFloat", names, constants, TensorProto.FLOAT, inputs[None])[0]
    halves = np.stack([np.diagonal(half) for half in np.split(found, 2)])
    return bool((halves == expected.astype(np.float32)).all())


def _is_exact(operator: str, codes: Codes) -> bool:
    rows = _rows(codes)
    inputs = _worst(rows)
    check = _is_convolved_exactly if operator == "QLinearConv" else _is_multiplied_exactly
    return check(codes, inputs, _exact(rows, inputs))


def _check(model: OnnxGraph, least: int) -> None:
    layers = list(_layers(_converted(model)))
    assert len(layers) >= least
    for number, (operator, codes) in enumerate(layers):
        rows = _rows(codes)
        inputs = _worst(rows)
        np.testing.assert_array_equal(_saturating(rows, inputs), _exact(rows, inputs))
        assert _is_exact(operator, codes), (number, operator, codes.shape)


@pytest.mark.slow
def test_demo_voice(demo: Path) -> None:
    model: Any = load(demo)
    _check(model, least=60)


def test_vocoder(assets: Path) -> None:
    model: Any = open_model(
        str(assets / "hifigan-v2-ljspeech" / "generator_v2.fp32.onnx"), bare=True
    )
    _check(model, least=40)


@pytest.mark.parametrize("operator", ["QLinearConv", "MatMulIntegerToFloat"])
def test_without_protection_sums_saturate(operator: str) -> None:
    """This holds in the model of AVX2's kernels and on a processor that has no better kernels."""
    shape = (16, 32, 3) if operator == "QLinearConv" else (16, 96)
    weight = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    plain, _ = round_weight(weight, 0, multiplied=False)
    safe, _ = round_weight(weight, 0, multiplied=True)
    inputs = _worst(_rows(plain))
    assert (_saturating(_rows(plain), inputs) != _exact(_rows(plain), inputs)).any()
    assert _is_exact(operator, safe)
    assert _is_exact(operator, plain) != describe_processor().adds_in_16_bits
