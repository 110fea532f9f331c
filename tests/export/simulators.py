"""Compilers and simulators of NPUs' makers, where their packages are installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

Run = Callable[[dict[str, Any]], Any]
"""Returns a graph's sound, by its inputs' names."""

_SNAPDRAGON = {"soc_model": "43", "htp_arch": "73"}
"""Snapdragon 8 Gen 2, whose NPU also computes in FP16."""


def open_in_rknn(path: Path) -> Run:
    """Open a graph by Rockchip's rknn-toolkit2; skip without it."""
    rknn: Any = pytest.importorskip("rknn.api")
    inputs = [(v.name, len(v.type.tensor_type.shape.dim)) for v in onnx.load(path).graph.input]
    layouts = ["nchw" if rank == 4 else "undefined" for _, rank in inputs]
    toolkit = rknn.RKNN()
    toolkit.config(target_platform="rk3588")
    assert toolkit.load_onnx(str(path)) == 0
    assert toolkit.build(do_quantization=False) == 0
    assert toolkit.init_runtime(target=None) == 0
    return lambda feeds: toolkit.inference([feeds[name] for name, _ in inputs], layouts)[0]


def open_in_qnn(path: Path) -> Run:
    """Open a graph by Qualcomm's onnxruntime-qnn, which leaves nothing to the CPU; skip without."""
    qnn: Any = pytest.importorskip("onnxruntime_qnn")
    ort: Any = onnxruntime
    if not any(device.ep_name == "QNN" for device in ort.get_ep_devices()):
        ort.register_execution_provider_library("QNN", qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNN"]
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    backend = {"backend_path": qnn.get_qnn_htp_path()}
    options.add_provider_for_devices(devices, _SNAPDRAGON | backend)
    session = ort.InferenceSession(str(path), options)
    return lambda feeds: session.run(None, feeds)[0]
