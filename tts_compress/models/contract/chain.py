"""Running the graphs of a voice one after the other, each as often as its contract states."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tts_compress.audio import Samples
from tts_compress.errors import ModelError
from tts_compress.models.contract.calling import Call, Caller, Made, Seed
from tts_compress.models.contract.parts import Part
from tts_compress.models.contract.spectra import to_samples
from tts_compress.onnx.session import Feeds

Run = Callable[[Feeds, Seed], list[Any]]
"""Runs a graph on its own inputs, with noise of a seed where it draws any: → `Part.returns`."""


class Chain:
    """The graphs of a voice, and what flows between them.

    Args:
        caller: Makes their inputs.
        parts: The graphs, in their order.
    """

    def __init__(self, caller: Caller, parts: tuple[Part, ...]) -> None:
        self._caller = caller
        self._parts = parts

    def speak(self, runs: Sequence[Run], call: Call) -> Made:
        """Return what all graphs returned.

        Args:
            runs: Run the graphs, in their order.
            call: What is spoken.
        """
        made: Made = {}
        for position, run in enumerate(runs):
            for feeds, seed in self._rounds(position, call, made):
                made |= zip(self._parts[position].returns, run(feeds, seed), strict=True)
        return made

    def rounds(
        self, runs: Sequence[Run], call: Call, position: int
    ) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the inputs of one graph in each round of its loop, with the seeds of its noise.

        Args:
            runs: Run the graphs, in their order.
            call: What is spoken.
            position: Place of the graph, from 0.
        """
        made = self.speak(runs[:position], call)
        part = self._parts[position]
        rounds = self._rounds(position, call, made)
        for step, (feeds, seed) in enumerate(rounds, 1):
            yield feeds, seed
            if step < part.repeat:
                made |= zip(part.returns, runs[position](feeds, seed), strict=True)

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
