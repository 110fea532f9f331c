"""Stand-ins for packages that systems import and hardly use, where the real ones do not work.

Each function here does nothing where the real package is there. Whatever a stand-in lacks can be
named and inherited from, as the importing code does, and reports what to install once it is used.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.models.shims.spectra import MelSpectrogram, Resample, hz_to_mel, mel_to_hz


def offer_torchaudio() -> None:
    """Let `import torchaudio` succeed, of which f5_tts, vocos and encodec use a few functions.

    It is built for one version of torch each, and for processors without an accelerator there is no
    build of its latest ones.
    """
    if not _is_importable("torchaudio"):
        _register("torchaudio", load=load)
        _register("torchaudio.transforms", MelSpectrogram=MelSpectrogram, Resample=Resample)
        _register("torchaudio.functional")
        _register("torchaudio.functional.functional", _hz_to_mel=hz_to_mel, _mel_to_hz=mel_to_hz)


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
        _register("argbind", bind=_bind)


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


def _bind(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator that leaves a function as it is: there is no command line to bind."""
    return lambda function: function


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
