"""Graphs that run behind a voice's own, such as vocoders."""

import copy
from collections.abc import Iterable, Iterator
from typing import Protocol

import onnx
import onnxruntime

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.models.base import Runtime, TTSModel
from tts_compress.models.contract.calling import Seed
from tts_compress.models.contract.chain import Run
from tts_compress.models.contract.parts import Part
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session


class Chained(TTSModel, Protocol):
    """A voice of several graphs."""

    @property
    def language(self) -> str | None:
        """The language it states."""

    def observe(
        self, texts: Iterable[str], *, seed: int, position: int
    ) -> Iterator[tuple[Feeds, Seed]]:
        """Yield what the graph at a position is given in each round of the calls for texts."""


class FollowingGraph(OnnxModel):
    """A graph of a voice that runs on what those before it return.

    Args:
        part: The graph, explained.
        position: Its place, from 1.
        folder: Folder that it has in an artifact; None for none.
        held: The graph in place of the file's, where it is in memory only.
        manifest: Record of its compression; None for an original.
    """

    family = "contract"

    def __init__(
        self,
        part: Part,
        *,
        position: int,
        folder: str | None = None,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
    ) -> None:
        super().__init__(part.path, spec=str(part.path), manifest=manifest, held=held)
        self.folder = folder
        self.lengths = part.lengths
        self.voice: Chained | None = None
        self._part = part
        self._position = position
        self._session: onnxruntime.InferenceSession | None = None

    @property
    def name(self) -> str:
        """Name of the voice's component that it is."""
        return self._part.path.stem

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> "FollowingGraph":
        """Return it with another graph; nothing is written."""
        return FollowingGraph(
            self._part, position=self._position, folder=self.folder, manifest=manifest, held=graph
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

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text with the whole voice."""
        return self._bound().synthesize(text, seed=seed)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the whole voice."""
        return self._bound().open_runtime(threads=threads)

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield what it is given while the voice speaks the texts, with fed noise."""
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        observed = self._bound().observe(texts, seed=seed, position=self._position)
        for feeds, own in observed:
            yield feeds | draw_noise(names, seed=own)

    def run(self, feeds: Feeds, seed: Seed) -> list[object]:
        """Return what it makes of its inputs, with fed noise."""
        if self._session is None:
            self._session = open_session(feed_noise(self.graph()), self.spec)
        feeds = feeds | draw_noise(input_names(self._session), seed=seed)
        return run_session(self._session, feeds, self.spec, self._part.returns)

    def runner(self, threads: int) -> Run:
        """Return its file as a function, with its own noise."""
        session = open_session(self.files().weights[0], self.spec, threads)
        return lambda feeds, _: run_session(session, feeds, self.spec, self._part.returns)

    def _bound(self) -> "Chained":
        assert self.voice is not None, "a voice hands out its graphs"
        return self.voice
