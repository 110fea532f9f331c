"""Upstream's modules, imported from the clone when a model is first needed."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from tts_compress.models.checkout import find_checkout
from tts_compress.models.naturalspeech2.upstream import AMPHION
from tts_compress.models.packages import import_package
from tts_compress.models.shims.torchaudio import offer_torchaudio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tts_compress.models.naturalspeech2.settings import NS2Settings

__all__ = ["Official"]


class Official:
    """The clone, and what upstream's inference is made of.

    Raises:
        ModelError: No clone is named, or another system's was imported into this process.
        MissingExtraError: A package that upstream imports is not installed.
    """

    def __init__(self) -> None:
        self._checkout = find_checkout(AMPHION)
        import_package("torch", AMPHION.extra)
        offer_torchaudio()
        with _silence():  # g2p_en looks for its data when it is imported, and tells
            self.encodec: Any = import_package("encodec", AMPHION.extra).EncodecModel
            self.inference: Any = self._checkout.load("models.tts.naturalspeech2.ns2_inference")
            self.network: Any = self._checkout.load("models.tts.naturalspeech2.ns2")
            self._util: Any = self._checkout.load("utils.util")

    @property
    def clone(self) -> Path:
        """The clone's root."""
        return self._checkout.root

    def config(self, settings: NS2Settings) -> Any:
        """Return settings as upstream's code takes them."""
        return self._util.JsonHParams(
            model=settings.model, preprocess={"lexicon_path": settings.lexicon}
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run upstream's code from its root, and keep what it prints to itself."""
        with self._checkout.running(), _silence():
            yield


@contextmanager
def _silence() -> Iterator[None]:
    with redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
