"""A Parler-TTS model's codec as a graph, and its calibration calls.

The language model is not exported: it runs in torch, step by step with its cache, and has INT8
layers there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tts_compress.export.dac import export_dac
from tts_compress.export.feeds import feeds_writer, observed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from tts_compress.models.base import TorchModel

__all__ = ["recording", "write_graphs"]

_CODEC = "audio_encoder"
"""The component's name, although what is exported of it decodes."""


def write_graphs(model: TorchModel, directory: Path) -> tuple[list[Path], dict[str, Any]]:
    """Write the codec's decoder; return it and what has to be known to call it."""
    codec: Any = getattr(model.root(), _CODEC)
    path = export_dac(codec, directory / f"{_CODEC}.onnx")
    return [path], {"codebook_size": codec.config.codebook_size}


@contextmanager
def recording(model: TorchModel, directory: Path) -> Iterator[list[Path]]:
    """Write the codes that the codec is given for as long as the block lasts."""
    codec: Any = getattr(model.root(), _CODEC)
    path = directory / f"{_CODEC}.npz"
    with feeds_writer(path) as add:

        def see(audio_codes: torch.Tensor, *_: Any, **__: Any) -> None:
            # Parler-TTS' own wrapper takes one axis more.
            codes = audio_codes[0] if audio_codes.ndim == 4 else audio_codes
            add({"codes": codes.cpu().numpy()})

        with observed(codec, "decode", see):
            yield [path]
