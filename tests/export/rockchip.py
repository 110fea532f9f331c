"""Rockchip's converter and simulator, where the package rknn-toolkit2 is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest


def open_in_simulator(path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return a function from a graph's inputs, by name, to its sound; skip without the package."""
    rknn: Any = pytest.importorskip("rknn.api")
    inputs = [(v.name, len(v.type.tensor_type.shape.dim)) for v in onnx.load(path).graph.input]
    layouts = ["nchw" if rank == 4 else "undefined" for _, rank in inputs]
    toolkit = rknn.RKNN()
    toolkit.config(target_platform="rk3588")
    assert toolkit.load_onnx(str(path)) == 0
    assert toolkit.build(do_quantization=False) == 0
    assert toolkit.init_runtime(target=None) == 0
    return lambda feeds: toolkit.inference([feeds[name] for name, _ in inputs], layouts)[0]
