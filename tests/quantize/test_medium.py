"""The bars for a voice of Piper's medium size: how small, and how much faster than FP32."""

from __future__ import annotations

import json
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

from tts_compress.models import load
from tts_compress.quantize import compress

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MEDIUM = {
    "inter_channels": 192,
    "hidden_channels": 192,
    "filter_channels": 768,
    "n_layers": 6,
    "upsample_initial_channel": 256,
}


@pytest.fixture(scope="module")
def medium(
    tmp_path_factory: pytest.TempPathFactory,
    make_checkpoint: Callable[..., dict[str, Any]],
    voice_config: dict[str, Any],
) -> Path:
    """Return the `.onnx` of a voice of medium size with seeded random weights."""
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("medium")
    checkpoint = folder / "medium.ckpt"
    torch.save(make_checkpoint(**_MEDIUM), checkpoint)
    config = voice_config | {"audio": {"sample_rate": 22_050, "quality": "medium"}}
    checkpoint.with_name("medium.ckpt.json").write_text(json.dumps(config), encoding="utf-8")
    return load(checkpoint).save(folder / "voice") / "medium.onnx"


def _run(path: Path) -> Callable[[], float]:
    """Return what measures one synthesis of about five seconds in plain onnxruntime, seconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(0).integers(1, 130, size=(1, 170))
    feeds = {
        "input": ids,
        "input_lengths": np.array([170]),
        # Random weights give a frame or two per id; trained voices speak about two and a half.
        "scales": np.array([0.667, 2.0, 0.8], np.float32),
    }

    def measure() -> float:
        start = perf_counter()
        session.run(None, feeds)
        return perf_counter() - start

    return measure


@pytest.mark.slow
def test_int8_is_small_and_faster_than_fp32(
    medium: Path, tmp_path: Path, quick_recipe: Callable[[str], Path]
) -> None:
    assert medium.stat().st_size > 60e6
    small = compress(medium, "int8", recipe=quick_recipe("int8")).save(tmp_path / "small")
    file = small / "medium.onnx"
    assert file.stat().st_size <= 19e6
    runs = [_run(medium), _run(file)]
    times = np.array([[run() for run in runs] for _ in range(12)])  # interleaved
    reference, candidate = times[2:].min(axis=0)  # the first two warm up
    assert reference / candidate >= 1.6
