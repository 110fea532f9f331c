"""Voices that speak by their contract."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from tts_compress.artifact import Manifest
from tts_compress.audio import Audio, Samples
from tts_compress.errors import ModelError
from tts_compress.models.base import check_encodable
from tts_compress.models.contract.reading import CONTRACT_NAME, Explained, find_contract
from tts_compress.models.contract.schema import (
    Contract,
    Input,
    NoiseInput,
    SpeakerInput,
    StyleInput,
    ValueInput,
)
from tts_compress.models.contract.styles import choose_row, find_file, read_styles
from tts_compress.models.contract.symbols import Speller, Symbols
from tts_compress.models.feeds import GraphInput
from tts_compress.models.onnx_model import OnnxModel, artifact_graph
from tts_compress.models.speakers import NO_SPEAKERS, find_speaker, speakers_in_turn
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, open_session, run_session

Seed = tuple[int, ...] | None
"""Seed of the noise of one call; None for no noise."""

_NOISE_STREAM = 1 << 20
"""Beginning of the streams of noise inputs, far from those of random operators."""


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
        self._styles = self._read_styles()
        self._speller = Speller(self.contract.tokens, self.language, path.parent)
        self._opened = _Opened()
        self.speakers = self._find_speakers()
        self.speaker: str | None = None

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
        return made

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
        if self._opened.session is None:
            self._opened.session = open_session(feed_noise(self.graph()), self.spec)
        session = self._opened.session
        names = [value.name for value in session.get_inputs()]
        calls = self._calls(text, seed, self.speaker)
        return self._speak(session, (feeds | draw_noise(names, seed=s) for feeds, s in calls))

    def calibration_calls(self, texts: Iterable[str], *, seed: int) -> Iterator[Feeds]:
        """Yield the inputs of the graph with fed noise; texts go round the speakers."""
        names = [value.name for value in feed_noise(self.graph()).graph.input]
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for feeds, own in self._calls(text, seed + index, speaker):
                yield feeds | draw_noise(names, seed=own)

    def open_runtime(self, *, threads: int) -> "ContractRuntime":
        """Open the file in onnxruntime, called as the contract states."""
        return ContractRuntime(self, open_session(self.files().weights[0], self.spec, threads))

    def speak(self, session: onnxruntime.InferenceSession, text: str) -> Audio:
        """Speak with the graph's own random noise, and fresh noise where it is an input."""
        seed = int(np.random.default_rng().integers(1 << 31))
        return self._speak(session, (feeds for feeds, _ in self._calls(text, seed, self.speaker)))

    def _settings(self) -> Mapping[str, Path]:
        folder, tokens = self._path.parent, self.contract.tokens
        named = [role.file for role in self._found.roles.values() if isinstance(role, StyleInput)]
        if tokens.source != "ids" and isinstance(tokens.vocabulary, str):
            named.append(tokens.vocabulary)
        if tokens.source == "lexicon" and tokens.lexicon is not None:
            named.append(tokens.lexicon)
        files = [find_file(name, folder) for name in named]
        return {CONTRACT_NAME: self._found.path} | {file.name: file for file in files}

    def _speak(self, session: onnxruntime.InferenceSession, calls: Iterable[Feeds]) -> Audio:
        contract, has = self.contract, self._found.signature.outputs
        outputs = [contract.output or has[0]]
        if contract.durations in has:
            outputs.append(contract.durations)
        runs = [run_session(session, feeds, self.spec, outputs) for feeds in calls]
        durations = [run[1].reshape(-1) for run in runs] if len(outputs) > 1 else []
        return Audio(
            samples=np.concatenate([run[0].reshape(-1) for run in runs]).astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )

    def _calls(
        self, text: str, seed: int | None, speaker: str | None
    ) -> Iterator[tuple[Feeds, Seed]]:
        """Yield the values of the graph's own inputs for each call, and the seed of its noise."""
        check_encodable(text)
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

    def _read_styles(self) -> Mapping[str, Samples]:
        for role in self._found.roles.values():
            if isinstance(role, StyleInput):
                return read_styles(role, self._path.parent)
        return {}

    def _find_speakers(self) -> Mapping[str, int]:
        names: Iterable[str] = self._styles
        for role in self._found.roles.values():
            if isinstance(role, SpeakerInput):
                names = role.speakers or [str(number) for number in range(role.count)]
        found = {name: number for number, name in enumerate(names)}
        return MappingProxyType(found) if len(found) > 1 else NO_SPEAKERS


class ContractRuntime:
    """onnxruntime on a voice's file, called as its contract states.

    Args:
        voice: The voice.
        session: Its file, opened.
    """

    def __init__(self, voice: ContractVoice, session: onnxruntime.InferenceSession) -> None:
        self._voice = voice
        self._session = session

    def speak(self, text: str) -> Audio:
        """Speak a text with random noise.

        Raises:
            TextError: There is nothing to speak in the text.
        """
        return self._voice.speak(self._session, text)


def open_voice(location: str, spec: str, manifest: Manifest | None) -> ContractVoice:
    """Open a graph with its contract, or an artifact of one.

    Raises:
        ModelError: A file is missing, or no contract explains the graph.
        RecipeError: The contract beside it is malformed, or leaves an input unexplained.
    """
    return ContractVoice(artifact_graph(Path(location), manifest), spec=spec, manifest=manifest)


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
