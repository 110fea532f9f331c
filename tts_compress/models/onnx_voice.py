"""Voices of one or several ONNX graphs that speak by their contract."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np
import onnx

from tts_compress.audio import Audio
from tts_compress.errors import MissingExtraError, ModelError, TextError
from tts_compress.models.base import Component, GraphPart, Prompt, Runtime, Speaking
from tts_compress.models.contract.calling import Call, Caller, Seed
from tts_compress.models.contract.reading import Explained, Part, find_contract
from tts_compress.models.contract.schema import Contract
from tts_compress.models.files import (
    REFERENCE,
    REFERENCE_TEXT,
    STREAM_NAME,
    find_prompt,
    read_header,
)
from tts_compress.models.onnx_model import OnnxModel, Opened
from tts_compress.models.speakers import NO_SPEAKERS, find_speaker, speakers_in_turn
from tts_compress.models.streaming import (
    Streamer,
    StreamRuntime,
    cut_part,
    open_cut,
    open_stages,
    texts_to_cut_by,
)
from tts_compress.onnx.chunks import in_chunks
from tts_compress.onnx.noise import draw_noise, feed_noise
from tts_compress.onnx.session import Feeds, input_names, run_session
from tts_compress.onnx.stages import StagedGraph


class OnnxVoice(OnnxModel):
    """One graph or several that speak by their contract, from files or compressed in memory.

    Args:
        path: The `.onnx` file of the first graph; the files that its contract names lie beside it.
        spec: Spec by which the user named the voice.
        manifest: Record of its compression; None for an original.
        held: The first graph, where it is in memory only.
    """

    family = "contract"
    kind = "voice with a contract"

    parts: Mapping[str, Part]

    def _read_parts(self, first: GraphPart) -> Mapping[str, Part]:
        self._found = self._explain(first.path)
        leading, *others = parts = self._found.parts()
        self.caller = Caller(self._found, parts)
        self.folder = self.contract.folder
        self.speakers = self.caller.speakers
        self.speaker: str | None = None
        self.prompt = find_prompt(self._found.folders[-1]) if self.contract.imitates else None
        return {"": replace(leading, spec=first.spec, held=first.held)} | {
            part.path.stem: part for part in others if part.path != leading.path
        }

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
        """The speaker that was chosen, the language, and the recording."""
        languages = (self.language,) if self.language else ()
        return Speaking(speaker=self.speaker, languages=languages, prompt=self.prompt)

    def speaking_as(self, speaking: Speaking) -> Self:
        """Return this voice speaking as one of its speakers, or like a recording."""
        changed: dict[str, Any] = {}
        if (prompt := speaking.prompt) and self.prompt and (prompt.audio or prompt.text):
            if prompt.audio is not None:
                read_header(prompt.audio)
            audio = prompt.audio or self.prompt.audio
            changed["prompt"] = Prompt(audio=audio, text=prompt.text)
        if speaking.speaker is not None:
            changed["speaker"] = find_speaker(self.speakers, speaking.speaker, self.spec)
        return self._with(**changed) if changed else self

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights; where the contract names them, in its order."""
        components = super().components()
        named = self.contract.components
        if not named:
            return components
        listed = {
            name: replace(components[name], role=named[name])
            for name in named
            if name in components
        }
        return listed | {name: components[name] for name in self.parts if name}

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
        """Speak a text with noise chosen by `seed`; None speaks without noise."""
        spoken = [self.caller.speak(self._run, call) for call in self._calls(text, seed)]
        frames = self.contract.durations or ""
        durations = [s.latest[frames].reshape(-1) for s in spoken if frames in s.latest]
        samples = np.concatenate([self.caller.samples(speech) for speech in spoken])
        return Audio(
            samples=samples.astype(np.float32),
            sample_rate=self.sample_rate,
            durations=np.rint(np.concatenate(durations)).astype(np.int64) if durations else None,
        )

    def stream(self, text: str, *, seed: int | None = 0) -> Iterator[Audio]:
        """Speak a text chunk by chunk; stitched together it is what `synthesize` returns.

        Raises:
            ModelError: Most of the voice is not local in time; the operator is named.
            TextError: The text cannot be spoken.
        """
        if self._streamer is None:
            self._streamer = self._open_streamer()
        until = 0.0  # what was said will have been played
        for call in self._calls(text, seed):
            for coming in self.caller.rounds(self._run, call, [len(self.caller.parts) - 1]):
                feeds = _fed(self._streamer.inputs, coming.feeds, coming.seed)
                for chunk in self._streamer.speak(feeds, playing_until=until):
                    until = max(until, perf_counter()) + chunk.duration_s
                    yield replace(chunk, samples=chunk.samples * np.float32(call.gain))
        if not until:  # speech ended before it began
            yield Audio(samples=np.zeros(0, np.float32), sample_rate=self.sample_rate)

    def _calls(self, text: str, seed: int | None, speaker: str | None = None) -> Iterator[Call]:
        return self.caller.calls(text, seed, speaker or self.speaker, self.prompt or Prompt())

    def _hear(self, call: Call, heard: Mapping[str, Callable[[Any], Any]]) -> None:
        """Speak, and tell functions the outputs and tokens of their names."""
        self.caller.speak(self._run, call, lambda n, v: heard[n](v) if n in heard else None)

    def cut(self, *, fed: bool = False) -> StagedGraph:
        """Return the graph that makes the sound, cut in time; with `fed`, noise is an input.

        Raises:
            ModelError: Most of it is not local in time; the operator is named.
        """
        name, part = [*self.parts.items()][-1]
        model = feed_noise(self.graph(name)) if fed else self.graph(name)
        calls = self.two_calls(name)
        return cut_part(part, model, calls, original=self.manifest is None)

    def in_chunks(
        self, part: str, graph: onnx.ModelProto, calls: Iterable[Feeds]
    ) -> onnx.ModelProto:
        """Return a graph as it takes least memory: one that makes samples does so in chunks."""
        name, last = [*self.parts.items()][-1]
        table = last.table
        if part != name or table.spectrum is not None or table.loop or table.repeat > 1:
            return graph
        lengths = groupby(calls, lambda call: {name: array.shape for name, array in call.items()})
        two = [next(alike) for _, alike in islice(lengths, 2)]
        return graph if len(two) < 2 else in_chunks(graph, two, last.output, last.spec)

    def two_calls(self, part: str) -> list[Feeds]:
        """Return the inputs of a graph in two calls of different lengths, by its usual speaker."""
        usual = self._with(speakers=NO_SPEAKERS)  # calibration begins with the first one
        for texts in texts_to_cut_by(self.language):
            with suppress(TextError, MissingExtraError):
                calls = [next(usual.calibration_calls([t], seed=0, part=part)) for t in texts]
                if any(calls[0][name].shape != calls[1][name].shape for name in calls[0]):
                    return calls
        raise ModelError(f"'{self.spec}' speaks no text by which it could be cut")

    def calibration_calls(
        self, texts: Iterable[str], *, seed: int, part: str = "", every: bool = False
    ) -> Iterator[Feeds]:
        """Yield what a graph is given in each round of the calls for texts, with fed noise.

        Texts go round the speakers, the first text with the first one; a speaker that was chosen
        speaks all.
        """
        # The names alone: a session opened for them would hold every weight once more.
        names = [value.name for value in feed_noise(self.graph(part)).graph.input]
        parts, path = self.caller.parts, self.parts[part].path
        positions = [number for number, other in enumerate(parts) if other.path == path]
        speakers = speakers_in_turn(self)
        for index, text in enumerate(texts):
            speaker = speakers[index % len(speakers)] if speakers else None
            for call in self._calls(text, seed + index, speaker):
                for coming in self.caller.rounds(self._run, call, positions):
                    # The text said so far grows: a few rounds observe it short and long.
                    told = every or parts[coming.position].table.loop is None
                    if told or not coming.step & (coming.step - 1):
                        yield _fed(names, coming.feeds, coming.seed)

    def open_runtime(self, *, threads: int) -> Runtime:
        """Open the files in onnxruntime, called as the contract states; in stages if there are."""
        if (streaming := self._player(threads)) is not None:
            return streaming
        self.files()  # which a voice in memory has none of
        return ContractRuntime(self._with(_opened=self._open_files(self.parts, threads)))

    def _open_files(self, names: Iterable[str], threads: int) -> dict[str, Opened]:
        """Open graphs' own files."""
        parts = {name: self.parts[name] for name in names}
        return {
            name: (self.sessions.open(self.source(name), part.spec, threads=threads), part.returns)
            for name, part in parts.items()
        }

    def _run(self, position: int, feeds: Feeds, seed: Seed) -> list[Any]:
        """Run a graph with fed noise; speakers share its session."""
        part = self.caller.parts[position]
        name = next(name for name, other in self.parts.items() if other.path == part.path)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        session, outputs = self._opened[name]
        fed = _fed(input_names(session), feeds, seed)
        names = part.returns if position else outputs
        return run_session(session, fed, self.parts[name].spec, names)

    def _open_stages(self, threads: int | None) -> Streamer | None:
        """Open the stages beside the voice's files, with fed noise where no threads are stated."""
        part, path = [*self.parts.values()][-1], self._found.folders[-1] / STREAM_NAME
        if any(each.held is not None for each in self.parts.values()) or not path.is_file():
            return None
        return open_stages(part, self.sample_rate, path, threads, self.sessions.open)

    def _player(self, threads: int) -> StreamRuntime | None:
        """Return what plays the stages beside the voice's files; None where there are none."""
        streamer = self._open_stages(threads)
        if streamer is None:
            return None
        opened = self._open_files([*self.parts][:-1], threads)
        return StreamRuntime(self._with(_streamer=streamer, _opened=opened).stream)

    def _open_streamer(self) -> Streamer:
        """Open the last graph in stages, with fed noise."""
        if (streamer := self._open_stages(None)) is not None:
            return streamer
        cut, part = self.cut(fed=True), [*self.parts.values()][-1]
        return open_cut(part, self.sample_rate, cut, self.sessions.open)

    def _open(self, part: str) -> Opened:
        """Open a graph with fed noise."""
        opened = self.parts[part]
        graph = feed_noise(self.graph(part))
        return self.sessions.open(graph, opened.spec, briefly=True), opened.returns

    def _settings(self) -> Mapping[str, Path]:
        audio = self.prompt.audio if self.prompt else None
        return self._found.files(self.caller.parts) | ({REFERENCE: audio} if audio else {})

    def _texts(self) -> Mapping[str, str]:
        text = self.prompt.text if self.prompt else None
        return {REFERENCE_TEXT: f"{text}\n"} if text else {}


class ContractRuntime:
    """onnxruntime on a voice's files, called as its contract states."""

    def __init__(self, voice: OnnxVoice) -> None:
        self._voice = voice

    def speak(self, text: str) -> Audio:
        """Speak a text with the graphs' own random noise, and fresh noise where it is an input."""
        return self._voice.synthesize(text, seed=int(np.random.default_rng().integers(1 << 31)))


def _fed(names: list[str], feeds: Feeds, seed: Seed) -> Feeds:
    """Return the values of a graph's inputs, by their names, with noise where it draws any."""
    return {name: feeds[name] for name in names if name in feeds} | draw_noise(names, seed=seed)
