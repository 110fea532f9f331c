"""Integer layers are counted in files of ours and of others, and hazards are reported."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.graphs import make_model, make_node
from tts_compress.environment import Processor
from tts_compress.inspection.components import inspect_model, inspection_tables
from tts_compress.models import load, open_model
from tts_compress.models.integers import (
    IntegerLayers,
    _layers_of_module,
    count_integer_layers,
    find_hazards,
)

_OLD = Processor(architecture="x86_64", model="", cores=2, features=("avx2",))
_NEW = Processor(architecture="x86_64", model="", cores=2, features=("avx2", "avx512_vnni"))
_ARM = Processor(architecture="aarch64", model="", cores=2, features=("asimd", "asimddp"))


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int8-dynamic"])
def test_what_we_make_is_exact_everywhere(compressed: Callable[[str], Path], scheme: str) -> None:
    found = count_integer_layers(load(compressed(scheme)))
    assert found.count > 5
    assert (found.overflowing, found.signed) == (0, 0)
    assert not find_hazards(found, _OLD)


def test_weights_in_integers_alone_are_no_integer_layers(compressed: Callable[[str], Path]) -> None:
    assert count_integer_layers(load(compressed("int8-weight-only"))).count == 0


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self._left = [np.random.default_rng(0).normal(size=(1, 8, 20)).astype(np.float32)]

    def get_next(self) -> dict[str, Any] | None:
        return {"x": self._left.pop()} if self._left else None


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Return a convolution and a product, whose weights have large neighbours."""
    generator = np.random.default_rng(0)
    shapes = {"w": (16, 8, 3), "m": (16, 6)}
    weights = {n: generator.uniform(-1, 1, s) for n, s in shapes.items()}
    nodes = [
        make_node("Conv", "x w", "h", "conv", pads=[1, 1]),
        make_node("Transpose", "h", "t", "turn", perm=[0, 2, 1]),
        make_node("MatMul", "t m", "y", "product"),
    ]
    model = make_model(nodes, {"x": [1, 8, "T"]}, {"y": [1, "T", 6]}, weights)
    onnx.save(model, tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator], ids=str)
@pytest.mark.parametrize("signed", [False, True])
def test_onnxruntimes_own_static_quantization(
    plain: Path, tmp_path: Path, form: QuantFormat, signed: bool
) -> None:
    path, kind = tmp_path / "stock.onnx", QuantType.QInt8 if signed else QuantType.QUInt8
    quantize_static(
        plain,
        path,
        _Reader(),
        quant_format=form,
        per_channel=form is QuantFormat.QDQ,
        activation_type=kind,
        weight_type=QuantType.QInt8,
    )
    found = count_integer_layers(open_model(str(path), bare=True))
    assert found == IntegerLayers(count=2, overflowing=2, signed=2 if signed else 0)


def test_onnxruntimes_own_dynamic_quantization(plain: Path, tmp_path: Path) -> None:
    """Its bytes of convolutions are unsigned, and never overflow."""
    path = tmp_path / "stock.onnx"
    quantize_dynamic(plain, path, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    found = count_integer_layers(open_model(str(path), bare=True))
    assert found == IntegerLayers(count=1, overflowing=1, signed=0)
    quantize_dynamic(plain, path, weight_type=QuantType.QUInt8)
    found = count_integer_layers(open_model(str(path), bare=True))
    assert found == IntegerLayers(count=2, overflowing=0, signed=0)


def test_layers_in_torch() -> None:
    """A layer that is made of another one counts once."""
    torch = pytest.importorskip("torch")
    from tts_compress import compress
    from tts_compress.torch.layers.integer import Int8Linear

    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(8, 4),
        torch.nn.Conv1d(16, 16, 1),
        torch.nn.ConvTranspose1d(16, 16, 4, 2),
    ]
    small = compress(torch.nn.ModuleList(layers), scheme="int8-dynamic")
    assert list(_layers_of_module(small)) == [False] * 3
    first = small[0]
    assert isinstance(first, Int8Linear)
    codes = torch.full((4, 8), 127, dtype=torch.int8)
    small[0] = Int8Linear(first.geometry, {**first.state(), "weight": codes})
    assert list(_layers_of_module(small)) == [True, False, False]


def test_a_hazard_is_reported_where_it_is_one() -> None:
    found = IntegerLayers(count=9, overflowing=4, signed=0)
    (told,) = find_hazards(found, _OLD)
    assert told.startswith("4 of 9 integer layers can overflow the 16-bit sums")
    assert "AVX2 without VNNI" in told
    assert not find_hazards(found, _NEW) + find_hazards(found, _ARM)
    signed = IntegerLayers(count=9, overflowing=0, signed=9)
    for processor in (_OLD, _NEW):
        (told,) = find_hazards(signed, processor)
        assert told.startswith("9 of 9 integer layers have signed activations")
    assert not find_hazards(signed, _ARM)


def test_inspection_reports_kernels_and_hazards(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tts_compress.inspection.components.describe_processor", lambda: _OLD)
    path = tmp_path / "stock.onnx"
    quantize_dynamic(plain, path, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    found = inspect_model(open_model(str(path), bare=True))
    assert found["processor"]["integer_kernels"] == "AVX2 without VNNI"
    assert found["integer_layers"] == {"count": 1, "overflowing": 1, "signed": 0}
    shown = [line for line in inspection_tables(found) if isinstance(line, str)]
    assert "integer layers: 1; kernels here: AVX2 without VNNI" in shown
    assert f"warning: {found['warnings'][0]}" in shown
