"""HiFi-GAN V2 as published, as a graph and in torch, and vocoders as functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.clips import SAMPLE_RATE, Clip
from benchmarks.timing import clocked, take_turns
from tts_compress.audio import Audio
from tts_compress.models import open_model
from tts_compress.models.base import OnnxGraph
from tts_compress.onnx.session import open_session
from tts_compress.terminal import show

Vocoder = Callable[[Any], Any]
"""Turns log mel spectra into samples, both numpy arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The vocoder as published."""

    graph: Path
    checkpoint: Path


def find_published(assets: Path) -> Published | None:
    """Return the vocoder in the folder of assets; None where it is not there, which is shown."""
    folder = assets / "hifigan-v2-ljspeech"
    if not folder.is_dir():
        show(f"skipped: '{assets}' holds no {folder.name}; name it by --assets")
        return None
    graph = folder / "generator_v2.fp32.onnx"
    return Published(graph=graph, checkpoint=folder / "generator_v2")


def open_graph(graph: Path) -> OnnxGraph:
    """Return a vocoder in a file as a model."""
    model = open_model(f"onnx:{graph}")
    assert isinstance(model, OnnxGraph)
    return model


def runs(model: object) -> Vocoder:
    """Return a vocoder that runs a graph on one thread."""
    assert isinstance(model, OnnxGraph)
    session = open_session(model.graph(), "a vocoder", threads=1)
    return lambda mel: session.run(None, {"mel": mel})[0]


def calls(module: nn.Module) -> Vocoder:
    """Return a vocoder that calls a module."""

    def call(mel: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(mel)).numpy()

    return call


def sound(vocoder: Vocoder, clip: Clip) -> Audio:
    """Return what a vocoder makes of a clip."""
    return Audio(samples=vocoder(clip.mel).reshape(-1), sample_rate=SAMPLE_RATE)


def least_times(vocoders: dict[str, Vocoder], clip: Clip, rounds: int) -> dict[str, float]:
    """Return the least time of each vocoder in turns, milliseconds."""
    timed = {name: clocked(partial(vocoder, clip.mel)) for name, vocoder in vocoders.items()}
    return {name: min(times) for name, times in take_turns(timed, rounds=rounds).items()}


def build_generator(channels: int = 128) -> Any:
    """Return an untrained generator, of `[B, 80, T]`; by default V2, of 0.9 million weights.

    It is that of Kong et al. (2020), arXiv 2010.05646; SpeechT5's vocoder is the same.
    """
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    class Generator(SpeechT5HifiGan):  # type: ignore[misc]  # an untyped class
        def forward(self, mel: Tensor) -> Any:
            return super().forward(mel.transpose(1, 2)).unsqueeze(1)

    sizes: dict[str, Any] = {
        "upsample_rates": [8, 8, 2, 2],
        "upsample_kernel_sizes": [16, 16, 4, 4],
    }
    sizes |= {"upsample_initial_channel": channels}
    return Generator(SpeechT5HifiGanConfig(normalize_before=False, **sizes)).eval()


def load_generator(checkpoint: Path) -> nn.Module:
    """Return the generator of a published V2 checkpoint, in `eval` mode."""
    network: nn.Module = build_generator()
    network.apply_weight_norm()  # type: ignore[operator]
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)["generator"]
    named = {name.replace("ups.", "upsampler."): value for name, value in state.items()}
    network.load_state_dict(named, strict=False)  # what inputs are normalised by has no effect
    return network
