"""Amphion, whose NaturalSpeech2 runs from a clone of its repository."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tts_compress.families import Upstream
from tts_compress.models.checkout import find_checkout

AMPHION = Upstream(
    family="naturalspeech2",
    name="Amphion",
    repository="https://github.com/open-mmlab/Amphion",
    commit="d3de90f02e7f1c7dbc24b04d52fe1b8ef438effe",
    variable="TTS_COMPRESS_AMPHION",
    extra="naturalspeech2",
    markers=(
        "models/tts/naturalspeech2/ns2_inference.py",
        "modules/naturalpseech2/transformers.py",  # spelt so
        "config/ns2.json",
    ),
    paths=(".",),
    # Those that speaking imports; its root holds more.
    modules=("models", "modules", "text", "utils"),
)


class Amphion:
    """The clone, and the modules of upstream's inference, imported from it.

    Raises:
        ModelError: No clone is named, or another system's was imported into this process.
        MissingExtraError: A package that upstream imports is not installed.
    """

    def __init__(self) -> None:
        self._checkout = find_checkout(AMPHION)
        from tts_compress.models.shims.stand_ins import offer_torchaudio

        offer_torchaudio()
        with _silence():  # g2p_en looks for its data when it is imported, and reports it
            from encodec import EncodecModel

            self.encodec: Any = EncodecModel
            self.inference: Any = self._checkout.load("models.tts.naturalspeech2.ns2_inference")
            self.network: Any = self._checkout.load("models.tts.naturalspeech2.ns2")
            self._util: Any = self._checkout.load("utils.util")

    @property
    def clone(self) -> Path:
        """The clone's root."""
        return self._checkout.root

    def config(self, model: dict[str, Any], lexicon: str) -> Any:
        """Return settings as upstream's code takes them."""
        return self._util.JsonHParams(model=model, preprocess={"lexicon_path": lexicon})

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
