"""A voice of Supertonic's structure with random weights, in the layout that its package reads."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.supertonic.structure import (
    FACTOR,
    HOP,
    LATENT,
    STYLE,
    STYLE_DP,
    DurationPredictor,
    Sizes,
    TextEncoder,
    VectorEstimator,
    Vocoder,
)

_TEXT, _LATENT = {0: "batch", 1: "text"}, {0: "batch", 2: "latent"}
_AXES = {
    "text_ids": _TEXT,
    "text_mask": {0: "batch", 2: "text"},
    "text_emb": {0: "batch", 2: "text"},
    "style_dp": {0: "batch"},
    "style_ttl": {0: "batch"},
    "noisy_latent": _LATENT,
    "denoised_latent": _LATENT,
    "latent_mask": _LATENT,
    "latent": _LATENT,
    "current_step": {0: "batch"},
    "total_step": {0: "batch"},
    "duration": {0: "batch"},
    "wav_tts": {0: "batch", 1: "samples"},
}


def write_voice(folder: Path, sizes: Sizes, *, seed: int = 0) -> Path:
    """Write the graphs, settings and two voices, and return the graph that comes first."""
    onnx = folder / "onnx"
    onnx.mkdir(parents=True)
    torch.manual_seed(seed)
    tokens, frames = 7, 5
    ids, text_mask = torch.ones(1, tokens, dtype=torch.int64), torch.ones(1, 1, tokens)
    style, style_dp = torch.randn(1, *STYLE), torch.randn(1, *STYLE_DP)
    latent, latent_mask = torch.randn(1, LATENT * FACTOR, frames), torch.ones(1, 1, frames)
    one = torch.ones(1)
    emb = torch.randn(1, sizes.text, tokens)
    _export(
        DurationPredictor(sizes),
        {"text_ids": ids, "style_dp": style_dp, "text_mask": text_mask},
        "duration",
        onnx / "duration_predictor.onnx",
    )
    _export(
        TextEncoder(sizes),
        {"text_ids": ids, "style_ttl": style, "text_mask": text_mask},
        "text_emb",
        onnx / "text_encoder.onnx",
    )
    _export(
        VectorEstimator(sizes),
        {
            "noisy_latent": latent,
            "text_emb": emb,
            "style_ttl": style,
            "latent_mask": latent_mask,
            "text_mask": text_mask,
            "current_step": 0 * one,
            "total_step": 8 * one,
        },
        "denoised_latent",
        onnx / "vector_estimator.onnx",
    )
    _export(Vocoder(sizes), {"latent": latent}, "wav_tts", onnx / "vocoder.onnx")
    settings = {
        "tts_version": "random weights",
        "ae": {"sample_rate": 44_100, "base_chunk_size": HOP},
        "ttl": {"latent_dim": LATENT, "chunk_compress_factor": FACTOR},
    }
    (onnx / "tts.json").write_text(json.dumps(settings), encoding="utf-8")
    indexer = [n - 31 if 32 <= n < 127 else -1 for n in range(1 << 16)]
    (onnx / "unicode_indexer.json").write_text(json.dumps(indexer), encoding="utf-8")
    for number, name in enumerate(("F1", "M1")):
        _write_style(folder / "voice_styles" / f"{name}.json", number)
    return onnx / "duration_predictor.onnx"


def _write_style(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    random = np.random.default_rng(seed)
    shapes = {"style_ttl": (1, *STYLE), "style_dp": (1, *STYLE_DP)}
    style = {
        name: {
            "data": random.standard_normal(shape).round(4).tolist(),
            "dims": shape,
            "type": "float32",
        }
        for name, shape in shapes.items()
    }
    path.write_text(json.dumps(style), encoding="utf-8")


def _export(module: nn.Module, inputs: dict[str, torch.Tensor], output: str, path: Path) -> None:
    names = [*inputs]
    torch.onnx.export(
        module.eval(),
        tuple(inputs.values()),
        str(path),
        input_names=names,
        output_names=[output],
        dynamic_axes={name: _AXES[name] for name in (*names, output)},
        opset_version=17,
        dynamo=False,
    )
