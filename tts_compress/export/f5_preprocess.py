"""The first graph of F5-TTS: from recording and text to the constant inputs of every step."""

from typing import Any

import torch
from torch import nn
from torch.onnx.operators import shape_as_tensor

from tts_compress.errors import ModelError
from tts_compress.export.fourier import FrameSettings, LogMel
from tts_compress.export.tracing import copy_shell

_PARTS = ("rotary_embed", "time_embed", "text_embed", "input_embed", "transformer_blocks")
"""Attributes by which the DiT is recognized."""

_ROTATION_BASE = 10_000.0
_FULL_SCALE = 32_768
"""Largest value of 16-bit samples."""


class TextEncoder(nn.Module):
    """The embedding of the text, for lengths that are known when the graph runs.

    Args:
        official: The transformer's `text_embed`; it is not changed.

    Raises:
        ModelError: It is of a variant that cannot be exported.
    """

    def __init__(self, official: nn.Module) -> None:
        super().__init__()
        shell: Any = copy_shell(official)
        if shell.average_upsampling:
            raise ModelError("an F5-TTS that spreads its text evenly in time cannot be exported")
        self.text_embed = shell.text_embed
        self.mask_padding = bool(shell.mask_padding)
        self.text_blocks = shell.text_blocks if shell.extra_modeling else nn.ModuleList()
        self.modelled = bool(shell.extra_modeling)
        width = self.text_embed.embedding_dim
        powers = torch.arange(0, width, 2)[: width // 2].float() / width
        self.rates = nn.Buffer(1.0 / (_ROTATION_BASE**powers), persistent=False)
        if self.modelled:
            ours = self.positions(torch.arange(len(shell.freqs_cis)))
            if not torch.allclose(shell.freqs_cis, ours, atol=1e-4):
                raise ModelError("this F5-TTS gives its text other positions than those known here")

    def positions(self, times: torch.Tensor) -> torch.Tensor:
        """Return the positional embedding at times (n,): cosines, then sines (n, D)."""
        angles = torch.outer(times.to(self.rates.dtype), self.rates)
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def forward(self, ids: torch.Tensor, times: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the embedding (1, n, D) of a text.

        Args:
            ids: Symbols (1, n); 0 is padding.
            times: Positions (n,).
            mask: True (1, n) where there is text, also where its symbols are withheld.
        """
        text: torch.Tensor = self.text_embed(ids)
        if not self.modelled:
            return text
        text = text + self.positions(times)
        spoken = mask[..., None].to(text.dtype)
        if self.mask_padding:
            text = text * spoken
        for block in self.text_blocks:
            text = block(text)
            if self.mask_padding:
                text = text * spoken
        return text


class Conditioning(nn.Module):
    """Positions and conditions of the transformer, the same at every step.

    Args:
        transformer: The official `DiT`; it is not changed.

    Raises:
        ModelError: It is none, or of a variant that cannot be exported.
    """

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        for part in _PARTS:
            if not hasattr(transformer, part):
                kind = type(transformer).__name__
                raise ModelError(f"{kind} has no {part}; only F5-TTS' DiT can be exported")
        rotary = transformer.rotary_embed
        if rotary.scale is not None:
            raise ModelError("an F5-TTS with scaled rotary positions cannot be exported")
        self.text_embed = TextEncoder(transformer.text_embed)
        rates = rotary.inv_freq.detach() / rotary.interpolation_factor
        self.rates = nn.Buffer(rates, persistent=False)

    def conditions(
        self, mel: torch.Tensor, text_ids: torch.Tensor, duration: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return cosines and sines (1, n, head), and the conditions (1, n, bands + D).

        Args:
            mel: The recording (1, T, bands); zeros follow it.
            text_ids: Symbols (1, N).
            duration: n, a tensor without axes.

        Returns:
            The two tensors of rotary positions, the condition with recording and text, and the
            one without.
        """
        length: Any = duration  # a tensor, so that the tracer follows it
        times = torch.arange(length)
        mel = _fitted(mel, times)
        ids = _fitted((text_ids.long() + 1)[..., None], times)[..., 0]
        angles = torch.outer(times.to(self.rates.dtype), self.rates)
        angles = torch.stack([angles, angles], dim=-1).flatten(1)[None]
        text = self.text_embed(ids, times, ids != 0)
        no_text = self.text_embed(torch.zeros_like(ids), times, ids != 0)
        conditions = [(mel, text), (torch.zeros_like(mel), no_text)]
        return (angles.cos(), angles.sin(), *(torch.cat(pair, dim=-1) for pair in conditions))


class Preprocess(Conditioning):
    """The first graph.

    Args:
        transformer: The official `DiT`; it is not changed.
        frames: Settings of its mel spectrograms.
    """

    def __init__(self, transformer: Any, frames: FrameSettings) -> None:
        super().__init__(transformer)
        self.hop = frames.hop_length
        self.mel = LogMel(frames)

    def forward(
        self, audio: torch.Tensor, text_ids: torch.Tensor, max_duration: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return noise, positions, conditions and the recording's length.

        Args:
            audio: The recording (1, 1, L), int16.
            text_ids: Symbols (1, N), int32: those of the recording, then those to speak.
            max_duration: Frames of recording and speech together (1,), int64.
        """
        mel = self.mel(audio[:, 0].float() / _FULL_SCALE)
        # At least one frame is spoken, as upstream does.
        least = torch.maximum(shape_as_tensor(mel)[1], shape_as_tensor(text_ids)[1]) + 1
        duration = torch.maximum(max_duration[0], least)
        cosines, sines, condition, unconditioned = self.conditions(mel, text_ids, duration)
        noise = torch.randn_like(condition[:, :, : mel.shape[2]])
        samples = shape_as_tensor(audio)[2:]
        return noise, cosines, sines, condition, unconditioned, samples // self.hop


def _fitted(values: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
    """Return values (1, T, C) at times (n,), with zeros after their end."""
    length = shape_as_tensor(values)[1]
    found = values[:, torch.minimum(times, length - 1)]
    within = (times < length).to(found.dtype)
    return found * within[None, :, None]
