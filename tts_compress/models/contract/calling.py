"""Calls of the graphs that speak a text: their inputs, what flows between them, and the sound."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError, model_errors
from tts_compress.models.contract.reading import Explained, Part
from tts_compress.models.contract.schema import (
    TOKENS,
    Input,
    NoiseInput,
    Size,
    SpeakerInput,
    Spectrum,
    StepInput,
    StyleInput,
    TokensInput,
    ValueInput,
    source_of,
)
from tts_compress.models.contract.styles import Folders, choose_row, read_styles
from tts_compress.models.contract.symbols import Speller, Symbols
from tts_compress.models.feeds import GraphInput
from tts_compress.models.speakers import NO_SPEAKERS
from tts_compress.onnx.session import Feeds
from tts_compress.reading import MOST_ARRAY_BYTES, bounded_bytes

Seed = tuple[int, ...] | None
"""Seed of the noise of one call; None for no noise."""

Made = dict[str, Any]
"""Outputs of the graphs of a call so far, by name."""

_NOISE_STREAM = 1 << 20
"""Beginning of the streams of noise inputs, far from those of random operators."""

_LONGEST = 1 << 20
"""Largest size that may follow from what a graph returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One utterance: its symbols, and the seed of its noise."""

    symbols: Symbols
    seed: Seed
    speaker: str | None


Run = Callable[[int, Feeds, Seed], list[Any]]
"""Runs the graph at a position on its own inputs, with noise of a seed where it draws any: →
`Part.returns`."""


class Caller:
    """Runs the graphs of a voice one after the other, each as often as its contract states."""

    def __init__(self, explained: Explained, parts: tuple[Part, ...]) -> None:
        contract = explained.contract
        self._sizes = contract.size
        self._parts = parts
        self._styles = _read_styles(parts, explained.folders)
        self._speller = Speller(
            contract.tokens, contract.language, explained.folders, explained.config
        )
        self.speakers = self._find_speakers()

    def calls(self, text: str, seed: int | None, speaker: str | None) -> Iterator[Call]:
        """Yield the calls that speak a text."""
        if seed is not None and seed < 0:
            raise TTSCompressError(f"seed {seed} is negative; give 0 or a larger integer")
        for index, symbols in enumerate(self._speller.calls(text)):
            call_seed = None if seed is None else (seed, index)
            yield Call(symbols=symbols, seed=call_seed, speaker=speaker)

    def _feeds(self, position: int, call: Call, values: Made, step: int = 0) -> Feeds:
        """Return the values of a graph's own inputs.

        Args:
            position: Place of the graph, from 0.
            call: What is spoken.
            values: What the graphs before it returned, and it itself in the round before.
            step: Round of its loop, from 0.
        """
        part = self._parts[position]
        feeds: Feeds = {}
        for number, (name, role) in enumerate(part.roles.items()):
            source = source_of(name, role, step)
            if source is not None:
                value = values[source]
            elif isinstance(role, StepInput):
                value = step if role.role == "step" else part.repeat
            elif isinstance(role, NoiseInput):
                seed = None
                if call.seed is not None:
                    seed = (*call.seed, _NOISE_STREAM + number, position, step)
                value = _noise(role, self._shape(role, call, values), seed)
            else:
                value = self._value(name, role, call, values)
            feeds[name] = _as_input(value, part.signature.inputs[name], source)
        return feeds

    def speak(self, run: Run, call: Call, until: int | None = None) -> Made:
        """Return what all graphs returned, or those before a position."""
        values: Made = {}
        for position, part in enumerate(self._parts[:until]):
            for feeds, seed in self._rounds(position, call, values):
                values |= zip(part.returns, run(position, feeds, seed), strict=True)
        return values

    def rounds(self, run: Run, call: Call, position: int) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the inputs of one graph in each round of its loop, with the seeds of its noise."""
        values = self.speak(run, call, position)
        part = self._parts[position]
        for step, (feeds, seed) in enumerate(self._rounds(position, call, values), 1):
            yield feeds, seed
            if step < part.repeat:
                values |= zip(part.returns, run(position, feeds, seed), strict=True)

    def samples(self, values: Made) -> Samples:
        """Return the sound that the last graph returned, or that is made of what it returned."""
        last = self._parts[-1]
        if last.spectrum is not None:
            return to_samples(last.spectrum, [values[name] for name in last.spectrum.outputs])
        samples: Samples = values[last.output].reshape(-1)
        if samples.dtype.kind != "f":
            raise ModelError(
                f"output '{last.output}' is {samples.dtype}; audio is real numbers from -1 to 1: "
                "name the output that is audio as 'output', or export the graph so"
            )
        return samples

    def _rounds(self, position: int, call: Call, values: Made) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the inputs of each round; what the graph returned is in `made` by the next one."""
        part = self._parts[position]
        for step in range(part.repeat):
            feeds = self._feeds(position, call, values, step)
            seed = call.seed
            if position and seed is not None:
                seed = (*seed, position, step)
            yield feeds, seed

    def _value(self, name: str, role: Input, call: Call, values: Made) -> Any:
        """Return what an input is given by a text, with the axes that its role has."""
        if isinstance(role, ValueInput):
            quiet = call.seed is None and role.quiet is not None
            value = role.quiet if quiet else role.value
            return (
                np.broadcast_to(np.asarray(value), self._shape(role, call, values))
                if role.shape
                else value
            )
        if isinstance(role, SpeakerInput):
            return role.value if call.speaker is None else self.speakers[call.speaker]
        symbols = call.symbols
        if isinstance(role, StyleInput):
            voices = self._styles[role]
            style = voices[call.speaker or next(iter(voices))]
            return choose_row(role.rule, style, tokens=len(symbols.ids), text=symbols.characters)
        assert isinstance(role, TokensInput), f"input '{name}' has a role of its own"
        if role.role == "tokens":
            return self._speller.framed(symbols.ids)
        if role.role == "tones":
            return self._speller.framed(symbols.tones, tones=True)
        size = self._size(role.size, call, values)
        return size if role.role == "lengths" else [1] * size

    def _shape(self, role: NoiseInput | ValueInput, call: Call, values: Made) -> tuple[int, ...]:
        sizes = role.shape
        shape = tuple(s if isinstance(s, int) else self._size(s, call, values) for s in sizes)
        with model_errors(f"{role.role} of the contract cannot be made"):
            bounded_bytes(shape, 4, MOST_ARRAY_BYTES)
        return shape

    def _size(self, name: str, call: Call, values: Made) -> int:
        if name == TOKENS:
            return len(self._speller.framed(call.symbols.ids))
        return _size_of(name, self._sizes[name], values)

    def _find_speakers(self) -> Mapping[str, int]:
        found = _numbered(next(iter(self._styles.values()), {}))
        for role in (role for part in self._parts for role in part.roles.values()):
            if isinstance(role, SpeakerInput):
                names = role.speakers or [str(number) for number in range(role.count)]
                found = names if isinstance(names, dict) else _numbered(names)
        return MappingProxyType(found) if len(found) > 1 else NO_SPEAKERS


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _read_styles(
    parts: tuple[Part, ...], folders: Folders
) -> dict[StyleInput, Mapping[str, Samples]]:
    """Return the arrays of each input that is a style, by voice."""
    roles = [role for part in parts for role in part.roles.values()]
    return {role: read_styles(role, folders) for role in roles if isinstance(role, StyleInput)}


def _size_of(name: str, size: Size, values: Made) -> int:
    """Return a size that follows from what a graph returned.

    Arithmetic is in float32, as of programs that go on with a graph's own numbers.
    """
    if size.output not in values:
        raise ModelError(
            f"size '{name}' follows from '{size.output}', which no graph before returns"
        )
    value = np.asarray(values[size.output])
    if value.size != 1:
        raise ModelError(
            f"size '{name}' follows from one number, but output '{size.output}' has the shape "
            f"{list(value.shape)}"
        )
    length = value.reshape(()).astype(np.float32) / np.float32(size.speed) * np.float32(size.rate)
    if not np.isfinite(length) or not 1 <= length / size.hop <= _LONGEST:
        raise ModelError(
            f"output '{size.output}' is {float(value.reshape(())):.4g}, from which no size "
            f"'{name}' follows (1 to {_LONGEST})"
        )
    return -(-int(length) // size.hop)


def _as_input(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the graph's type and number of axes; missing ones come first."""
    array = cast(value, expected, source)
    rank = max(array.ndim, 1) if expected.shape is None else len(expected.shape)
    while array.ndim > rank and array.shape[0] == 1:
        array = array[0]
    if array.ndim > rank:
        raise ModelError(f"the contract gives shape {list(array.shape)} to input '{expected}'")
    return array.reshape((1,) * (rank - array.ndim) + array.shape)


