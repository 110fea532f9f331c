"""The networks: Piper's own synthesizer, a posterior encoder and small discriminators.

Only the synthesizer is exported; posterior encoder, mel head and discriminators teach it.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import torch
from piper.train.vits.models import PosteriorEncoder, SynthesizerTrn
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import weight_norm

from .features import N_FFT, N_MELS, spectrum


@dataclass(frozen=True)
class VoiceConfig:
    """Arguments of Piper's ``SynthesizerTrn``; the sizes keep the file below 10 MB."""

    n_vocab: int = 256
    spec_channels: int = N_FFT // 2 + 1
    segment_size: int = 32
    inter_channels: int = 80
    hidden_channels: int = 80
    filter_channels: int = 256
    n_heads: int = 2
    n_layers: int = 3
    kernel_size: int = 3
    p_dropout: float = 0.0
    resblock: str = "2"
    resblock_kernel_sizes: tuple[int, ...] = (3, 5, 7)
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 2), (2, 6), (3, 12))
    upsample_rates: tuple[int, ...] = (8, 8, 4)
    upsample_initial_channel: int = 128
    upsample_kernel_sizes: tuple[int, ...] = (16, 16, 8)
    n_speakers: int = 1
    gin_channels: int = 0
    use_sdp: bool = True


def build_voice(config: VoiceConfig) -> Any:
    """Return an untrained synthesizer without Piper's (large) posterior encoder."""
    voice = SynthesizerTrn(**asdict(config))
    del voice.enc_q
    return voice


class Helpers(nn.Module):
    """Networks of the generator's side that are used in training only."""

    def __init__(self, config: VoiceConfig, layers: int = 6) -> None:
        super().__init__()
        width = config.inter_channels
        self.enc_q = PosteriorEncoder(config.spec_channels, width, width, 5, 1, layers)
        self.mel_head = nn.Conv1d(width, N_MELS, 1)

    def posterior(self, log_spec: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[b, 513, T], [b] -> z, mean, log std``, each ``[b, width, T]``."""
        z, mean, log_std, _ = self.enc_q(log_spec, lengths)
        return z, mean, log_std


class SpectrumDiscriminator(nn.Module):
    """Judges the log-magnitude spectrogram of one resolution."""

    def __init__(self, n_fft: int, width: int = 16) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(1, width, (7, 3), (2, 1), (3, 1))),
                weight_norm(nn.Conv2d(width, width, (5, 3), (2, 2), (2, 1))),
                weight_norm(nn.Conv2d(width, 2 * width, (5, 3), (2, 1), (2, 1))),
                weight_norm(nn.Conv2d(2 * width, 2 * width, 3, 1, 1)),
            ]
        )
        self.out = weight_norm(nn.Conv2d(2 * width, 1, 3, 1, 1))

    def forward(self, audio: Tensor) -> list[Tensor]:
        """``[b, n] ->`` feature maps, the last one being the verdict."""
        x = torch.log(spectrum(audio, self.n_fft, self.n_fft // 4).clamp_min(1e-4))
        return _judge(x.unsqueeze(1) / 4 + 1, self.convs, self.out)


class PeriodDiscriminator(nn.Module):
    """Judges the waveform folded at one period."""

    def __init__(self, period: int, width: int = 12) -> None:
        super().__init__()
        self.period = period
        sizes = [1, width, 2 * width, 4 * width, 8 * width]
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)))
            for a, b in itertools.pairwise(sizes)
        )
        self.out = weight_norm(nn.Conv2d(sizes[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, audio: Tensor) -> list[Tensor]:
        """``[b, n] ->`` feature maps, the last one being the verdict."""
        usable = audio.shape[1] // self.period * self.period
        folded = audio[:, :usable].reshape(len(audio), 1, -1, self.period)
        return _judge(folded, self.convs, self.out)


def _judge(x: Tensor, convs: nn.ModuleList, out: nn.Module) -> list[Tensor]:
    maps = []
    for conv in convs:
        x = functional.leaky_relu(conv(x), 0.1)
        maps.append(x)
    return [*maps, out(x)]


class Discriminators(nn.Module):
    """All judges. ``[b, n] ->`` one list of feature maps per judge."""

    def __init__(self) -> None:
        super().__init__()
        spectral = [SpectrumDiscriminator(n) for n in (2048, 1024, 256)]
        periodic = [PeriodDiscriminator(p) for p in (2, 3, 5, 7, 11)]
        self.judges = nn.ModuleList([*spectral, *periodic])

    def forward(self, audio: Tensor) -> list[list[Tensor]]:
        """See the class."""
        return [judge(audio) for judge in self.judges]


def decode(generator: Any, z: Tensor, bfloat16: bool) -> Tensor:
    """Run Piper's decoder, on demand with its inner convolutions in bfloat16.

    The last convolution always stays in float32, where rounding would be audible as noise.
    ``[b, c, T] -> [b, T * 256]``.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        x = generator.conv_pre(z)
        for stage, upsample in enumerate(generator.ups):
            x = upsample(functional.leaky_relu(x, 0.1))
            first = stage * generator.num_kernels
            blocks = [generator.resblocks[first + k](x) for k in range(generator.num_kernels)]
            x = torch.stack(blocks).mean(0)
    audio: Tensor = torch.tanh(generator.conv_post(functional.leaky_relu(x.float())))
    return audio.squeeze(1)
