"""Stand-ins for what the DAC codec imports from `audiotools` and `argbind`.

Parler-TTS imports `dac`, whose modules name a base class, two types and the decorators of its
command line from these packages, which in turn need torchaudio, tensorboard, librosa and more.
Speaking uses the base class only: a `torch.nn.Module` that knows its device. So that is what stands
in for it. Everything else can be named, and reports what is missing as soon as it is used: reading
audio files, training losses, DAC's own command line. Real packages are never replaced.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tts_compress.errors import ModelError

_INSTALL = {"audiotools": "descript-audiotools-unofficial", "argbind": "argbind"}


def offer_audiotools() -> None:
    """Make `audiotools` and `argbind` importable; each stands in only where the real one fails."""
    for name, build in (("audiotools", _audiotools), ("argbind", _argbind)):
        if not _is_importable(name):
            sys.modules.update(build())


def _is_importable(name: str) -> bool:
    before = set(sys.modules)
    try:
        importlib.import_module(name)
    # A compiled dependency built for another torch fails in the linker.
    except (ImportError, OSError):
        # Halves of a package whose import failed must not be mixed with its stand-in.
        for left in set(sys.modules) - before:
            if left.split(".")[0] == name:
                del sys.modules[left]
        return False
    return True


def _audiotools() -> dict[str, ModuleType]:
    from torch import nn

    class BaseModel(nn.Module):
        """A module that knows its device; files and packages are not read or written."""

        # Which packages a saved model carries and which it expects; `dac` adds to both.
        INTERN: list[str] = []  # noqa: RUF012 (a list that importers change is the interface)
        EXTERN: list[str] = []  # noqa: RUF012

        @property
        def device(self) -> Any:
            """The device of the first weight."""
            return next(self.parameters()).device

    module = _module("audiotools", package=True)
    learning = _module("audiotools.ml", package=True)
    core = _module("audiotools.core", package=True)
    util = _module("audiotools.core.util")
    learning.__dict__.update(BaseModel=BaseModel, Accelerator=_missing("audiotools", "Accelerator"))
    for name in ("find_audio", "info"):
        util.__dict__[name] = _missing("audiotools", name)
    core.__dict__["util"] = util
    for name in ("AudioSignal", "STFTParams"):
        module.__dict__[name] = _missing("audiotools", name)
    module.__dict__.update(ml=learning, core=core)
    return {part.__name__: part for part in (module, learning, core, util)}


def _argbind() -> dict[str, ModuleType]:
    def bind(*_: Any, **__: Any) -> Callable[[Any], Any]:
        """Return a decorator that leaves a function as it is: there is no command line to bind."""
        return lambda function: function

    module = _module("argbind")
    module.__dict__["bind"] = bind
    for name in ("parse_args", "scope"):
        module.__dict__[name] = _missing("argbind", name)
    return {"argbind": module}


def _module(name: str, *, package: bool = False) -> ModuleType:
    """Return an empty module that `importlib.util.find_spec` accepts."""
    module = ModuleType(name, "A stand-in; see tts_compress.models.shims.audiotools.")
    module.__spec__ = ModuleSpec(name, None, is_package=package)
    if package:
        module.__path__ = []
    return module


def _missing(package: str, name: str) -> type:
    """Return a class that can be named and inherited from, but not made."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ModelError(
            f"'{package}.{name}' is not available: only a stand-in of {package!r} is loaded; "
            f"install the package with: pip install {_INSTALL[package]}"
        )

    return type(name, (), {"__new__": refuse, "__module__": package})
