"""Decoders of the Descript audio codec, and so of Parler-TTS, from codes to audio as one graph.

The language model of Parler-TTS is not exported: it runs in torch, step by step with its cache, and
has INT8 layers there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tts_compress.errors import ModelError
from tts_compress.export.graphs import copy_shell, observed, write_graph
from tts_compress.models.base import TorchModel
from tts_compress.models.feeds import feeds_writer

_CODEC = "audio_encoder"
"""The component's name in Parler-TTS, although the exported part decodes."""

_EXAMPLE_FRAMES = 12


class Snake(nn.Module):
    """The activation x + sin²(αx) / α, with the reciprocal computed once.

    Args:
        official: A `Snake1d`, whose `alpha` is (1, C, 1).
    """

    def __init__(self, official: Any) -> None:
        super().__init__()
        alpha = official.alpha.detach()
        self.alpha = nn.Buffer(alpha)
        self.reciprocal = nn.Buffer((alpha + 1e-9).reciprocal())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of x (B, C, T)."""
        wave = torch.sin(self.alpha * x)
        return x + self.reciprocal * (wave * wave)


class _Codebooks(nn.Module):
    """The official quantizer's way back as a module's call, which names its operators."""

    def __init__(self, official: Any) -> None:
        super().__init__()
        self.official = official

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the decoder's input (B, D, T) of codes (B, codebooks, T)."""
        latents: torch.Tensor = self.official.from_codes(codes)[0]
        return latents


class DacGraph(nn.Module):
    """A codec's way from codes to audio.

    Args:
        dac: A `DacModel` of transformers, Parler-TTS' wrapper, or a `DAC`; it is not changed.
    """

    def __init__(self, dac: nn.Module) -> None:
        super().__init__()
        inner: Any = dac if hasattr(dac, "quantizer") else getattr(dac, "model", dac)
        if not (hasattr(inner, "quantizer") and hasattr(inner, "decoder")):
            raise ModelError(
                f"{type(dac).__name__} has no quantizer and decoder; give a DacModel or a DAC"
            )
        # The encoder is not copied.
        parts = nn.ModuleDict({"quantizer": inner.quantizer, "decoder": inner.decoder})
        shell: Any = copy_shell(parts)
        for parent in list(shell.modules()):
            for name, child in list(parent.named_children()):
                if type(child).__name__ == "Snake1d":  # whichever package it is from
                    setattr(parent, name, Snake(child))
        self.quantizer = _Codebooks(shell["quantizer"])
        self.decoder = shell["decoder"]

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return audio (B, samples) of codes (B, codebooks, T)."""
        audio: torch.Tensor = self.decoder(self.quantizer(codes))
        return audio[:, 0]


def export_dac(dac: nn.Module, path: Path | str) -> Path:
    """Write a codec's decoder as a graph `codes` (B, K, T) int64 → `audio` (B, samples), FP32.

    Args:
        dac: A `DacModel` of transformers, Parler-TTS' wrapper, or a `DAC`; it is not changed.
        path: The `.onnx` file to write.
    """
    module = DacGraph(dac).eval()
    codebooks = len(module.quantizer.official.quantizers)
    example = torch.zeros(1, codebooks, _EXAMPLE_FRAMES, dtype=torch.int64)
    inputs, outputs = {"codes": {0: "batch", 2: "frames"}}, {"audio": {0: "batch", 1: "samples"}}
    return write_graph(module, (example,), inputs, outputs, Path(path))


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the decoder of a Parler-TTS model's codec; return it and the size of its codebooks."""
    codec: Any = getattr(model.root(), _CODEC)
    path = export_dac(codec, directory / f"{_CODEC}.onnx")
    return [path], {"codebook_size": codec.config.codebook_size}


@contextmanager
def recording(model: TorchModel, directory: Path) -> Iterator[list[Path]]:
    """Record the codes that the codec decodes while the block lasts."""
    codec: Any = getattr(model.root(), _CODEC)
    path = directory / f"{_CODEC}.npz"
    with feeds_writer(path) as add:

        def see(audio_codes: torch.Tensor, *_: Any, **__: Any) -> None:
            # Parler-TTS' own wrapper takes one axis more.
            codes = audio_codes[0] if audio_codes.ndim == 4 else audio_codes
            add({"codes": codes.cpu().numpy()})

        with observed(codec, "decode", see):
            yield [path]
