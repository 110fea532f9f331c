"""A stand-in for the parts of torchaudio that f5_tts, vocos and encodec use, where it is missing.

torchaudio is built for one version of torch each, and for processors without an accelerator there
is no build of its latest ones. These three packages import it for a mel spectrogram, a resampler,
two conversions of the mel scale and a function that reads audio files; all else of it is missing
here and raises an error that states so.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from torch import Tensor

from tts_compress.models.shims.spectra import MelSpectrogram, Resample, hz_to_mel, mel_to_hz


def offer_torchaudio() -> None:
    """Let `import torchaudio` succeed: with the real package where it works, else with this one."""
    if "torchaudio" in sys.modules:
        return
    try:
        importlib.import_module("torchaudio")
    except (ImportError, OSError):  # not there; or built for another torch
        for name in [n for n in sys.modules if n.split(".")[0] == "torchaudio"]:
            del sys.modules[name]
        _register("torchaudio", load=load)
        _register("torchaudio.transforms", MelSpectrogram=MelSpectrogram, Resample=Resample)
        _register("torchaudio.functional")
        _register("torchaudio.functional.functional", _hz_to_mel=hz_to_mel, _mel_to_hz=mel_to_hz)


def load(uri: str | Path) -> tuple[Tensor, int]:
    """Read an audio file.

    Returns:
        Samples, float32 `[channels, samples]` in [-1, 1], and the sample rate in Hz.
    """
    import soundfile
    import torch

    samples, sample_rate = soundfile.read(uri, dtype="float32", always_2d=True)
    return torch.from_numpy(samples.T.copy()), int(sample_rate)


def _register(name: str, **contents: Any) -> None:
    """Put a module that holds `contents` where `import` finds it."""

    def missing(attribute: str) -> NoReturn:
        raise AttributeError(
            f"'{name}' has no {attribute!r} here: tts-compress stands in for it, with only what "
            "text-to-speech needs; install torchaudio for all of it"
        )

    module = ModuleType(name, doc=__doc__)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    vars(module).update(contents, __getattr__=missing)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
