"""Upstream's modules, imported from the clone when a model is first needed."""

from __future__ import annotations

import io
import warnings
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from tts_compress.models.checkout import find_checkout
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.packages import import_package
from tts_compress.models.shims.torchaudio import offer_torchaudio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tts_compress.models.checkout import Checkout

__all__ = ["Official", "load_official"]


class Official:
    """The clone, and what upstream's inference is made of.

    Args:
        checkout: Where its code lies.
    """

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in its strings, of old forms of torch's
            self.inference = checkout.load("TTS_infer_pack.TTS")
            self.t2s = checkout.load("AR.models.t2s_model")
            self.speaker = checkout.load("sv")

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run upstream's code from its root; it prints its progress, which nobody sees."""
        with self.checkout.running(), warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            stack.enter_context(redirect_stdout(io.StringIO()))
            stack.enter_context(redirect_stderr(io.StringIO()))
            yield


def load_official() -> Official:
    """Return upstream's modules.

    Raises:
        ModelError: No clone is named, or another system's was imported into this process.
        MissingExtraError: A package that upstream imports is not installed.
    """
    checkout = find_checkout(GPT_SOVITS)
    import_package("torch", GPT_SOVITS.extra)
    offer_torchaudio()
    return Official(checkout)
