"""A real vocoder, HiFi-GAN V2, through the command line: how it sounds, how small it is.

`tests/test_front_benchmark.py` compares it with stock quantization, by words, too.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from benchmarks.clips import SAMPLE_RATE, Clip, read_clips, write_feeds
from tts_compress.audio import resample
from tts_compress.cli import main

pytestmark = pytest.mark.slow

_MOST_LOST = 0.1
"""Largest loss of the mean opinion that DNSMOS P.835 predicts, from 1 to 5."""

_WINDOW = 144_160
"""9.01 s at 16 kHz, the length of the quality model's input."""


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def clips(assets: Path) -> list[Clip]:
    """Return recordings; every other one is held out."""
    return read_clips(assets, 32)


@pytest.fixture(scope="module")
def reference(assets: Path) -> Path:
    return assets / "hifigan-v2-ljspeech" / "generator_v2.fp32.onnx"


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory, clips: list[Clip], reference: Path) -> Path:
    """Return the INT8 vocoder, calibrated on the clips that are not held out."""
    folder = tmp_path_factory.mktemp("vocoder")
    feeds = write_feeds(folder / "feeds.npz", clips[::2])
    arguments = ["quantize", str(reference), "--calibration", str(feeds)]
    arguments += ["--quality", "fast", "--no-time"]
    assert main([*arguments, "--output", str(folder / "small")]) == 0
    return folder / "small" / reference.name


@pytest.fixture(scope="module")
def opinion(assets: Path, clips: list[Clip]) -> Callable[[Path], float]:
    """Return a function that scores a vocoder on the held-out clips."""
    judge = _session(assets / "dnsmos" / "sig_bak_ovr.onnx")

    def overall(samples: Any) -> float:
        short = resample(samples, SAMPLE_RATE, 16_000)
        long = np.tile(short, -(-_WINDOW // len(short)))[None, :_WINDOW]
        raw = judge.run(None, {"input_1": long})[0][0, 2]
        return float(np.polyval([-0.06766283, 1.11546468, 0.04602535], raw))

    def score(path: Path) -> float:
        session = _session(path)
        sounds = [session.run(None, {"mel": clip.mel})[0].reshape(-1) for clip in clips[1::2]]
        return float(np.mean([overall(sound) for sound in sounds]))

    return score


def test_int8_sounds_nearly_like_fp32_and_damage_is_heard(
    opinion: Callable[[Path], float], reference: Path, candidate: Path, tmp_path: Path
) -> None:
    """A vocoder whose largest weight lost six of its eight bits does not pass."""
    model = onnx.load(candidate)
    weights = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT8]
    largest = max(weights, key=lambda tensor: tensor.ByteSize())
    codes = numpy_helper.to_array(largest)
    largest.CopyFrom(numpy_helper.from_array(codes // 64 * 64, largest.name))
    onnx.save(model, tmp_path / "damaged.onnx")
    before, after, damaged = map(opinion, (reference, candidate, tmp_path / "damaged.onnx"))
    print(f"OVR {before:.3f}, {after:.3f} in INT8, {damaged:.3f} damaged")
    assert before == pytest.approx(3.18, abs=0.25)  # published, of more clips
    assert after > before - _MOST_LOST > damaged


def test_int8_is_small_and_most_layers_multiply_integers(candidate: Path) -> None:
    """`make bench-vocoder` measures by how much that is faster."""
    assert candidate.stat().st_size <= 1.15e6
    kinds = Counter(node.op_type for node in onnx.load(candidate).graph.node)
    integers = kinds["QLinearConv"] + kinds["MatMulIntegerToFloat"]
    assert integers > 3 * (kinds["Conv"] + kinds["ConvTranspose"])
