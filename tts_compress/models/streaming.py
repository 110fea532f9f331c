"""Voices that speak chunk by chunk: the last graph, which makes the sound, cut in time.

What a stage has computed is kept as far as later chunks need it; beyond the ends of the utterance
each operator pads as in the whole. So every value that leaves is the whole's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from tts_compress.audio import Audio
from tts_compress.config import IDS, data_names
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.contract.sound import to_samples
from tts_compress.models.graph_file import read_graph
from tts_compress.models.speakers import primary_language
from tts_compress.onnx.graph import Graph, copy_model
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize.prepare import prepare
from tts_compress.onnx.rewrite import drop_neutral
from tts_compress.onnx.rewrite.expansion import gather_frames
from tts_compress.onnx.session import SHARED, Feeds, input_names, run_session, share_arena
from tts_compress.onnx.stages import Stage, StagedGraph, cut_graph
from tts_compress.reading import read_json
from tts_compress.recipes.recipe import read_calibration_set

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from tts_compress.models.contract.reading import Part
    from tts_compress.models.contract.schema import Spectrum

Arrays = list[npt.NDArray[Any]]
Run = Callable[[Mapping[str, npt.NDArray[Any]]], Arrays]
"""Runs a stage on its inputs by name."""

_MARGIN = 0.5
"""Share of the time that is left until the sound runs out which a chunk may take."""


class Flow:
    """An utterance of which the first stage's whole input is there.

    Args:
        stages: The stages, in their order.
        runs: What runs each.
        first: The whole input of the first stage.
        sides: The tensors without time that stages read, by name.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        runs: Sequence[Run],
        first: Arrays,
        sides: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        self._stages, self._runs, self._sides = stages, runs, sides
        self._kept: list[Arrays] = [first, *([] for _ in stages)]
        self._begins = [0] * len(stages)
        self._done = [0] * len(stages)
        self._sizes = [int(first[0].shape[stages[0].axis])]
        for stage in stages:
            self._sizes.append(stage.length(self._sizes[-1]))

    @property
    def frames(self) -> int:
        """Steps of the first stage's input."""
        return self._sizes[0]

    def until(self, frame: int) -> npt.NDArray[Any]:
        """Return the sound that follows what was returned before, at least up to a frame.

        Empty where the frames before held it all: a centred Vocos cuts off its last frame.
        """
        hop = prod(stage.hop for stage in self._stages)
        end = self._sizes[-1] if frame >= self.frames else frame * hop
        self._advance(len(self._stages) - 1, end)
        kept, self._kept[-1] = self._kept[-1], []
        return kept[0].reshape(-1) if kept else np.zeros(0, np.float32)

    def _advance(self, number: int, end: int) -> None:
        """Have a stage compute at least up to a step of its output."""
        stage, size, done = self._stages[number], self._sizes[number], self._done[number]
        whole = end >= self._sizes[number + 1] or size < stage.least
        until = size if whole else min(size, -(-end // stage.hop))
        if until <= done:
            return
        if done:
            until = min(size, done + (until - done) * stage.ahead)
        last = min(size, until + stage.after)
        if number:
            self._advance(number - 1, last)
        begin = max(0, done - stage.before)
        if last == size:
            begin = max(0, min(begin, size - stage.least))
        begin += -begin % stage.multiple
        output = self._run(number, begin, last)
        stop = None if until == size else (until - begin) * stage.hop
        output = [_cut(array, stage.to, (done - begin) * stage.hop, stop) for array in output]
        old = self._kept[number + 1]
        pairs = zip(old or output, output, strict=True)
        self._kept[number + 1] = [np.concatenate(p, stage.to) for p in pairs] if old else output
        self._done[number] = until
        self._forget(number, until - max(stage.before, stage.least))

    def _run(self, number: int, begin: int, last: int) -> Arrays:
        """Run a stage on some steps of its input, with zeros behind those that are not the last."""
        stage, offset, steps = self._stages[number], self._begins[number], last - begin
        is_end = last == self._sizes[number]
        short = 0 if is_end else max(stage.least - steps, -steps % stage.multiple)
        feeds = {name: self._sides[name] for name in stage.sides}
        for name, array in zip(stage.reads, self._kept[number], strict=True):
            chunk = _cut(array, stage.axis, begin - offset, last - offset)
            if short > 0:
                pads = [(0, short if axis == stage.axis else 0) for axis in range(chunk.ndim)]
                chunk = np.pad(chunk, pads)
            feeds[name] = chunk
        return self._runs[number](feeds)

    def _forget(self, number: int, needed: int) -> None:
        """Drop a stage's input before a step."""
        surplus = needed - self._begins[number]
        if surplus > 0:
            axis = self._stages[number].axis
            self._kept[number] = [
                _cut(array, axis, surplus, None).copy() for array in self._kept[number]
            ]
            self._begins[number] = needed


def _cut(array: npt.NDArray[Any], axis: int, begin: int, end: int | None) -> npt.NDArray[Any]:
    return array[(slice(None),) * axis + (slice(begin, end),)]


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that a chunk takes: some to start, and some for each frame."""

    start_s: float
    frame_s: float

    def seconds(self, frames: int) -> float:
        """Return the seconds of a chunk."""
        return self.start_s + self.frame_s * frames


def chunk_ends(
    frames: int, pace: Pace, frame_s: float, *, first: int, most: int, ahead_s: float = 0.0
) -> Iterator[int]:
    """Yield the frames at which chunks end, so that sound never runs out while it is played.

    The first chunk is the shortest behind which the next comes in time; on a machine slower than
    speech that is most of the utterance. Later ones grow with the time that is left.

    Args:
        frames: Frames of the utterance.
        pace: What chunks take here.
        frame_s: Seconds of sound of a frame.
        first: Fewest frames of the first chunk.
        most: Most frames that are computed at once; they bound the memory.
        ahead_s: Seconds of earlier sound that are still being played.
    """
    gain = frame_s - pace.frame_s
    if gain > 0:
        end = ceil(pace.start_s / gain)
    else:  # all but what is computed while the rest is played
        starts = (frames / most + 1) * pace.start_s
        end = ceil(frames - (frame_s * (frames - most) - starts) / pace.frame_s)
    least, left, end = max(first, end), ahead_s, 0
    while end < frames:
        spare = int((left * _MARGIN - pace.start_s) / max(pace.frame_s, 1e-9))
        count = max(least, min(most, spare)) if gain > 0 or not end else most
        count = min(frames - end, count)
        left = max(left - pace.seconds(count), 0.0) + count * frame_s
        end += count
        yield end


_MOST = 1 << 16
"""Most steps that a stage in a file may need at once."""

_SHARE, _MOST_THREADS = 1.25, 4
"""Threads share out the columns of FP32 layers, 16 at a time, so a stage needs as many for each; on
a machine of more threads the first sound would be late."""

FIRST_S = 0.1
"""Shortest first chunk, by what screen readers ask for."""

MOST_S = 1.15
"""Longest chunk that is computed at once: it bounds the memory."""


def cut_part(
    part: Part, model: onnx.ModelProto, calls: Sequence[Feeds], *, original: bool
) -> StagedGraph:
    """Return the graph of a voice that makes its sound, cut in time.

    Args as of `prepare_part`.

    Raises:
        ModelError: Most of the graph is not local in time.
    """
    if not original:  # a scheme may have left masks
        model = _without_neutral(copy_model(model))
    return cut_graph(*prepare_part(part, model, calls, original=original), part.spec)


def prepare_part(
    part: Part, model: onnx.ModelProto, calls: Sequence[Feeds], *, original: bool
) -> tuple[onnx.ModelProto, list[Feeds], tuple[str, ...]]:
    """Return a graph as it can be cut in time, inputs of its calls, and the outputs of its sound.

    Args:
        part: The graph's part of the contract.
        model: The graph, perhaps with fed noise.
        calls: Inputs of two calls of different lengths.
        original: Nothing was compressed: what changes nothing is dropped first. Masks, which are
            of ones where one text is spoken at a time, would be read throughout.

    Raises:
        ModelError: It runs in a loop.
    """
    if part.table.repeat > 1 or part.table.loop is not None:
        raise ModelError(f"'{part.spec}' runs in a loop, so its sound is there at the end only")
    if original:
        model = _without_neutral(prepare(model))
    names = {value.name for value in model.graph.input}
    inputs = [{n: a for n, a in call.items() if n in names} for call in calls]
    outputs = (part.output,) if part.table.spectrum is None else part.table.spectrum.outputs
    return gather_frames(model, inputs, part.spec), inputs, outputs


def _without_neutral(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a graph, which is changed, without masks and what else changes nothing."""
    graph = Graph(model)
    drop_neutral(graph)
    return graph.finish()


def texts_in(language: str | None) -> tuple[str, ...]:
    """Return the shipped calibration texts of a language; the English ones where there are none."""
    wanted = primary_language(language or "en")
    name = wanted if wanted in data_names("calib/sets") else "en"
    return read_calibration_set(name).texts


def texts_to_cut_by(language: str | None) -> Iterator[tuple[str, str]]:
    """Yield pairs of texts of different lengths, in a language if there are texts of it."""
    texts = sorted(texts_in(language), key=len)
    # How long a language model speaks is not told by its text.
    yield from ((texts[0], other) for other in texts[len(texts) // 2 :][:4])
    yield f"{IDS} 1 2 3 1 2 3", f"{IDS}{' 1 2 3' * 5}"  # for voices that take no other


def spectrum_stage(spectrum: Spectrum) -> tuple[Stage, Run]:
    """Return the stage that makes samples of spectra: windowed frames that overlap."""
    size, hop = spectrum.n_fft, spectrum.hop_length
    cut = size // 2 if spectrum.center else 0
    stage = Stage(
        reads=spectrum.outputs,
        axis=2,
        returns=("samples",),
        to=0,
        sides=(),
        hop=hop,
        before=(size - 1 - cut) // hop,
        after=(hop - 1 + cut) // hop,
        extra=size - hop - 2 * cut,
    )
    return stage, lambda feeds: [to_samples(spectrum, [feeds[name] for name in stage.reads])]


@dataclass(slots=True)
class Streamer:
    """An open voice that speaks chunk by chunk, of the inputs of the graph that makes the sound."""

    sample_rate: int
    stages: Sequence[Stage]
    runs: Sequence[Run]
    inputs: list[str]
    """The inputs of a call, by name."""

    encode: Callable[[Feeds, Sequence[str]], Sequence[Any]] | None
    """Returns named tensors of a call; None where the first stage reads the graph's own inputs."""

    pace: Pace | None = None
    """Time that chunks take on this machine; None until the first utterance measured it."""

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        return prod(stage.hop for stage in self.stages)

    def start(self, feeds: Feeds) -> Audio:
        """Return the first `FIRST_S` of a call's sound, or a frame more."""
        shortest, _ = chunk_bounds(self.sample_rate, self.stages)
        samples = self._encoded(feeds)().until(shortest)
        return Audio(samples=samples.astype(np.float32), sample_rate=self.sample_rate)

    def _encoded(self, feeds: Feeds) -> Callable[[], Flow]:
        """Run what runs once for a call; return what begins its way through the stages."""
        first = self.stages[0].reads
        sides = {name for stage in self.stages for name in stage.sides}
        values, names = dict(feeds), sorted({*first, *sides} - feeds.keys())
        if self.encode is not None:
            values |= zip(names, self.encode(feeds, names), strict=True)
        return lambda: Flow(self.stages, self.runs, [values[name] for name in first], values)

    def speak(self, feeds: Feeds, *, playing_until: float = 0.0) -> Iterator[Audio]:
        """Yield the sound of a call, chunk by chunk.

        `playing_until` is when earlier sound will have been played, by `perf_counter`.
        """
        begin = self._encoded(feeds)
        shortest, most = chunk_bounds(self.sample_rate, self.stages)
        if self.pace is None:
            self.pace = measure_pace(begin, shortest)
        flow, said = begin(), 0
        frame_s = self.hop / self.sample_rate
        ahead_s = max(playing_until - perf_counter(), 0.0)
        for end in chunk_ends(
            flow.frames, self.pace, frame_s, first=shortest, most=most, ahead_s=ahead_s
        ):
            pieces = [flow.until(min(end, stop + most)) for stop in range(said, end, most)]
            samples = np.concatenate(pieces).astype(np.float32, copy=False)
            if len(samples):
                yield Audio(samples=samples, sample_rate=self.sample_rate)
            said = end


def chunk_bounds(sample_rate: int, stages: Sequence[Stage]) -> tuple[int, int]:
    """Return the frames of the shortest first chunk, and of the longest computed at once."""
    rate = sample_rate / prod(stage.hop for stage in stages)
    return ceil(FIRST_S * rate), ceil(MOST_S * rate)


def measure_pace(begin: Callable[[], Flow], frames: int) -> Pace:
    """Return what chunks take: of one, and of four times its frames, after one to warm up."""
    spent = []
    for count in (frames, frames, 4 * frames):
        flow, started = begin(), perf_counter()
        flow.until(count)
        spent.append(perf_counter() - started)
    more = max(1, min(4 * frames, flow.frames) - frames)  # a short utterance has fewer
    each = max(0.0, spent[2] - spent[1]) / more
    return Pace(start_s=max(0.0, spent[1] - each * frames), frame_s=each)


class StreamRuntime:
    """A player of a voice's stages.

    Args:
        stream: Yields the chunks of a text with a seed.
    """

    def __init__(self, stream: Callable[..., Iterator[Audio]]) -> None:
        self._stream = stream

    def stream(self, text: str) -> Iterator[Audio]:
        """Speak a text in chunks with fresh noise."""
        yield from self._stream(text, seed=int(np.random.default_rng().integers(1 << 31)))

    def speak(self, text: str) -> Audio:
        """Return the chunks as one."""
        return joined(self.stream(text))


def joined(chunks: Iterable[Audio]) -> Audio:
    """Return chunks as one sound."""
    parts = list(chunks)
    samples = np.concatenate([part.samples for part in parts])
    return Audio(samples=samples, sample_rate=parts[0].sample_rate)


def open_stages(
    part: Part, sample_rate: int, path: Path, threads: int | None, opened: Callable[..., Any]
) -> Streamer:
    """Open the stages in the folder of a `stream.json`, as a player does, or with fed noise.

    Args:
        part: The graph's part of the contract.
        sample_rate: Samples per second of the voice, Hz.
        path: The file that `export --stream` wrote.
        threads: Threads of a player within an operator; None feeds noise.
        opened: Opens a graph, as `open_session` does.

    Raises:
        ModelError: The file is not one of these.
    """
    with model_errors(f"'{path}' holds no stages; export the voice again with --stream"):
        content = read_json(path)
        graphs = [path.with_name(Path(table.pop("graph")).name) for table in content["stages"]]
        stages = [TypeAdapter(Stage).validate_python(table) for table in content["stages"]]
        if any(not 0 <= n <= _MOST for s in stages for n in (s.hop, s.before, s.after, s.least)):
            raise ValueError(f"hop, before, after and least are 0 to {_MOST}")
        name = content["encoder"]
    share_arena()
    sessions = [opened(graph, part.spec, threads=threads, **SHARED) for graph in graphs]
    encoder = None
    if name is not None:
        file = path.with_name(Path(name).name)
        graph = file if threads else feed_noise(read_graph(file))
        encoder = opened(graph, part.spec, threads=threads, **SHARED)
    return build_streamer(part, sample_rate, stages, sessions, encoder)


def open_cut(
    part: Part, sample_rate: int, cut: StagedGraph, opened: Callable[..., Any]
) -> Streamer:
    """Open the graphs of a cut in memory; arguments as of `open_stages`."""
    sessions = [opened(model, part.spec) for model in cut.models]
    encoder = None if cut.encoder is None else opened(cut.encoder, part.spec)
    return build_streamer(part, sample_rate, cut.stages, sessions, encoder)


def build_streamer(
    part: Part,
    sample_rate: int,
    stages: Sequence[Stage],
    sessions: Sequence[onnxruntime.InferenceSession],
    encoder: onnxruntime.InferenceSession | None,
) -> Streamer:
    """Return what speaks by open graphs."""
    stated = sessions[0].get_session_options().intra_op_num_threads
    threads = stated or min(os.cpu_count() or 1, _MOST_THREADS)
    if threads > 1:
        stages = [replace(s, least=ceil(_SHARE * threads * s.least)) for s in stages]
    runs: list[Run] = [
        lambda feeds, session=session, stage=stage: run_session(  # type: ignore[misc]
            session, feeds, part.spec, stage.returns
        )
        for session, stage in zip(sessions, stages, strict=True)
    ]
    if part.table.spectrum is not None:
        stage, run = spectrum_stage(part.table.spectrum)
        stages, runs = [*stages, stage], [*runs, run]

    def encode(feeds: Feeds, names: Sequence[str]) -> Sequence[Any]:
        assert encoder is not None
        return run_session(encoder, feeds, part.spec, names)

    if encoder is not None:
        return Streamer(sample_rate, stages, runs, input_names(encoder), encode)
    inputs = [*stages[0].reads, *(name for stage in stages for name in stage.sides)]
    return Streamer(sample_rate, stages, runs, inputs, None)
