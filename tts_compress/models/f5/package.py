"""The official f5_tts package, and what F5-TTS's inference takes for granted."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXTRA", "HOP_LENGTH", "SAMPLE_RATE", "official", "quiet"]

EXTRA = "f5"

SAMPLE_RATE = 24_000
"""Samples per second of what every F5-TTS model speaks, Hz."""

HOP_LENGTH = 256
"""Samples per frame of its mel spectrograms."""


def official(name: str) -> Any:
    """Return a module of the package, such as `f5_tts.api`, or of what it is built on.

    Raises:
        MissingExtraError: The package, or another one that it imports, is not installed.
    """
    try:
        from tts_compress.models.shims.f5_trainer import offer_f5_trainer
        from tts_compress.models.shims.torchaudio import offer_torchaudio

        offer_torchaudio()
        offer_f5_trainer()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of programs that other audio formats need
            return import_module(name)
    except ImportError as error:
        raise MissingExtraError(_missing(error) or name.split(".", maxsplit=1)[0], EXTRA) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what the package prints out of our own output, which programs read."""
    with redirect_stdout(io.StringIO()):
        yield


def _missing(error: BaseException | None) -> str | None:
    """Return the module that an import failed for; libraries that import late wrap the reason."""
    name = error.name if isinstance(error, ImportError) else None
    return name if error is None or name else _missing(error.__cause__)
