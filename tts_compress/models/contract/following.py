"""Graphs that run behind a voice's own, such as vocoders."""

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import onnx
import onnxruntime

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.errors import RecipeError
from tts_compress.models.base import Runtime, TTSModel
from tts_compress.models.contract.reading import read_signature
from tts_compress.models.contract.schema import Follower
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session


class Chained(TTSModel, Protocol):
    """A voice of several graphs."""

    @property
    def language(self) -> str | None:
        """The language it states."""

    def observe(self, texts: Iterable[str], *, seed: int, position: int) -> Iterator[Any]:
        """Yield what the follower at a position is given in each call that speaks the texts."""


class FollowingGraph(OnnxModel):
    """A graph of a voice that runs on what the one before returns.

    Args:
        path: Its `.onnx` file.
        stated: The contract's table of it.
        position: Its place among those that follow, from 0.
        held: The graph in place of the file's, where it is in memory only.
        manifest: Record of its compression; None for an original.

    Raises:
        RecipeError: The graph has no such input or output, or several inputs.
    """

    family = "contract"

    def __init__(
        self,
        path: Path,
        stated: Follower,
        *,
        position: int,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
    ) -> None:
        super().__init__(path, spec=str(path), manifest=manifest, held=held)
        self.position = position
        self.name = path.stem
        self.voice: Chained | None = None
        self._stated = stated
        self._session: onnxruntime.InferenceSession | None = None
        signature = read_signature(path)
        self._input = stated.input or next(iter(signature.inputs), "")
        self._output = stated.output or signature.outputs[0]
        if {self._input} != signature.inputs.keys():
            has = ", ".join(map(str, signature.inputs.values())) or "none"
            raise RecipeError(
                f"'{path}' has the inputs {has}; a graph that follows another is given one, "
                "[[then]] states it as `input`"
            )
        if self._output not in signature.outputs:
            has = ", ".join(signature.outputs)
            raise RecipeError(f"'{path}' has no output {self._output!r}; its outputs are {has}")

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> "FollowingGraph":
        """Return it with another graph; nothing is written."""
        return FollowingGraph(
            self._path, self._stated, position=self.position, manifest=manifest, held=graph
        )

    def bound_to(self, voice: "Chained") -> "FollowingGraph":
        """Return it as a part of a voice."""
        bound = copy.copy(self)
        bound.voice, bound.speakers = voice, voice.speakers
        return bound

    @property
    def sample_rate(self) -> int:
        """Samples per second of the voice, Hz."""
        return self._bound().sample_rate

    @property
    def language(self) -> str | None:
        """The language of the voice."""
        return self._bound().language

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with the whole voice."""
        return self._bound().synthesize(text, seed=seed)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the whole voice."""
        return self._bound().open_runtime(threads=threads)

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield what it is given while the voice speaks the texts, with fed noise."""
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        observed = self._bound().observe(texts, seed=seed, position=self.position)
        for number, given in enumerate(observed):
            yield self.feeds(given) | draw_noise(names, seed=(seed, number))

    def run(self, given: Any, seed: tuple[int, ...] | None) -> Any:
        """Return what it makes of what the graph before it returned, with fed noise."""
        if self._session is None:
            self._session = open_session(feed_noise(self.graph()), self.spec)
        names = [value.name for value in self._session.get_inputs()]
        return self._call(self._session, self.feeds(given) | draw_noise(names, seed=seed))

    def feeds(self, given: Any) -> Feeds:
        """Return its inputs."""
        return {self._input: given}

    def runner(self, threads: int) -> Callable[[Any], Any]:
        """Return its file as a function, with its own noise."""
        session = open_session(self.files().weights[0], self.spec, threads)
        return lambda given: self._call(session, self.feeds(given))

    def _bound(self) -> "Chained":
        assert self.voice is not None, "a voice hands out its graphs"
        return self.voice

    def _call(self, session: onnxruntime.InferenceSession, feeds: Feeds) -> Any:
        [made] = run_session(session, feeds, self.spec, [self._output])
        return made
