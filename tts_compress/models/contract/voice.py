"""Voices that speak by their contract."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from tts_compress.artifact import Manifest, join_runs
from tts_compress.audio import Audio
from tts_compress.errors import ModelError
from tts_compress.models.base import Component, ModelFiles
from tts_compress.models.contract.calling import Call, Caller, Made, Seed
from tts_compress.models.contract.chain import Chain, Run
from tts_compress.models.contract.following import FollowingGraph
from tts_compress.models.contract.inputs import StyleInput
from tts_compress.models.contract.parts import CONTRACT_NAME
from tts_compress.models.contract.reading import Explained, find_contract, leading_graph
from tts_compress.models.contract.schema import Contract
from tts_compress.models.contract.styles import find_file, style_files
from tts_compress.models.onnx_model import OnnxModel
from tts_compress.models.speakers import find_speaker, speakers_in_turn
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session


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
        self._parts = self._found.parts()
        self._caller = Caller(self.contract, self._parts, self._found.folders)
        self._chain = Chain(self._caller, self._parts)
        self._opened = _Opened()
        self.folder = self.contract.folder
        self.lengths = self._parts[0].lengths
        self.speakers = self._caller.speakers
        self.speaker: str | None = None
        self._followers = tuple(
            FollowingGraph(part, position=position, folder=self.folder)
            for position, part in enumerate(self._parts[1:], 1)
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
        return made.with_followers(self.followers())

    def followers(self) -> Mapping[str, FollowingGraph]:
        """Return the graphs that run behind the first one, by name, in their order."""
        return {graph.name: graph.bound_to(self) for graph in self._followers}

    def with_followers(self, followers: Mapping[str, Any]) -> "ContractVoice":
        """Return this voice with other graphs behind its own; nothing is written."""
        made = copy.copy(self)
        made.join(followers)
        return made

    def join(self, followers: Mapping[str, FollowingGraph]) -> None:
        """Put graphs behind the first one, with the records of their compression."""
        self._followers = tuple(followers.values())
        records = {n: graph.manifest for n, graph in followers.items() if graph.manifest}
        if self.manifest is None or not records:
            return
        counts = Counter(self.manifest.counts)
        for record in records.values():
            counts.update(record.counts)
        others = [
            # A colon, because blame looks for components of the first graph itself.
            replace(layer, module=f"{name}:{layer.module}")
            for name, record in records.items()
            for layer in record.layers
        ]
        trained = [r.training for r in (self.manifest, *records.values()) if r.training]
        self.manifest = replace(
            self.manifest,
            counts=dict(counts),
            layers=(*self.manifest.layers, *others),
            training=trained[0] if trained else None,
            run=join_runs([r.run for r in (self.manifest, *records.values()) if r.run]),
        )

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

    def observe(
        self, texts: Iterable[str], *, seed: int, position: int
    ) -> Iterator[tuple[Feeds, Seed]]:
        """Yield what the graph at a position is given in each round of the calls for texts.

        Texts go round the speakers.

        Args:
            texts: What is spoken.
            seed: Seed of the noise of the first text; the next one has the next.
            position: Place of the graph, from 0.
        """
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for call in self._caller.calls(text, seed + index, speaker):
                yield from self._chain.rounds(self._runs(), call, position)

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

    def synthesize(self, text: str, *, seed: int | None = 0) -> Audio:
        """Speak a text with noise chosen by `seed`; None speaks without noise.

        Raises:
            TextError: The text has nothing to speak, or too much at once.
            ModelError: The graph cannot be run.
        """
        runs = self._runs()
        return self._audio(
            [self._chain.speak(runs, call) for call in self._calls(text, seed)],
        )

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield the inputs of the first graph with fed noise; texts go round the speakers."""
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        for feeds, own in self.observe(texts, seed=seed, position=0):
            yield feeds | draw_noise(names, seed=own)

    def open_runtime(self, *, threads: int) -> "ContractRuntime":
        """Open the files in onnxruntime, called as the contract states."""
        session = open_session(self.files().weights[0], self.spec, threads)
        returns = self._parts[0].returns
        runs: list[Run] = [lambda feeds, _: run_session(session, feeds, self.spec, returns)]
        runs += [graph.runner(threads) for graph in self._followers]
        return ContractRuntime(self, runs)

    def speak(self, runs: Sequence[Run], text: str) -> Audio:
        """Speak with the graphs' own random noise, and fresh noise where it is an input.

        Args:
            runs: Run the graphs, in their order.
            text: The text.
        """
        seed = int(np.random.default_rng().integers(1 << 31))
        return self._audio([self._chain.speak(runs, call) for call in self._calls(text, seed)])

    def _calls(self, text: str, seed: int | None) -> Iterator[Call]:
        return self._caller.calls(text, seed, self.speaker)

    def _runs(self) -> list[Run]:
        """Return what runs the graphs, with fed noise."""
        return [self._run, *(graph.run for graph in self._followers)]

    def _run(self, feeds: Feeds, seed: Seed) -> list[Any]:
        if self._opened.session is None:
            self._opened.session = open_session(feed_noise(self.graph()), self.spec)
        session = self._opened.session
        feeds = feeds | draw_noise(input_names(session), seed=seed)
        return run_session(session, feeds, self.spec, self._parts[0].returns)

    def _settings(self) -> Mapping[str, Path]:
        folders, contract = self._found.folders, self.contract
        tokens = contract.tokens
        roles = [role for part in self._parts for role in part.roles.values()]
        styles = [role for role in roles if isinstance(role, StyleInput)]
        found = [path for role in styles for path in style_files(role, folders)]
        named = []
        if tokens.source != "ids" and isinstance(tokens.vocabulary, str):
            named.append(tokens.vocabulary)
        if tokens.source == "lexicon" and tokens.lexicon is not None:
            named.append(tokens.lexicon)
        found += [find_file(name, folders) for name in named]
        for name in contract.files:
            found += [path for folder in folders for path in sorted(folder.glob(name))]
        root = folders[-1]
        return {CONTRACT_NAME: self._found.path} | {
            path.relative_to(root).as_posix(): path for path in found
        }

    def _audio(self, runs: list[Made]) -> Audio:
        """Return the speech of calls: of each its samples, and durations where it has any."""
        frames = self.contract.durations or ""
        durations = [made[frames].reshape(-1) for made in runs if frames in made]
        return Audio(
            samples=np.concatenate([self._chain.samples(made) for made in runs]).astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )


class ContractRuntime:
    """onnxruntime on a voice's files, called as its contract states.

    Args:
        voice: The voice.
        runs: Run its files, opened, in their order.
    """

    def __init__(self, voice: ContractVoice, runs: Sequence[Run]) -> None:
        self._voice = voice
        self._runs = runs

    def speak(self, text: str) -> Audio:
        """Speak a text with random noise.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        return self._voice.speak(self._runs, text)


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
