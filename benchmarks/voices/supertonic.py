"""Supertonic's four graphs as published, of any size, with random weights, and a voice's files.

After SupertonicTTS (arXiv 2503.23108) and the inputs, outputs and sizes of the published graphs,
because its package holds no networks. Left out: relative positions in the text encoder, guidance.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.voices.voice import DURATIONS, BenchVoice, built, export_graph

LATENT, FACTOR, HOP = 24, 6, 512
"""Channels of a latent frame, latent frames that are one, samples of a frame."""

STYLE, STYLE_DP = (50, 256), (8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of the four graphs; by default those of version 3."""

    characters: int = 9_000
    text: int = 256
    text_hidden: int = 1_024
    text_blocks: int = 6
    text_attentions: int = 4
    duration: int = 64
    estimator: int = 512
    estimator_hidden: int = 2_048
    cycles: int = 4
    heads: int = 8
    vocoder: int = 512
    vocoder_hidden: int = 2_048
    dilations: tuple[int, ...] = (1, 2, 4, 1, 2, 4, 1, 1, 1, 1)


TINY = Sizes(
    characters=128,
    text=32,
    text_hidden=64,
    text_blocks=1,
    text_attentions=1,
    duration=16,
    estimator=32,
    estimator_hidden=64,
    cycles=1,
    heads=2,
    vocoder=32,
    vocoder_hidden=64,
    dilations=(1, 2),
)