def _noise(role: NoiseInput, shape: tuple[int, ...], seed: Seed) -> Samples:
    """Return noise that is equal at equal times, along the last axis, for any length."""
    if seed is None:
        return np.zeros(shape, np.float32)
    generator = np.random.default_rng(seed)
    turned = (shape[-1], *shape[:-1])
    if role.distribution == "uniform":
        values = generator.random(turned, np.float32)
    else:
        values = generator.standard_normal(turned, np.float32)
    return np.ascontiguousarray(np.moveaxis(values, 0, -1))


def cast(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the type of a graph's input.

    Args:
        value: Numbers of the contract or the text, or what a graph returned.
        expected: The input.
        source: Name of the output that returned the value; None for numbers of the contract,
            whose whole reals may become integers.
    """
    array, wanted = np.asarray(value), expected.dtype
    named = "a value of the contract" if source is None else f"output '{source}' {array.dtype}"
    kinds = {"i" if dtype.kind == "u" else dtype.kind for dtype in (array.dtype, wanted)}
    if source is not None and kinds not in ({"i"}, {"f"}) and not np.can_cast(array.dtype, wanted):
        raise ModelError(
            f"{named} cannot be input '{expected}': integers stay integers and reals reals; name "
            "another output, or export the graph with that type"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        changed = array.astype(wanted)
    kept = np.isfinite(changed) | ~np.isfinite(array) if wanted.kind == "f" else changed == array
    if not kept.all():
        wrong = array[~kept].flat[0]
        raise ModelError(f"{named} is {wrong!s:.40}, which input '{expected}' does not hold")
    return changed


def to_samples(stated: Spectrum, outputs: Sequence[npt.NDArray[Any]]) -> Samples:
    """Return the sound of spectra.

    Overlapping windowed frames are added and divided by the sum of the squared windows, as torch
    and sherpa-onnx do.

    Args:
        stated: The contract's table.
        outputs: What its form names, each of shape `[1, n_fft / 2 + 1, T]`.

    Returns:
        Shape `[(T - 1) * hop_length]` where frames are centred, else with `n_fft` more.
    """
    spectra = _complex(stated.form, [np.asarray(output)[0] for output in outputs]).T
    if stated.normalized:
        spectra = spectra * np.float32(np.sqrt(stated.n_fft))
    frames = np.fft.irfft(spectra, n=stated.n_fft, axis=1)
    window = np.ones(stated.n_fft)
    if stated.window == "hann":
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(stated.n_fft) / stated.n_fft)
    length = stated.n_fft + (len(frames) - 1) * stated.hop_length
    sound, weights = np.zeros(length), np.zeros(length)
    for number, frame in enumerate(frames):
        span = slice(number * stated.hop_length, number * stated.hop_length + stated.n_fft)
        sound[span] += frame * window
        weights[span] += window**2
    sound = np.divide(sound, weights, out=sound, where=weights > np.finfo(np.float32).tiny)
    cut = stated.n_fft // 2 if stated.center else 0
    return sound[cut : length - cut].astype(np.float32)


def _complex(form: str, parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the complex spectra that a graph's outputs stand for."""
    first, second, *rest = parts
    if form == "real-imaginary":
        return np.asarray(first + 1j * second)
    if form == "magnitude-phase":
        return np.asarray(first * np.exp(1j * second))
    return np.asarray(first * (second + 1j * rest[0]))
