"""Stand-ins for packages that systems import and hardly use, where the real ones do not work.

An `offer_…` does nothing where the real package is there. Whatever a stand-in lacks can be named
and inherited from, as the importing code does, and reports what to install once it is used.
Spectrograms and resampling are written from the definitions: triangular filters on the mel scale of
HTK, and band-limited interpolation by a windowed sinc. Buffers have torchaudio's names, since
checkpoints store them.
"""

import math
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.numerics.spectra import mel_filters


class MelSpectrogram(nn.Module):
    """Mel spectrogram `[…, mels, frames]` of a signal `[…, samples]`; Args as of torchaudio's."""

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
    """The same signal `[…, samples]` at another sample rate; Args as of torchaudio's."""

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


def resample(waveform: Tensor, orig_freq: int, new_freq: int) -> Tensor:
    """Return the same signal at another sample rate, as `Resample` does by its defaults."""
    resampled: Tensor = Resample(orig_freq, new_freq).to(waveform.device)(waveform)
    return resampled


def offer_torchaudio() -> None:
    """Let `import torchaudio` succeed, of which f5_tts, vocos and encodec use a few functions.

    It is built for one version of torch each, and for processors without an accelerator there is no
    build of its latest ones.
    """
    if not _is_importable("torchaudio"):
        _register("torchaudio", load=load)
        _register("torchaudio.transforms", MelSpectrogram=MelSpectrogram, Resample=Resample)
        _register("torchaudio.functional", resample=resample)
        _register("torchaudio.functional.functional")


def offer_audiotools() -> None:
    """Let the DAC codec import `audiotools` and `argbind`.

    Its modules name a base class, two types and the decorators of its command line from them, and
    they need torchaudio, tensorboard, librosa and more; speaking uses the base class only.
    """
    if not _is_importable("audiotools"):
        install = "descript-audiotools-unofficial"
        _register("audiotools", install)
        _register("audiotools.ml", install, BaseModel=_BaseModel)
        _register("audiotools.core", install)
        _register("audiotools.core.util", install)
    if not _is_importable("argbind"):
        # There is no command line to bind: its decorator leaves a function as it is.
        _register("argbind", bind=lambda *_, **__: lambda function: function)


def offer_f5_trainer() -> None:
    """Let `import f5_tts.model`, which loads its trainer, succeed where that lacks a package."""
    name, needed = "f5_tts.model.trainer", ("accelerate", "datasets", "ema_pytorch", "wandb")
    if name not in sys.modules and any(find_spec(package) is None for package in needed):
        _register(name, " ".join(needed))


def load(uri: str | Path) -> tuple[Tensor, int]:
    """Read an audio file.

    Returns:
        Samples, float32 `[channels, samples]` in [-1, 1], and the sample rate in Hz.
    """
    import soundfile

    samples, sample_rate = soundfile.read(uri, dtype="float32", always_2d=True)
    return torch.from_numpy(samples.T.copy()), int(sample_rate)


class _BaseModel(nn.Module):
    """A module that knows its device; files and packages are not read or written."""

    # Which packages a saved model carries and which it expects; `dac` adds to both.
    INTERN: list[str] = []  # noqa: RUF012 (a list that importers change is the interface)
    EXTERN: list[str] = []  # noqa: RUF012

    @property
    def device(self) -> torch.device:
        """The device of the first weight."""
        return next(self.parameters()).device


def _is_importable(name: str) -> bool:
    if name in sys.modules:
        return True
    try:
        import_module(name)
    # A compiled dependency built for another torch fails in the linker.
    except (ImportError, OSError):
        # Halves of a package whose import failed must not be mixed with its stand-in.
        for left in [module for module in sys.modules if module.split(".")[0] == name]:
            del sys.modules[left]
        return False
    return True


def _register(name: str, install: str = "", **contents: Any) -> None:
    """Put a module that holds `contents` where `import` finds it.

    Args:
        name: Dotted name of the module.
        install: Packages that bring the rest of it; by default the one of its name.
        **contents: Its attributes.
    """
    packages = install or name.split(".", maxsplit=1)[0]

    def missing(attribute: str) -> type:
        if attribute.startswith("__"):  # Python itself looks for some
            raise AttributeError(attribute)

        def refuse(*_: Any, **__: Any) -> Any:
            raise ModelError(
                f"'{name}.{attribute}' is not available: only a stand-in of {name!r} is loaded; "
                f"install what it is part of with: pip install {packages}"
            )

        return type(attribute, (), {"__new__": refuse, "__module__": name})

    module = ModuleType(name, doc=__doc__)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(contents, __getattr__=missing)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
