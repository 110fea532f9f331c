"""Voices that speak by their contract."""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.models.base import Component, ModelFiles
from tts_compress.models.contract.calling import Caller, Seed
from tts_compress.models.contract.following import FollowingGraph
from tts_compress.models.contract.reading import (
    CONTRACT_NAME,
    Explained,
    find_contract,
    leading_graph,
)
from tts_compress.models.contract.schema import Contract, StyleInput
from tts_compress.models.contract.styles import find_file
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.models.speakers import find_speaker, speakers_in_turn
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session


@dataclass(slots=True)
class _Opened:
    """The session, opened when first needed; speakers of one voice share it."""

    session: onnxruntime.InferenceSession | None = None


class ContractVoice(OnnxModel):
    """A graph that speaks by its contract, from its files or compressed in memory.

    Args:
        path: The `.onnx` file; the files that its contract names lie beside it.
        spec: Spec by which the user named the voice.
        manifest: Record of its compression; None for an original.
        held: The graph in place of the file's, where it is in memory only.

    Raises:
        ModelError: There is no such graph or contract, or a file that it names is missing.
        RecipeError: The contract is malformed, or leaves an input of the graph unexplained.
    """

    family = "contract"
    kind = "voice with a contract"

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        manifest: Manifest | None = None,
        held: onnx.ModelProto | None = None,
    ) -> None:
        if not path.is_file():
            raise ModelError(f"no file '{path}'; give an existing {self.kind} (.onnx)")
        super().__init__(path, spec=spec, manifest=manifest, held=held)
        self._found: Explained = find_contract(path)
        self._caller = Caller(self._found, path.parent)
        self._opened = _Opened()
        self.speakers = self._caller.speakers
        self.speaker: str | None = None
        self._followers: tuple[FollowingGraph, ...] = tuple(
            FollowingGraph(find_file(stated.graph, path.parent), stated, position=position)
            for position, stated in enumerate(self.contract.then)
        )

    @property
    def contract(self) -> Contract:
        """The contract it speaks by."""
        return self._found.contract

    @property
    def sample_rate(self) -> int:
        """Samples per second, Hz."""
        return int(self.contract.sample_rate)

    @property
    def language(self) -> str | None:
        """The language that the contract states."""
        return self.contract.language

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> "ContractVoice":
        """Return this voice with another graph; nothing is written."""
        made = ContractVoice(self._path, spec=self.spec, manifest=manifest, held=graph)
        made.speaker = self.speaker
        return made.with_followers(self._followers)

    def followers(self) -> tuple[FollowingGraph, ...]:
        """Return the graphs that run on what this one returns, in their order."""
        return tuple(graph.bound_to(self) for graph in self._followers)

    def with_followers(self, followers: tuple[Any, ...]) -> "ContractVoice":
        """Return this voice with other graphs behind its own; nothing is written."""
        made = copy.copy(self)
        made.join(followers)
        return made

    def join(self, followers: tuple[FollowingGraph, ...]) -> None:
        """Put graphs behind the voice's own, with the records of their compression."""
        self._followers = followers
        records = [graph.manifest for graph in followers if graph.manifest is not None]
        if self.manifest is None or not records:
            return
        counts = Counter(self.manifest.counts)
        for record in records:
            counts.update(record.counts)
        others = [
            # A colon, because blame looks for components of the voice's own graph.
            replace(layer, module=f"{graph.name}:{layer.module}")
            for graph in followers
            if graph.manifest is not None
            for layer in graph.manifest.layers
        ]
        layers = (*self.manifest.layers, *others)
        self.manifest = replace(self.manifest, counts=dict(counts), layers=layers)

    def files(self) -> ModelFiles:
        """Return the graphs, and the files beside them that decide how they are run.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """
        own, others = super().files(), [graph.files() for graph in self._followers]
        weights = [path for files in (own, *others) for path in files.weights]
        return ModelFiles(weights=tuple(weights), settings=own.settings)

    def components(self) -> Mapping[str, Component]:
        """Return the components of the voice's own graph, then each graph behind it as one."""
        found = dict(super().components())
        for graph in self._followers:
            parts = graph.components().values()
            operators: Counter[str] = Counter()
            for part in parts:
                operators.update(part.operators)
            found[graph.name] = Component(
                name=graph.name,
                role="follows",
                parameters=sum(part.parameters for part in parts),
                size_bytes=sum(part.size_bytes for part in parts),
                operators=operators,
            )
        return found

    def observe(self, texts: Iterable[str], *, seed: int, position: int) -> Iterator[Any]:
        """Yield what the follower at a position is given in each call that speaks the texts."""
        session = self._open_session()
        for feeds in self.calibration_calls(texts, seed=seed):
            [given] = run_session(session, feeds, self.spec, [self._output])
            for graph in self._followers[:position]:
                given = graph.run(given, (seed, graph.position))
            yield given

    def with_speaker(self, speaker: str | int) -> "ContractVoice":
        """Return this voice speaking as one of its speakers.

        Raises:
            ModelError: There is no such speaker, or only one.
        """
        chosen = copy.copy(self)
        chosen.speaker = find_speaker(self.speakers, speaker, self.spec)
        return chosen

    def describe(self) -> Mapping[str, Any]:
        """Return properties that `inspect` shows beside the components."""
        return {
            "contract": self.contract.name,
            "tokens": self.contract.tokens.source,
            "sample rate": f"{self.sample_rate} Hz",
            "language": self.language or "not stated",
            "speakers": len(self.speakers) or 1,
            **super().describe(),
        }

    def synthesize(self, text: str, *, seed: int | None) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text has nothing to speak, or too much at once.
            ModelError: The graph cannot be run.
        """
        session = self._open_session()
        names = [value.name for value in session.get_inputs()]

        def run(feeds: Feeds, own: Seed) -> list[Any]:
            feeds |= draw_noise(names, seed=own)
            made, *rest = run_session(session, feeds, self.spec, self._outputs())
            for graph in self._followers:
                made = graph.run(made, None if own is None else (*own, graph.position))
            return [made, *rest]

        return self._audio([run(*call) for call in self._caller.calls(text, seed, self.speaker)])

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield the inputs of the graph with fed noise; texts go round the speakers."""
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for feeds, own in self._caller.calls(text, seed + index, speaker):
                yield feeds | draw_noise(names, seed=own)

    def open_runtime(self, *, threads: int) -> "ContractRuntime":
        """Open the file in onnxruntime, called as the contract states."""
        session = open_session(self.files().weights[0], self.spec, threads)
        others = [graph.runner(threads) for graph in self._followers]

        def run(feeds: Feeds) -> list[Any]:
            made, *rest = run_session(session, feeds, self.spec, self._outputs())
            for other in others:
                made = other(made)
            return [made, *rest]

        return ContractRuntime(self, run)

    def speak(self, run: Callable[[Feeds], list[Any]], text: str) -> Audio:
        """Speak with the graphs' own random noise, and fresh noise where it is an input.

        Args:
            run: Runs all graphs.
            text: The text.
        """
        seed = int(np.random.default_rng().integers(1 << 31))
        return self._audio(
            [run(feeds) for feeds, _ in self._caller.calls(text, seed, self.speaker)]
        )

    def _settings(self) -> Mapping[str, Path]:
        folder, tokens = self._path.parent, self.contract.tokens
        named = [role.file for role in self._found.roles.values() if isinstance(role, StyleInput)]
        if tokens.source != "ids" and isinstance(tokens.vocabulary, str):
            named.append(tokens.vocabulary)
        if tokens.source == "lexicon" and tokens.lexicon is not None:
            named.append(tokens.lexicon)
        files = [find_file(name, folder) for name in named]
        return {CONTRACT_NAME: self._found.path} | {file.name: file for file in files}

    @property
    def _output(self) -> str:
        return self.contract.output or self._found.signature.outputs[0]

    def _outputs(self) -> list[str]:
        durations = self.contract.durations
        has = durations is not None and durations in self._found.signature.outputs
        return [self._output, durations] if has and durations else [self._output]

    def _open_session(self) -> onnxruntime.InferenceSession:
        if self._opened.session is None:
            self._opened.session = open_session(feed_noise(self.graph()), self.spec)
        return self._opened.session

    def _audio(self, runs: list[list[Any]]) -> Audio:
        """Return the speech of calls: of each its samples, and durations where it has any."""
        durations = [run[1].reshape(-1) for run in runs if len(run) > 1]
        return Audio(
            samples=np.concatenate([run[0].reshape(-1) for run in runs]).astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )


class ContractRuntime:
    """onnxruntime on a voice's file, called as its contract states.

    Args:
        voice: The voice.
        run: Runs its files, opened: the inputs of the first one → audio, and durations.
    """

    def __init__(self, voice: ContractVoice, run: Callable[[Feeds], list[Any]]) -> None:
        self._voice = voice
        self._run = run

    def speak(self, text: str) -> Audio:
        """Speak a text with random noise.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        return self._voice.speak(self._run, text)


def open_voice(location: str, spec: str, manifest: Manifest | None) -> ContractVoice:
    """Open a graph with its contract, or an artifact of one.

    Raises:
        ModelError: A file is missing, or no contract explains the graph.
        RecipeError: The contract beside it is malformed, or leaves an input unexplained.
    """
    path = Path(location)
    if manifest is not None and path.is_dir():
        path = leading_graph(path, manifest.files)
    return ContractVoice(path, spec=spec, manifest=manifest)
