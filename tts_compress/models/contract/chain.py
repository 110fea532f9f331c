"""Running the graphs of a voice one after the other, each as often as its contract states."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples
from tts_compress.errors import ModelError
from tts_compress.models.contract.calling import Call, Caller, Made, Seed
from tts_compress.models.contract.parts import Part
from tts_compress.models.contract.schema import Spectrum
from tts_compress.onnx.session import Feeds


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


Run = Callable[[int, Feeds, Seed], list[Any]]
"""Runs the graph at a position on its own inputs, with noise of a seed where it draws any: →
`Part.returns`."""


class Chain:
    """The graphs of a voice, and what flows between them.

    Args:
        caller: Makes their inputs.
        parts: The graphs, in their order.
    """

    def __init__(self, caller: Caller, parts: tuple[Part, ...]) -> None:
        self._caller = caller
        self._parts = parts

    def speak(self, run: Run, call: Call, until: int | None = None) -> Made:
        """Return what all graphs returned, or those before a position."""
        made: Made = {}
        for position, part in enumerate(self._parts[:until]):
            for feeds, seed in self._rounds(position, call, made):
                made |= zip(part.returns, run(position, feeds, seed), strict=True)
        return made

    def rounds(self, run: Run, call: Call, position: int) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the inputs of one graph in each round of its loop, with the seeds of its noise."""
        made = self.speak(run, call, position)
        part = self._parts[position]
        for step, (feeds, seed) in enumerate(self._rounds(position, call, made), 1):
            yield feeds, seed
            if step < part.repeat:
                made |= zip(part.returns, run(position, feeds, seed), strict=True)

    def samples(self, made: Made) -> Samples:
        """Return the sound that the last graph returned, or that is made of what it returned.

        Raises:
            ModelError: The output holds no real numbers.
        """
        last = self._parts[-1]
        if last.spectrum is not None:
            return to_samples(last.spectrum, [made[name] for name in last.spectrum.outputs])
        samples: Samples = made[last.output].reshape(-1)
        if samples.dtype.kind != "f":
            raise ModelError(
                f"output '{last.output}' is {samples.dtype}; audio is real numbers from -1 to 1: "
                "name the output that is audio as 'output', or export the graph so"
            )
        return samples

    def _rounds(self, position: int, call: Call, made: Made) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the inputs of each round; what the graph returned is in `made` by the next one."""
        part = self._parts[position]
        for step in range(part.repeat):
            feeds = self._caller.feeds(position, call, made, step)
            seed = call.seed
            if position and seed is not None:
                seed = (*seed, position, step)
            yield feeds, seed
