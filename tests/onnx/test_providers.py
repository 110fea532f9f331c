"""Providers of onnxruntime by name, and what falls back; the real ones are in test_openvino.py."""

from collections import Counter
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from tts_compress.errors import ModelError
from tts_compress.models import load
from tts_compress.onnx.session import CPU, Sessions, assigned_operators, fallback, find_provider

_ALL = ["TensorrtExecutionProvider", "OpenVINOExecutionProvider", CPU]


def test_a_provider_that_is_missing_is_refused_with_what_installs_it() -> None:
    with pytest.raises(ModelError, match="no provider 'CUDA'; accepted: CPUExecutionProvider"):
        find_provider("CUDA")
    with pytest.raises(ModelError, match=r"no provider 'CudaExecutionProvider'; .* did you mean"):
        find_provider("CudaExecutionProvider")
    there = ", ".join(onnxruntime.get_available_providers())
    told = f"has no DmlExecutionProvider here, but {there}; install onnxruntime-directml in its"
    with pytest.raises(ModelError, match=told):
        find_provider("DmlExecutionProvider")
    with pytest.raises(ModelError, match="cannot read the options 'fast'"):
        find_provider(f"{CPU}?fast")


def test_options_follow_the_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: _ALL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engines = {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(tmp_path / "tts-compress" / "tensorrt"),
    }
    tensorrt, openvino = "TensorrtExecutionProvider", "OpenVINOExecutionProvider?device_type=GPU"
    flags = {"trt_fp16_enable": "1", "trt_int8_enable": "1"}
    chosen = find_provider(f"{tensorrt}?trt_fp16_enable=1&trt_int8_enable=1", 2)
    assert chosen == (tensorrt, engines | flags)
    off = find_provider(f"{tensorrt}?trt_engine_cache_enable=0")[1]
    assert off["trt_engine_cache_enable"] == "0"
    assert find_provider(openvino, 2)[1] == {"num_of_threads": "2", "device_type": "GPU"}
    assert find_provider(openvino)[1] == {"device_type": "GPU"}


def test_a_provider_that_does_not_start_is_no_silent_fallback(
    monkeypatch: pytest.MonkeyPatch, tiny_path: Path
) -> None:
    """Onnxruntime prints a warning where a library of it is missing, and takes the CPU."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: _ALL)
    real = onnxruntime.InferenceSession

    def without(source: Any, settings: Any, providers: Any) -> Any:
        assert providers[0][0] == "OpenVINOExecutionProvider"
        return real(source, settings, providers=[CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", without)
    with pytest.raises(ModelError, match="cannot start OpenVINOExecutionProvider here"):
        Sessions("OpenVINOExecutionProvider").open(tiny_path, "tiny")


def test_operators_that_fall_back_are_told() -> None:
    counts = Counter({("X", "Conv"): 1_000, (CPU, "QLinearConv"): 7, (CPU, "Loop"): 1})
    assert fallback(counts, "X").startswith(
        f"8 of 1,008 operators are not computed by X, but fall back: 7 × QLinearConv ({CPU}), "
        f"1 × Loop ({CPU}); `--format qdq` makes artifacts of standard operators"
    )
    assert fallback(Counter({("X", "Conv"): 3}), "X") == ""
    many = counts + Counter({(CPU, f"Kind{n}"): 1 for n in range(4)})
    assert " and 3 more kinds; " in fallback(many, "X")
    older: Any = object()  # onnxruntime before 1.24
    assert not assigned_operators(older)


def test_a_model_computes_where_it_can(tiny_path: Path) -> None:
    with pytest.raises(ModelError, match="by onnxruntime, which has no device of torch"):
        load(tiny_path, device="cuda")
    with pytest.raises(ModelError, match="install onnxruntime-gpu in its place"):
        load(tiny_path, provider="CUDAExecutionProvider")
