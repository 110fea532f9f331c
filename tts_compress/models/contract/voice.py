"""Voices that speak by their contract."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio
from tts_compress.models.base import Component, Runtime, Speaking
from tts_compress.models.contract.calling import Caller, Seed
from tts_compress.models.contract.inputs import StyleInput
from tts_compress.models.contract.parts import CONTRACT_NAME, Part
from tts_compress.models.contract.reading import Explained, find_contract, leading_graph
from tts_compress.models.contract.schema import Contract
from tts_compress.models.contract.styles import find_file, style_files
from tts_compress.models.onnx_model import OnnxModel, Opened
from tts_compress.models.speakers import find_speaker, speakers_in_turn
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, input_names, open_session, run_session


class OnnxVoice(OnnxModel):
    """One graph or several that speak by their contract, from files or compressed in memory.

    Args:
        path: The `.onnx` file of the first graph; the files that its contract names lie beside it.
        spec: Spec by which the user named the voice.
        manifest: Record of its compression; None for an original.
        held: The first graph, where it is in memory only.

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
        super().__init__(path, spec=spec, manifest=manifest, held=held)
        self._found = self._explain(path)
        first, *others = self._found.parts()
        self.parts: Mapping[str, Part] = {"": replace(first, spec=spec, held=held)} | {
            part.path.stem: part for part in others
        }
        self._caller = Caller(self._found, (first, *others))
        self.folder = self.contract.folder
        self.speakers = self._caller.speakers
        self.speaker: str | None = None

    def _explain(self, path: Path) -> Explained:
        """Return the contract, and the first graph as it explains it."""
        return find_contract(path)

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

    @property
    def speaking(self) -> Speaking:
        """The speaker that was chosen, and the language."""
        return Speaking(speaker=self.speaker, languages=(self.language,) if self.language else ())

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers.

        Raises:
            ModelError: There is no such speaker, or only one.
        """
        if speaking.speaker is None:
            return self
        return self._with(speaker=find_speaker(self.speakers, speaking.speaker, self.spec))

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights; where the contract names them, in its order."""
        found = super().components()
        named = self.contract.components
        if not named:
            return found
        own = {name: replace(found[name], role=named[name]) for name in named if name in found}
        return own | {name: found[name] for name in self.parts if name}

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
        calls = self._caller.calls(text, seed, self.speaker)
        made = [self._caller.speak(self._run, call) for call in calls]
        frames = self.contract.durations or ""
        durations = [outputs[frames].reshape(-1) for outputs in made if frames in outputs]
        samples = np.concatenate([self._caller.samples(outputs) for outputs in made])
        return Audio(
            samples=samples.astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )

    def calibration_calls(
        self, texts: Iterable[str], *, seed: int, part: str = ""
    ) -> Iterator[Feeds]:
        """Yield what a graph is given in each round of the calls for texts, with fed noise.

        Texts go round the speakers, the first text with the first one; a speaker that was chosen
        speaks all.
        """
        # The names alone: a session opened for them would hold every weight once more.
        names = [value.name for value in feed_noise(self.graph(part)).graph.input]
        position = list(self.parts).index(part)
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for call in self._caller.calls(text, seed + index, speaker):
                for feeds, own in self._caller.rounds(self._run, call, position):
                    yield _fed(names, feeds, own)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the files in onnxruntime, called as the contract states."""
        files = zip(self.files().weights, self.parts.items(), strict=True)
        opened = {
            name: (open_session(path, part.spec, threads), part.returns)
            for path, (name, part) in files
        }
        return ContractRuntime(self._with(_opened=opened))

    def _run(self, position: int, feeds: Feeds, seed: Seed) -> list[Any]:
        """Run a graph with fed noise; speakers share its session."""
        name, part = [*self.parts.items()][position]
        if name not in self._opened:
            self._opened[name] = self._open(name)
        session, outputs = self._opened[name]
        return run_session(session, _fed(input_names(session), feeds, seed), part.spec, outputs)

    def _open(self, part: str) -> Opened:
        """Open a graph with fed noise."""
        found = self.parts[part]
        return open_session(feed_noise(self.graph(part)), found.spec), found.returns

    def _settings(self) -> Mapping[str, Path]:
        folders, contract = self._found.folders, self.contract
        tokens = contract.tokens
        roles = [role for part in self.parts.values() for role in part.roles.values()]
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
        if self._found.config is not None:
            found.append(self._found.config.path)
        root = folders[-1]
        return {CONTRACT_NAME: self._found.path} | {
            path.relative_to(root).as_posix(): path for path in found
        }


class ContractRuntime:
    """onnxruntime on a voice's files, called as its contract states.

    Args:
        voice: The voice, whose graphs draw their own noise.
    """

    def __init__(self, voice: OnnxVoice) -> None:
        self._voice = voice

    def speak(self, text: str) -> Audio:
        """Speak a text with the graphs' own random noise, and fresh noise where it is an input.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        return self._voice.synthesize(text, seed=int(np.random.default_rng().integers(1 << 31)))


def _fed(names: list[str], feeds: Feeds, seed: Seed) -> Feeds:
    """Return the values of a graph's inputs, by their names, with noise where it draws any."""
    return {name: feeds[name] for name in names if name in feeds} | draw_noise(names, seed=seed)


def open_voice(location: str, spec: str, manifest: Manifest | None) -> OnnxVoice:
    """Open a graph with its contract, or an artifact of one.

    Raises:
        ModelError: A file is missing, or no contract explains the graph.
        RecipeError: The contract beside it is malformed, or leaves an input unexplained.
    """
    path = Path(location)
    if manifest is not None and path.is_dir():
        path = leading_graph(path, manifest.files)
    return OnnxVoice(path, spec=spec, manifest=manifest)
