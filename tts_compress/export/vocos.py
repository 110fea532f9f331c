"""Vocos, from mel to audio, as one graph."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from tts_compress.errors import ModelError
from tts_compress.export.fourier import InverseFourier
from tts_compress.export.tracing import copy_shell, write_graph

_LOUDEST = 100.0
"""Upper limit of magnitudes in Vocos' own head."""

_EXAMPLE_FRAMES = 24


class VocosGraph(nn.Module):
    """A Vocos vocoder without complex numbers.

    Args:
        vocos: The official object; it is not changed.
    """

    def __init__(self, vocos: nn.Module) -> None:
        super().__init__()
        transform = transform_of(vocos)
        shell: Any = copy_shell(vocos)
        if getattr(shell.backbone, "adanorm", False):
            raise ModelError("a Vocos that is told a bandwidth cannot be exported; give a mel one")
        self.backbone = shell.backbone
        self.out = shell.head.out
        size, hop = int(transform.n_fft), int(transform.hop_length)
        if transform.win_length != size:
            raise ModelError(
                f"the window of {transform.win_length} samples is not as long as the transform "
                f"of {size}; such a Vocos cannot be exported"
            )
        trim = size // 2 if transform.padding == "center" else (size - hop) // 2
        self.inverse = InverseFourier(transform.window, hop, trim)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Return audio (B, samples) of mel (B, C, T)."""
        magnitudes, phases = self.out(self.backbone(mel)).chunk(2, dim=2)
        magnitudes = torch.clamp(torch.exp(magnitudes), max=_LOUDEST)
        audio: torch.Tensor = self.inverse(
            magnitudes * torch.cos(phases), magnitudes * torch.sin(phases)
        )
        return audio


def transform_of(vocos: nn.Module) -> Any:
    """Return the official inverse transform, which knows the sizes of frames."""
    transform = getattr(getattr(vocos, "head", None), "istft", None)
    if transform is None or not hasattr(vocos, "backbone"):
        raise ModelError(
            f"{type(vocos).__name__} is no Vocos with an ISTFT head; only that can be exported"
        )
    return transform


def export_vocos(vocos: nn.Module, path: Path | str) -> Path:
    """Write a Vocos vocoder as a graph `mel` (B, C, T) → `audio` (B, samples), FP32.

    Args:
        vocos: The official object; it is not changed.
        path: The `.onnx` file to write.

    Raises:
        ModelError: The module cannot be exported.
        ArtifactError: The file cannot be written.
    """
    module = VocosGraph(vocos).eval()
    example = torch.zeros(1, module.backbone.embed.in_channels, _EXAMPLE_FRAMES)
    inputs, outputs = {"mel": {0: "batch", 2: "frames"}}, {"audio": {0: "batch", 1: "samples"}}
    return write_graph(module, (example,), inputs, outputs, Path(path))
