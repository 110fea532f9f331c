"""Values for the inputs of a graph that speaks a text."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError
from tts_compress.models.contract.reading import Explained
from tts_compress.models.contract.schema import (
    Input,
    NoiseInput,
    SpeakerInput,
    StyleInput,
    ValueInput,
)
from tts_compress.models.contract.styles import choose_row, read_styles
from tts_compress.models.contract.symbols import Speller, Symbols
from tts_compress.models.feeds import GraphInput
from tts_compress.models.speakers import NO_SPEAKERS
from tts_compress.onnx.session import Feeds

Seed = tuple[int, ...] | None
"""Seed of the noise of one call; None for no noise."""

_NOISE_STREAM = 1 << 20
"""Beginning of the streams of noise inputs, far from those of random operators."""


class Caller:
    """Makes the inputs of a graph, by its contract.

    Args:
        found: The contract and the graph that it explains.
        folder: The folder of the files that it names.

    Raises:
        ModelError: A style file is missing or malformed.
    """

    def __init__(self, found: Explained, folder: Path) -> None:
        self._found = found
        self._styles = self._read_styles(folder)
        self._speller = Speller(found.contract.tokens, found.contract.language, folder)
        self.speakers = self._find_speakers()

    def calls(
        self, text: str, seed: int | None, speaker: str | None
    ) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the values of the graph's own inputs for each call, and the seed of its noise.

        Raises:
            TextError: The text has nothing to speak, or too much at once.
            TTSCompressError: The seed is negative.
        """
        if seed is not None and seed < 0:
            raise TTSCompressError(f"seed {seed} is negative; give 0 or a larger integer")
        for index, symbols in enumerate(self._speller.calls(text)):
            own = None if seed is None else (seed, index)
            feeds: Feeds = {}
            for place, (name, role) in enumerate(self._found.roles.items()):
                stream = None if own is None else (*own, _NOISE_STREAM + place)
                value = self._value(role, symbols, stream, speaker)
                feeds[name] = _as_input(value, self._found.signature.inputs[name])
            yield feeds, own

    def _value(self, role: Input, symbols: Symbols, seed: Seed, speaker: str | None) -> Any:
        """Return what an input is given, with the axes that its role has."""
        if isinstance(role, ValueInput):
            return role.value if seed is not None or role.quiet is None else role.quiet
        if isinstance(role, SpeakerInput):
            return role.value if speaker is None else self.speakers[speaker]
        ids = self._speller.framed(symbols.ids)
        if isinstance(role, StyleInput):
            style = self._styles[speaker or next(iter(self._styles))]
            return choose_row(role.rule, style, tokens=len(symbols.ids), text=symbols.characters)
        if isinstance(role, NoiseInput):
            return _noise(role, len(ids), seed)
        values: dict[str, Any] = {
            "tokens": ids,
            "lengths": len(ids),
            "mask": [1] * len(ids),
            "tones": self._speller.framed(symbols.tones, tones=True),
        }
        return values[role.role]

    def _read_styles(self, folder: Path) -> Mapping[str, Samples]:
        for role in self._found.roles.values():
            if isinstance(role, StyleInput):
                return read_styles(role, folder)
        return {}

    def _find_speakers(self) -> Mapping[str, int]:
        names: Iterable[str] = self._styles
        for role in self._found.roles.values():
            if isinstance(role, SpeakerInput):
                names = role.speakers or [str(number) for number in range(role.count)]
        found = {name: number for number, name in enumerate(names)}
        return MappingProxyType(found) if len(found) > 1 else NO_SPEAKERS


def _as_input(value: Any, expected: GraphInput) -> npt.NDArray[np.generic]:
    """Return a value with the graph's type and number of axes; missing ones come first.

    Raises:
        ModelError: It has more axes than the graph wants.
    """
    array = np.asarray(value).astype(expected.dtype)
    rank = max(array.ndim, 1) if expected.shape is None else len(expected.shape)
    while array.ndim > rank and array.shape[0] == 1:
        array = array[0]
    if array.ndim > rank:
        raise ModelError(f"the contract gives shape {list(array.shape)} to input '{expected}'")
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _noise(role: NoiseInput, tokens: int, seed: Seed) -> Samples:
    shape = tuple(tokens if size == "tokens" else int(size) for size in role.shape)
    if seed is None:
        return np.zeros(shape, np.float32)
    generator = np.random.default_rng(seed)
    if role.distribution == "uniform":
        return generator.random(shape, np.float32)
    return generator.standard_normal(shape, np.float32)