class _ConvNeXt(nn.Module):
    """Depthwise convolution, LayerNorm, two pointwise convolutions, GELU; of frames `[B, C, T]`."""

    def __init__(
        self, channels: int, hidden: int, kernel: int, dilation: int = 1, *, causal: bool = False
    ) -> None:
        super().__init__()
        reach = dilation * (kernel - 1)
        self.padding = (reach, 0) if causal else (reach // 2, reach // 2)
        self.dwconv = nn.Conv1d(channels, channels, kernel, groups=channels, dilation=dilation)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Conv1d(channels, hidden, 1)
        self.pwconv2 = nn.Conv1d(hidden, channels, 1)
        self.gamma = nn.Parameter(torch.full((1, channels, 1), 0.3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        hidden = self.dwconv(functional.pad(x, self.padding, mode="replicate"))
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        hidden = self.pwconv2(functional.gelu(self.pwconv1(hidden)))
        x = x + self.gamma * hidden
        return x if mask is None else x * mask


class _Attention(nn.Module):
    """Attention of frames to others, with or without rotated positions, and LayerNorm."""

    theta: Tensor
    increments: Tensor

    def __init__(self, channels: int, others: int, heads: int, *, rotary: bool) -> None:
        super().__init__()
        self.heads = heads
        self.W_query = nn.Linear(channels, channels)
        self.W_key = nn.Linear(others, channels)
        self.W_value = nn.Linear(others, channels)
        self.out_fc = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.rotary = rotary
        half = channels // heads // 2
        self.register_buffer("increments", torch.arange(1_000.0).reshape(1, -1, 1))
        self.register_buffer("theta", 10 * 10_000 ** (-torch.arange(half) / half))

    def forward(self, x: Tensor, others: Tensor, mask: Tensor | None = None) -> Tensor:
        frames = x.transpose(1, 2)
        sides = ((self.W_query, frames), (self.W_key, others), (self.W_value, others))
        query, key, value = (
            layer(of).reshape(len(x), -1, self.heads, x.shape[1] // self.heads).transpose(1, 2)
            for layer, of in sides
        )
        if self.rotary:
            query, key = self._rotated(query), self._rotated(key)
        scores = query @ key.transpose(2, 3) / query.shape[3] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e4)
        attended = (torch.softmax(scores, 3) @ value).transpose(1, 2).flatten(2)
        normed: Tensor = self.norm(frames + self.out_fc(attended))
        return normed.transpose(1, 2)

    def _rotated(self, x: Tensor) -> Tensor:
        angles = self.increments[:, : x.shape[2]] / x.shape[2] * self.theta
        first, second = x.chunk(2, 3)
        sine, cosine = angles.sin(), angles.cos()
        return torch.cat((first * cosine - second * sine, first * sine + second * cosine), 3)


class _Feed(nn.Module):
    """Self-attention and two layers, as of a Transformer's encoder."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.attention = _Attention(channels, channels, 4, rotary=False)
        self.conv_1 = nn.Conv1d(channels, hidden, 1)
        self.conv_2 = nn.Conv1d(hidden, channels, 1)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention(x, x.transpose(1, 2), mask)
        x = x + self.conv_2(torch.relu(self.conv_1(x)))
        normed: Tensor = self.norm(x.transpose(1, 2))
        return normed.transpose(1, 2) * mask


def _repeated(count: int, make: Callable[[], nn.Module]) -> nn.ModuleList:
    return nn.ModuleList(make() for _ in range(count))


class _DurationPredictor(nn.Module):
    """Seconds of a text."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels = sizes.duration
        self.char_embedder = nn.Embedding(sizes.characters, channels)
        self.convnext = _repeated(sizes.text_blocks, lambda: _ConvNeXt(channels, 4 * channels, 5))
        self.attention = _Feed(channels, 4 * channels)
        self.layer1 = nn.Linear(channels + STYLE_DP[0] * STYLE_DP[1], 128)
        self.layer2 = nn.Linear(128, 1)
        nn.init.constant_(self.layer2.bias, 0.0)

    def forward(self, text_ids: Tensor, style_dp: Tensor, text_mask: Tensor) -> Tensor:
        """Return seconds, shape [B]."""
        x: Tensor = self.char_embedder(text_ids).transpose(1, 2) * text_mask
        for block in self.convnext:
            x = block(x, text_mask)
        x = self.attention(x, text_mask)
        x = torch.cat(((x * text_mask).sum(2) / text_mask.sum(2), style_dp.flatten(1)), 1)
        rate: Tensor = torch.sigmoid(self.layer2(torch.relu(self.layer1(x)))[:, 0])
        return (0.05 + 0.02 * rate) * text_mask.sum((1, 2))


class _TextEncoder(nn.Module):
    """Embeddings of characters that know the voice."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, hidden = sizes.text, sizes.text_hidden
        self.char_embedder = nn.Embedding(sizes.characters, channels)
        self.convnext = _repeated(sizes.text_blocks, lambda: _ConvNeXt(channels, hidden, 5))
        self.attn_encoder = _repeated(sizes.text_attentions, lambda: _Feed(channels, hidden))
        self.prompted = _repeated(2, lambda: _Attention(channels, STYLE[1], 2, rotary=False))

    def forward(self, text_ids: Tensor, style_ttl: Tensor, text_mask: Tensor) -> Tensor:
        """Return embeddings, shape [B, C, T]."""
        x: Tensor = self.char_embedder(text_ids).transpose(1, 2) * text_mask
        for block in (*self.convnext, *self.attn_encoder):
            x = block(x, text_mask)
        for layer in self.prompted:
            x = layer(x, style_ttl)
        return x * text_mask


class _Cycle(nn.Module):
    """ConvNeXt blocks with growing dilation, time, text and voice."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, hidden = sizes.estimator, sizes.estimator_hidden
        dilations = (1, 2, 4, 8, 1, 1)
        blocks = [_ConvNeXt(channels, hidden, 5, dilation) for dilation in dilations]
        self.convnext = nn.ModuleList(blocks)
        self.linear = nn.Linear(64, channels)
        self.text = _Attention(channels, sizes.text, sizes.heads, rotary=True)
        self.style = _Attention(channels, STYLE[1], 2, rotary=False)

    def forward(
        self, x: Tensor, time: Tensor, text: Tensor, style: Tensor, masks: tuple[Tensor, Tensor]
    ) -> Tensor:
        own, others = masks
        for block in self.convnext[:4]:
            x = block(x, own)
        x = self.convnext[4](x + self.linear(time).unsqueeze(2), own)
        x = self.text(x, text.transpose(1, 2), others)
        normed: Tensor = self.style(self.convnext[5](x, own), style)
        return normed * own


class _VectorEstimator(nn.Module):
    """One step of flow matching: a latent with less noise."""

    frequencies: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels = sizes.estimator
        self.proj_in = nn.Conv1d(LATENT * FACTOR, channels, 1, bias=False)
        self.mlp1, self.mlp2 = nn.Linear(64, 256), nn.Linear(256, 64)
        self.main_blocks = nn.ModuleList(_Cycle(sizes) for _ in range(sizes.cycles))
        last = partial(_ConvNeXt, channels, sizes.estimator_hidden, 5)
        self.last_convnext = _repeated(sizes.cycles, last)
        self.proj_out = nn.Conv1d(channels, LATENT * FACTOR, 1, bias=False)
        self.register_buffer("frequencies", 1_000 * 10_000 ** (-torch.arange(32) / 31))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the next latent of latent, text, style, two masks, step and steps."""
        noisy_latent, text_emb, style_ttl, latent_mask, text_mask, step, total_step = inputs
        angles = (step / total_step).unsqueeze(1) * self.frequencies
        time = self.mlp1(torch.cat((angles.sin(), angles.cos()), 1))
        time = self.mlp2(functional.mish(time))
        x = self.proj_in(noisy_latent) * latent_mask
        for cycle in self.main_blocks:
            x = cycle(x, time, text_emb, style_ttl, (latent_mask, text_mask))
        for block in self.last_convnext:
            x = block(x, latent_mask)
        velocity: Tensor = self.proj_out(x) * latent_mask
        return noisy_latent + velocity / total_step.reshape(-1, 1, 1)


class _Vocoder(nn.Module):
    """Samples of a latent."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, hidden = sizes.vocoder, sizes.vocoder_hidden
        self.embed = nn.Conv1d(LATENT, channels, 7)
        blocks = [
            _ConvNeXt(channels, hidden, 7, dilation, causal=True) for dilation in sizes.dilations
        ]
        self.convnext = nn.ModuleList(blocks)
        self.final_norm = nn.BatchNorm1d(channels)
        self.layer1 = nn.Conv1d(channels, hidden, 3)
        self.act = nn.PReLU()
        self.layer2 = nn.Conv1d(hidden, HOP, 1, bias=False)

    def forward(self, latent: Tensor) -> Tensor:
        """Return samples, shape [B, 3072 * T]."""
        x = (latent / 0.25).reshape(len(latent), LATENT, FACTOR, -1).transpose(2, 3).flatten(2)
        x = self.embed(functional.pad(x, (6, 0), mode="replicate"))
        for block in self.convnext:
            x = block(x)
        x = self.layer1(functional.pad(self.final_norm(x), (2, 0), mode="replicate"))
        frames: Tensor = self.layer2(self.act(x))
        return 0.1 * frames.transpose(1, 2).flatten(1)


_BATCH = {0: "batch"}
_TEXT, _FRAMES = {0: "batch", 1: "text"}, {0: "batch", 2: "latent"}
_MASK = {0: "batch", 2: "text"}
_AXES = {
    "text_ids": _TEXT,
    "text_mask": _MASK,
    "text_emb": _MASK,
    **dict.fromkeys(("style_dp", "style_ttl", "current_step", "total_step", "duration"), _BATCH),
    **dict.fromkeys(("noisy_latent", "denoised_latent", "latent_mask", "latent"), _FRAMES),
    "wav_tts": {0: "batch", 1: "samples"},
}
_GRAPHS: dict[str, tuple[Callable[[Sizes], nn.Module], str, str]] = {
    "duration_predictor": (_DurationPredictor, "text_ids style_dp text_mask", "duration"),
    "text_encoder": (_TextEncoder, "text_ids style_ttl text_mask", "text_emb"),
    "vector_estimator": (
        _VectorEstimator,
        "noisy_latent text_emb style_ttl latent_mask text_mask current_step total_step",
        "denoised_latent",
    ),
    "vocoder": (_Vocoder, "latent", "wav_tts"),
}


def write_voice(folder: Path, sizes: Sizes) -> Path:
    """Write the graphs, settings and two voices, and return the graph that comes first."""
    onnx = folder / "onnx"
    onnx.mkdir(parents=True)
    torch.manual_seed(0)
    tokens, frames, one = 7, 5, torch.ones(1)
    samples = {
        "text_ids": torch.ones(1, tokens, dtype=torch.int64),
        "text_mask": torch.ones(1, 1, tokens),
        "text_emb": torch.randn(1, sizes.text, tokens),
        "style_ttl": torch.randn(1, *STYLE),
        "style_dp": torch.randn(1, *STYLE_DP),
        **dict.fromkeys(("noisy_latent", "latent"), torch.randn(1, LATENT * FACTOR, frames)),
        "latent_mask": torch.ones(1, 1, frames),
        "current_step": 0 * one,
        "total_step": 8 * one,
    }
    for name, (kind, inputs, output) in _GRAPHS.items():
        taken = {key: samples[key].clone() for key in inputs.split()}
        axes = {key: _AXES[key] for key in (*taken, output)}
        export_graph(kind(sizes), taken, axes, onnx / f"{name}.onnx")
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
        name: {"data": random.standard_normal(shape).round(4).tolist(), "dims": shape}
        | {"type": "float32"}
        for name, shape in shapes.items()
    }
    path.write_text(json.dumps(style), encoding="utf-8")


_SPEC = built(
    "onnx/duration_predictor.onnx",
    partial(write_voice, sizes=Sizes()),
    [Path(__file__)],
    ["torch"],
)
VOICES = (
    # The only output of the first graph are the seconds of the whole.
    BenchVoice(name="supertonic", spec=_SPEC, held=lambda of: {DURATIONS: of.output[0].name}),
)
