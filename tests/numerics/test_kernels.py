"""The weights that kernels multiply together, found by running the kernels themselves.

Each output has two weights of 127, every pair of places once, and all activations are 255: where a
kernel adds the two products in 16 bits, the result is 32,767 and not 64,770. On processors that add
in 32 bits all are exact; `make test-processors` runs this file on one that does not.
"""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.graphs import make_model
from tts_compress.environment import describe_processor
from tts_compress.numerics.weights import PAIR_LIMIT, neighbour_sums
from tts_compress.onnx.session import open_session

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

_EXACT, _FRAMES = 2 * 127 * 255, 15


def _pairs(inputs: int, taps: int, outputs: int = 16) -> Codes:
    """Return weights (C_out, inputs, taps), two of each output 127; C_out is a multiple."""
    pairs = list(itertools.combinations(range(inputs * taps), 2))
    weight = np.zeros((-(-len(pairs) // outputs) * outputs, inputs * taps), np.int8)
    for row, pair in enumerate(pairs):
        weight[row, list(pair)] = 127
    return weight.reshape(-1, inputs, taps)


def _run(operator: str, inputs: list[str], constants: dict[str, Any], x: Any, **attrs: Any) -> Any:
    domain = "com.microsoft" if "ToFloat" in operator or "channels_last" in attrs else ""
    domain = "com.microsoft" if operator == "DynamicQuantizeMatMul" else domain
    kinds = {"QLinearConv": TensorProto.UINT8, "QLinearMatMul": TensorProto.UINT8}
    kinds |= dict.fromkeys(["ConvInteger", "MatMulInteger"], TensorProto.INT32)
    element = TensorProto.FLOAT if x.dtype == np.float32 else TensorProto.UINT8
    model: onnx.ModelProto = make_model(
        [helper.make_node(operator, inputs, ["y"], domain=domain, **attrs)],
        {"x": (element, [None] * x.ndim)},
        {"y": (kinds.get(operator, TensorProto.FLOAT), None)},
        constants,
        opset=17,
        domains=("com.microsoft",),
    )
    return open_session(model, "kernel", threads=1).run(None, {"x": x})[0]


def _check(weight: Codes, saturated: Flags) -> None:
    """Compare the outputs that saturated with those that can by `neighbour_sums`."""
    expected = np.abs(neighbour_sums(weight.astype(int))).max(axis=1, initial=0) > PAIR_LIMIT
    if not describe_processor().adds_in_16_bits:
        expected[:] = False
    if weight.shape[1] % 2 == 0:
        np.testing.assert_array_equal(saturated, expected)
    else:  # one kernel begins each tap anew and another does not; both kinds of pairs count
        assert not (saturated & ~expected).any()


_SHAPES = [(16, 3), (8, 1), (6, 3), (5, 3), (1, 7), (2, 5)]


@pytest.mark.parametrize(("inputs", "taps"), _SHAPES)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [True, False], ids=["channels-last", "channels-first"])
def test_convolutions_of_onnxruntime(inputs: int, taps: int, groups: int, last: bool) -> None:
    """The output is a byte: a sum in units of 512, near 127 or, saturated, near 64."""
    weight = _pairs(inputs, taps, 16 * groups)
    scales, zeros = np.full(len(weight), 1 / 512, np.float32), np.zeros(len(weight), np.int8)
    constants = {"one": np.float32(1), "zero": np.uint8(0), "w": weight, "s": scales, "z": zeros}
    names = ["x", "one", "zero", "w", "s", "z", "one", "zero"]
    shape = (1, _FRAMES, inputs * groups) if last else (1, inputs * groups, _FRAMES)
    attributes = {"channels_last": 1} if last else {}
    x = np.full(shape, 255, np.uint8)
    made = _run("QLinearConv", names, constants, x, group=groups, kernel_shape=[taps], **attributes)
    frames = made[0] if last else made[0].T
    filled = weight.any(axis=(1, 2))
    _check(weight, filled & (frames[0] < 96))


@pytest.mark.parametrize(("inputs", "taps"), [(16, 3), (5, 3)])
@pytest.mark.parametrize("unsigned", [True, False])
def test_convolutions_with_ranges_found_at_run_time_are_exact(
    inputs: int, taps: int, unsigned: bool
) -> None:
    """Everywhere, whatever the type of the weights."""
    weight = _pairs(inputs, taps)
    stored = (weight.astype(np.int16) + 128).astype(np.uint8) if unsigned else weight
    zero = np.uint8(128) if unsigned else np.int8(0)
    constants = {"w": stored, "zero": np.uint8(0), "wz": zero}
    x = np.full((1, inputs, _FRAMES), 255, np.uint8)
    made = _run("ConvInteger", ["x", "w", "zero", "wz"], constants, x, kernel_shape=[taps])
    filled = weight.any(axis=(1, 2))
    assert (made[0, filled] == _EXACT).all()


@pytest.mark.parametrize("inputs", [18, 17])
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize(
    "operator", ["MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QLinearMatMul"]
)
def test_products_of_onnxruntime(operator: str, rows: int, inputs: int) -> None:
    weight = _pairs(inputs, 1)
    outputs = len(weight)
    constants: dict[str, Any] = {"w": weight[:, :, 0].T.copy(), "one": np.float32(1)}
    constants |= {"zero": np.uint8(0), "wz": np.zeros(outputs, np.int8)}
    unit = 1 / 512 if operator == "QLinearMatMul" else 1.0
    constants["ws"] = np.full(outputs, unit, np.float32)
    names = {
        "MatMulInteger": ["x", "w", "zero"],
        "MatMulIntegerToFloat": ["x", "w", "one", "ws", "zero", "wz"],
        "DynamicQuantizeMatMul": ["x", "w", "ws", "wz"],
        "QLinearMatMul": ["x", "one", "zero", "w", "ws", "wz", "one", "zero"],
    }[operator]
    constants = {name: value for name, value in constants.items() if name in names}
    kind = np.float32 if operator == "DynamicQuantizeMatMul" else np.uint8
    made = _run(operator, names, constants, np.full((rows, inputs), 255, kind))
    sums = made[rows // 2].astype(np.float64) / unit
    _check(weight, weight.any(axis=(1, 2)) & (sums < 0.75 * _EXACT))


@pytest.mark.parametrize("inputs", [18, 17])
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("engine", ["fbgemm", "onednn"])
def test_linear_layers_of_torch(
    engine: str, rows: int, inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from tts_compress.torch.layers.integer import pack_linear

    if engine not in torch.backends.quantized.supported_engines:
        pytest.skip(f"this build of torch has no {engine}")
    monkeypatch.setattr("tts_compress.torch.layers.integer._ENGINES", (engine,))
    weight = _pairs(inputs, 1)
    codes = torch.from_numpy(weight[:, :, 0].copy())
    packed = pack_linear(codes, torch.ones(len(weight)), None)
    made = torch.ops.quantized.linear_dynamic(torch.full((rows, inputs), 255.0), packed, False)
    _check(weight, weight.any(axis=(1, 2)) & (made[-1].numpy() < 0.75 * _EXACT))


@pytest.mark.parametrize(("inputs", "taps"), _SHAPES)
def test_convolutions_of_torch(inputs: int, taps: int) -> None:
    torch = pytest.importorskip("torch")
    from tts_compress.torch.layers.geometry import Geometry
    from tts_compress.torch.layers.integer import Int8Conv1d

    weight = _pairs(inputs, taps)
    state = {
        "weight": torch.from_numpy(weight),
        "weight_scale": torch.ones(len(weight)),
        "input_scale": torch.tensor(1.0),
        "input_zero_point": torch.tensor(0),
    }
    layer = Int8Conv1d(Geometry(operator="Conv1d", shape=weight.shape), state)
    made = layer(torch.full((1, inputs, _FRAMES), 255.0))[0, :, 0].numpy()
    _check(weight, weight.any(axis=(1, 2)) & (made < 0.75 * _EXACT))
