"""Weights that are all alike and large, the worst for 16-bit sums, are safe in every form."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.graphs import make_model, make_node
from tts_compress.compression import compress
from tts_compress.models.integers import count_integer_layers


@pytest.fixture
def alike(tmp_path: Path) -> Path:
    """Return a graph, [1, 32, T] in, of two convolutions and a product with weights of one sign."""
    generator = np.random.default_rng(0)
    shapes = {"first": (32, 32, 3), "second": (32, 32, 3), "matrix": (32, 32)}
    nodes = [
        make_node("Conv", "x first", "a", "/first/Conv", pads=[1, 1]),
        make_node("LeakyRelu", "a", "b", "/LeakyRelu", alpha=0.1),
        make_node("Conv", "b second", "c", "/second/Conv", pads=[1, 1]),
        make_node("Transpose", "c", "d", "/Transpose", perm=[0, 2, 1]),
        make_node("MatMul", "d matrix", "y", "/matrix/MatMul"),
    ]
    weights = {name: generator.uniform(0.9, 1, shape) for name, shape in shapes.items()}
    model = make_model(nodes, {"x": [1, 32, "t"]}, {"y": [1, "t", 32]}, weights)
    onnx.save(model, tmp_path / "alike.onnx")
    return tmp_path / "alike.onnx"


@pytest.mark.parametrize(
    ("scheme", "layers"), [("int8", 2), ("int8-static", 2), ("int8-dynamic", 1)]
)
def test_no_two_products_exceed_16_bits(
    alike: Path, tmp_path: Path, scheme: str, layers: int
) -> None:
    calibration = None
    if scheme != "int8-dynamic":
        calibration = str(tmp_path / "feeds.npz")
        x = np.random.default_rng(1).normal(size=(1, 32, 40)).astype(np.float32)
        np.savez(calibration, **{"0/x": x})  # type: ignore[arg-type]
    small = compress(f"onnx:{alike}", scheme, calibration=calibration)
    found = count_integer_layers(small)
    assert found.count >= layers
    assert found.overflowing == 0
