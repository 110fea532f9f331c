"""Decoders of the Descript audio codec, from codes to audio, as one graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tts_compress.errors import ModelError
from tts_compress.export.shells import copy_shell, replace_modules
from tts_compress.export.tracing import Signature, trace, write_graph

__all__ = ["DacGraph", "export_dac"]

_EXAMPLE_FRAMES = 12


class Snake(nn.Module):
    """The activation x + sin²(αx) / α, with the reciprocal computed once.

    Args:
        official: A `Snake1d`, whose `alpha` is (1, C, 1).
    """

    alpha: torch.Tensor
    reciprocal: torch.Tensor

    def __init__(self, official: Any) -> None:
        super().__init__()
        alpha = official.alpha.detach()
        self.register_buffer("alpha", alpha)
        self.register_buffer("reciprocal", (alpha + 1e-9).reciprocal())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the activation of x (B, C, T)."""
        wave = torch.sin(self.alpha * x)
        return x + self.reciprocal * (wave * wave)


class _Codebooks(nn.Module):
    """The official quantizer's way back, as a module's call: that names what happens in it."""

    def __init__(self, official: Any) -> None:
        super().__init__()
        self.official = official

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        """Return what is decoded (B, D, T) of codes (B, codebooks, T)."""
        found: torch.Tensor = self.official.from_codes(codes)[0]
        return found


class DacGraph(nn.Module):
    """A codec's way from codes to audio.

    Args:
        dac: A `DacModel` of transformers, Parler-TTS' wrapper, or a `DAC`; it is not changed.

    Raises:
        ModelError: It has no quantizer or no decoder.
    """

    def __init__(self, dac: nn.Module) -> None:
        super().__init__()
        inner: Any = dac if hasattr(dac, "quantizer") else getattr(dac, "model", dac)
        if not (hasattr(inner, "quantizer") and hasattr(inner, "decoder")):
            raise ModelError(
                f"{type(dac).__name__} has no quantizer and decoder; give a DacModel or a DAC"
            )
        # The encoder is not copied: it is most of what is left.
        parts = nn.ModuleDict({"quantizer": inner.quantizer, "decoder": inner.decoder})
        shell: Any = copy_shell(parts)
        replace_modules(shell, "Snake1d", Snake)
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

    Raises:
        ModelError: The module cannot be exported.
        ArtifactError: The file cannot be written.
    """
    module = DacGraph(dac).eval()
    signature = Signature(
        inputs={"codes": {0: "batch", 2: "frames"}},
        outputs={"audio": {0: "batch", 1: "samples"}},
    )
    example = torch.zeros(
        1, len(module.quantizer.official.quantizers), _EXAMPLE_FRAMES, dtype=torch.int64
    )
    return write_graph(trace(module, (example,), signature), Path(path))
