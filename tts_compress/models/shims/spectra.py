"""Mel spectrograms and resampling in plain torch, laid out as torchaudio's modules are.

Written from the definitions: triangular filters on the mel scale of HTK, and band-limited
interpolation by a windowed sinc. Buffers have torchaudio's names, since checkpoints store them.
"""

import math

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.numerics.mel import mel_filters


def hz_to_mel(freq: float, mel_scale: str = "htk") -> float:
    """Return a frequency in Hz on the mel scale."""
    _check_scale(mel_scale)
    return 2595 * math.log10(1 + freq / 700)


def mel_to_hz(mels: Tensor, mel_scale: str = "htk") -> Tensor:
    """Return the frequencies in Hz of points on the mel scale."""
    _check_scale(mel_scale)
    return 700 * (10 ** (mels / 2595) - 1)


class MelSpectrogram(nn.Module):
    """Mel spectrogram `[…, mels, frames]` of a signal `[…, samples]`.

    Args:
        sample_rate: Samples per second of the signal, Hz.
        n_fft: Samples in a transform.
        win_length: Samples under the window; by default all of the transform's.
        hop_length: Samples between frames; by default half a window.
        f_min: Lower end of the lowest triangle, Hz.
        f_max: Upper end of the highest triangle, Hz; by default half the sample rate.
        n_mels: Number of triangles.
        power: Exponent of the magnitudes.
        normalized: As torchaudio's; False only.
        center: True to extend the signal so that frames lie around multiples of the hop.
        norm: As torchaudio's; None only.

    Raises:
        ModelError: `normalized` or `norm` is given.
    """

    def __init__(  # noqa: PLR0913 - the arguments are torchaudio's
        self,
        sample_rate: int = 16_000,
        *,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        f_min: float = 0.0,
        f_max: float | None = None,
        n_mels: int = 128,
        power: float = 2.0,
        normalized: bool = False,
        center: bool = True,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        if normalized or norm is not None:
            raise ModelError(
                f"normalized={normalized!r}, norm={norm!r}: only False and None are offered here; "
                "install torchaudio"
            )
        self.n_fft = n_fft
        self.win_length = n_fft if win_length is None else win_length
        self.hop_length = self.win_length // 2 if hop_length is None else hop_length
        self.power = power
        self.center = center
        top = sample_rate // 2  # torchaudio drops the half of an odd rate
        filters = mel_filters(2 * top, n_fft, n_mels, (f_min, top if f_max is None else f_max))
        self.spectrogram, self.mel_scale = nn.Module(), nn.Module()
        self.spectrogram.register_buffer("window", torch.hann_window(self.win_length))
        banks = torch.from_numpy(filters.T.astype("float32", order="C"))  # [frequencies, mels]
        self.mel_scale.register_buffer("fb", banks)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return the mel spectrogram of a signal."""
        spectrum = torch.stft(
            waveform.reshape(-1, waveform.shape[-1]),
            self.n_fft,
            self.hop_length,
            self.win_length,
            window=self.spectrogram.get_buffer("window"),
            center=self.center,
            return_complex=True,
        )  # [signals, frequencies, frames]
        mels = self.mel_scale.get_buffer("fb").T @ spectrum.abs() ** self.power
        return mels.reshape(*waveform.shape[:-1], *mels.shape[-2:])


class Resample(nn.Module):
    """The same signal `[…, samples]` at another sample rate.

    Args:
        orig_freq: Samples per second that come in, Hz.
        new_freq: Samples per second that go out, Hz.
        lowpass_filter_width: Zero crossings of the sinc on either side.
        rolloff: Edge of the filter, as a share of the lower Nyquist frequency.
    """

    def __init__(
        self,
        orig_freq: int = 16_000,
        new_freq: int = 16_000,
        *,
        lowpass_filter_width: int = 6,
        rolloff: float = 0.99,
    ) -> None:
        super().__init__()
        common = math.gcd(int(orig_freq), int(new_freq))
        self.into = int(orig_freq) // common
        self.out = int(new_freq) // common
        # Zero crossings per input sample.
        rate = min(self.into, self.out) * rolloff / self.into
        self.reach = math.ceil(lowpass_filter_width / rate)
        offsets = torch.arange(-self.reach, self.reach + self.into, dtype=torch.float64)
        phases = torch.arange(self.out, dtype=torch.float64)[:, None] * self.into / self.out
        time = ((offsets - phases) * rate).clamp(-lowpass_filter_width, lowpass_filter_width)
        window = torch.cos(time * math.pi / lowpass_filter_width / 2) ** 2
        self.kernel: Tensor  # [out, 1, taps]: one filter per position between input samples
        self.register_buffer(
            "kernel", (torch.sinc(time) * window * rate).float()[:, None], persistent=False
        )

    def forward(self, waveform: Tensor) -> Tensor:
        """Return the signal at the new rate, with `ceil(samples · new / orig)` samples."""
        if self.into == self.out:
            return waveform
        samples = waveform.shape[-1]
        padded = nn.functional.pad(
            waveform.reshape(-1, 1, samples), (self.reach, self.reach + self.into)
        )
        phases = nn.functional.conv1d(padded, self.kernel.to(waveform), stride=self.into)
        resampled = phases.transpose(1, 2).reshape(*waveform.shape[:-1], -1)
        return resampled[..., : math.ceil(samples * self.out / self.into)]


def _check_scale(mel_scale: str) -> None:
    if mel_scale != "htk":
        raise ModelError(f"mel scale {mel_scale!r}: only 'htk' is offered here; install torchaudio")
