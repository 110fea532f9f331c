"""Whole voices: rewritten they sound the same to rounding, in every configuration Piper ships."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.onnx.rewrite import rewrite

_FULL = {
    "inter_channels": 192,
    "hidden_channels": 192,
    "filter_channels": 768,
    "n_layers": 6,
    "upsample_initial_channel": 256,
}
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "medium": _FULL,
    "high": {
        **_FULL,
        "resblock": "1",
        "resblock_kernel_sizes": (3, 7, 11),
        "resblock_dilation_sizes": ((1, 3, 5),) * 3,
        "upsample_rates": (8, 8, 2, 2),
        "upsample_kernel_sizes": (16, 16, 4, 4),
        "upsample_initial_channel": 512,
    },
}


def _opened(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    content = model.SerializeToString()
    return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _speak(session: ort.InferenceSession, ids: int) -> np.ndarray:
    """Return the samples without noise: what is random cannot be compared."""
    feeds = {
        "input": np.random.default_rng(ids).integers(1, 100, (1, ids)),
        "input_lengths": np.array([ids], np.int64),
        "scales": np.array([0, 1, 0], np.float32),
    }
    return np.asarray(session.run(None, feeds)[0])


def _check(model: onnx.ModelProto, layers: int, *, splines: int = 3, gates: int = 4) -> None:
    prepared = prepare(model)
    graph = Graph(copy_model(prepared))
    counts = rewrite(graph)
    # In each of 4 couplings the gates, and the outputs of all layers but the last.
    assert counts["split_convolutions"] == 4 * (2 * gates - 1)
    assert counts["merge_pointwise"] == 4
    assert counts["fold_padding"] == 2 * layers
    assert counts["eliminate_identity"] == 4 * (gates + 2)
    assert counts["simplify_attention"] == layers
    assert counts["simplify_splines"] == splines
    stacks = splines + 1  # of 3 layers with 2 normalizations each
    assert counts["fuse_normalization"] == 2 * layers + 6 * stacks
    sessions = _opened(prepared), _opened(graph.model)
    for ids in (1, 7, 31):
        expected, found = (_speak(session, ids) for session in sessions)
        assert expected.shape == found.shape
        assert np.abs(expected - found).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.slow
def test_a_tiny_voice(tiny: GraphModel) -> None:
    _check(tiny.graph(), layers=1, splines=1, gates=2)


@pytest.mark.slow
@pytest.mark.parametrize("name", _CONFIGURATIONS)
def test_every_configuration(
    name: str,
    tmp_path: Path,
    make_checkpoint: Callable[..., dict[str, Any]],
    voice_config: dict[str, Any],
) -> None:
    import json

    torch = pytest.importorskip("torch")
    path = tmp_path / "voice.ckpt"
    torch.save(make_checkpoint(**_CONFIGURATIONS[name]), path)
    path.with_name("voice.ckpt.json").write_text(json.dumps(voice_config), encoding="utf-8")
    voice: Any = load(path)
    _check(voice.graph(), layers=6)
