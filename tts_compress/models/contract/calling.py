"""Calls of the graphs that speak a text: their inputs, what flows between them, and the sound."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tts_compress.audio import Samples
from tts_compress.errors import ModelError, TTSCompressError, model_errors
from tts_compress.models.base import Prompt
from tts_compress.models.contract.inputs import (
    TOKENS,
    Input,
    NoiseInput,
    OutputInput,
    RecordingInput,
    SpeakerInput,
    StateInput,
    StepInput,
    StyleInput,
    TokensInput,
    ValueInput,
    source_of,
)
from tts_compress.models.contract.reading import Explained, Part, loops_of
from tts_compress.models.contract.sampling import draw_tokens
from tts_compress.models.contract.schema import GraphTable, Size, Until
from tts_compress.models.contract.sound import hear, read_recording, to_samples
from tts_compress.models.contract.styles import choose_row, read_styles
from tts_compress.models.contract.symbols import Speller, Symbols
from tts_compress.models.feeds import GraphInput
from tts_compress.models.files import REFERENCE_TEXT
from tts_compress.models.speakers import NO_SPEAKERS
from tts_compress.onnx.session import Feeds
from tts_compress.reading import MOST_ARRAY_BYTES, bounded_bytes

Seed = tuple[int, ...] | None
"""Seed of the noise of one call; None for no noise."""

Made = dict[str, Any]
"""Outputs of the graphs of a call so far, by name."""

_NOISE_STREAM = 1 << 20
"""Beginning of the streams of noise inputs, far from those of random operators."""

_DRAW_STREAM = 1 << 21
"""Beginning of the streams of drawn tokens."""

_LONGEST = 1 << 20
"""Largest size that may follow from what a graph returned."""

_ONCE = Until(longest=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One utterance: its symbols, and the seed of its noise."""

    symbols: Symbols
    seed: Seed
    speaker: str | None
    recording: Path | None = None
    transcript: tuple[int, ...] = ()
    """Symbols of what the recording says, where the voice is told them."""

    heard: Mapping[str, Samples] = field(default_factory=dict)
    """Samples or features of the recording that graphs are given, by name."""

    gain: float = 1.0
    """Multiplies the sound."""


Run = Callable[[int, Feeds, Seed], list[Any]]
"""Runs the graph at a position on its own inputs, with noise of a seed where it draws any: →
`Part.returns`."""

Listener = Callable[[str, Any], Any]
"""Is told each output and drawn token, by name, and may return another one to be read."""


@dataclass(frozen=True, slots=True)
class Saying:
    """A call that is spoken: outputs of the graphs so far, and tokens drawn of them."""

    run: Run
    call: Call
    listen: Listener = lambda *_: None
    latest: Made = field(default_factory=dict)
    """The last value of each, by name."""

    of_graph: dict[Path, Made] = field(default_factory=dict)
    """The last values of each graph by itself: names may be those of others."""

    rounds: dict[str, list[Any]] = field(default_factory=dict)
    """All values of those that are kept."""

    def put(self, part: Part, values: Made) -> None:
        """Add what came of a run of a graph."""
        for name, value in values.items():
            told = self.listen(name, value)
            value = value if told is None else told  # noqa: PLW2901
            self.latest[name] = self.of_graph.setdefault(part.path, {})[name] = value
            rounds = self.rounds.get(name, [])
            rounds.append(value)
            if part.table.loop is not None:
                with model_errors(f"'{part.spec}' returns too much in a loop"):
                    bounded_bytes((len(rounds), *np.shape(value)), 4, MOST_ARRAY_BYTES)


class Round(NamedTuple):
    """One run of a graph that is about to be."""

    position: int
    step: int
    feeds: Feeds
    seed: Seed
    is_last: bool
    """The graph is certain not to run again here."""


class Caller:
    """Runs the graphs of a voice one after the other, each as often as its contract states."""

    def __init__(self, explained: Explained, parts: tuple[Part, ...]) -> None:
        self._contract = contract = explained.contract
        self._sizes, self._until = contract.size, contract.until
        self.parts = parts
        self._loops = tuple(loops_of(parts))
        self._draws = list(dict.fromkeys(name for part in parts for name in part.table.sample))
        self._kept = {*self._draws, *(name for part in parts for name in part.joined)}
        self._kept |= {parts[-1].output} if parts[-1].table.loop else set()
        roles = [role for part in parts for role in part.roles.values()]
        styles = (role for role in roles if isinstance(role, StyleInput))
        self.styles = {role: read_styles(role, explained.folders) for role in styles}
        """Arrays of each input that is a style, by voice."""

        self._speller = Speller(
            contract.tokens, contract.language, explained.folders, explained.config
        )
        self.speakers = self._find_speakers()

    def calls(
        self, text: str, seed: int | None, speaker: str | None, prompt: Prompt
    ) -> Iterator[Call]:
        """Yield the calls that speak a text."""
        if seed is not None and seed < 0:
            raise TTSCompressError(f"seed {seed} is negative; give 0 or a larger integer")
        spelled = self._speller.calls(text)
        heard = {n: hear(prompt.audio, stated) for n, stated in self._contract.recording.items()}
        whole = Call(
            symbols=spelled[0],
            seed=None,
            speaker=speaker,
            recording=prompt.audio,
            transcript=self._transcript(prompt.text),
            heard={name: features for name, (features, _) in heard.items()},
            gain=min((gain for _, gain in heard.values()), default=1.0),
        )
        for index, symbols in enumerate(spelled):
            yield replace(whole, symbols=symbols, seed=None if seed is None else (seed, index))

    def _transcript(self, text: str | None) -> tuple[int, ...]:
        """Return the symbols of what the recording says, where an input is given them."""
        if all(role.role != "transcript" for part in self.parts for role in part.roles.values()):
            return ()
        if text is None:
            raise ModelError(
                f"the voice is told what its recording says; put it in {REFERENCE_TEXT} beside its "
                "graphs, or give it (--reference-text)"
            )
        return tuple(number for symbols in self._speller.calls(text) for number in symbols.ids)

    def _feeds(self, speech: Saying, position: int, step: int, number: int) -> Feeds:
        """Return the values of a graph's own inputs.

        Args:
            speech: What is spoken, and what the graphs returned.
            position: Place of the graph, from 0.
            step: Round of its innermost loop, from 0.
            number: Round over all its loops.
        """
        part, call, latest = self.parts[position], speech.call, speech.latest
        feeds: Feeds = {}
        for stream, (name, role) in enumerate(part.roles.items(), _NOISE_STREAM):
            expected, source = part.signature.inputs[name], source_of(name, role, step)
            if isinstance(role, StateInput):
                value = _state(role, expected, part, speech, step)
            elif source is not None and isinstance(role, OutputInput) and role.join is not None:
                with model_errors(f"the rounds of '{source}' cannot be joined for '{name}'"):
                    value = np.concatenate(speech.rounds[source], axis=role.join)
            elif source is not None:
                value = latest[source]
            elif isinstance(role, StepInput):
                rounds = part.table.repeat
                if rounds == 1 and part.table.loop:
                    rounds = self._until[part.table.loop].longest
                times = {"step": step, "steps": rounds, "time": _time(part.table, step, rounds)}
                value = times[role.role]
            elif isinstance(role, RecordingInput):
                value = read_recording(call.recording, role)
            elif isinstance(role, NoiseInput):
                seed = call.seed and (*call.seed, stream, position, number)
                value = role.scale * _noise(role, self._shape(role, call, latest), seed)
            else:
                value = self._value(name, role, call, latest)
            if isinstance(role, OutputInput):
                value = self._arranged(value, role, expected, speech)
            feeds[name] = _as_input(value, expected, source)
        return feeds

    def _arranged(
        self, value: Any, role: OutputInput, expected: GraphInput, speech: Saying
    ) -> npt.NDArray[Any]:
        """Return an output cut or filled up to sizes, with its axes in order, and scaled."""
        call, latest = speech.call, speech.latest
        array: npt.NDArray[Any] = np.asarray(value)
        with model_errors(f"no input '{expected}' can be made of shape {list(array.shape)}"):
            if role.skip is not None:
                array = array[:, self._size(role.skip, call, latest) :]
            if role.pad is not None:
                size = self._size(role.pad, call, latest)
                whole = (array.shape[0], size, *array.shape[2:])
                bounded_bytes(whole, array.itemsize, MOST_ARRAY_BYTES)
                missing = size - array.shape[1]
                array = np.pad(array, [(0, missing * (axis == 1)) for axis in range(array.ndim)])
            array = array.transpose(role.order) if role.order else array
        return array if role.scale == 1 else array * array.dtype.type(role.scale)

    def speak(self, run: Run, call: Call, listen: Listener = lambda *_: None) -> Saying:
        """Return what all graphs returned; a listener is told all of it, and may change it."""
        speech = Saying(run, call, listen, dict(call.heard))
        for _ in self._walk(speech):
            pass
        return speech

    def rounds(self, run: Run, call: Call, positions: Collection[int]) -> Iterator[Round]:
        """Yield each run of one graph, which may have several positions, before it is."""
        for coming in self._walk(Saying(run, call, latest=dict(call.heard))):
            if coming.position in positions:
                yield coming
                if coming.is_last and coming.position == max(positions):
                    return

    def samples(self, speech: Saying) -> Samples:
        """Return the sound that the last graph returned, or that is made of what it returned."""
        last, latest = self.parts[-1], speech.latest
        if last.output not in latest:
            return np.zeros(0, np.float32)  # speech ended before it began
        if last.table.spectrum is not None:
            outputs = [latest[name] for name in last.table.spectrum.outputs]
            return to_samples(last.table.spectrum, outputs) * np.float32(speech.call.gain)
        rounds = speech.rounds.get(last.output, [latest[last.output]])
        samples: Samples = np.concatenate(
            [np.reshape(r, -1) for r in rounds or [latest[last.output][:0]]]
        )
        if samples.dtype.kind != "f":
            raise ModelError(
                f"output '{last.output}' is {samples.dtype}; audio is real numbers from -1 to 1: "
                "name the output that is audio as 'output', or export the graph so"
            )
        return samples if speech.call.gain == 1 else samples * samples.dtype.type(speech.call.gain)

    def _walk(self, speech: Saying) -> Iterator[Round]:
        """Yield each run of all graphs before it is; its results are there by the next."""
        speech.rounds.update({name: [] for name in self._kept})
        for loop, positions in self._loops:
            roles = self.parts[positions[0]].roles.items()
            names = [source_of(*item) for item in roles if isinstance(item[1], OutputInput)]
            if any(n not in speech.latest or speech.rounds.get(n) == [] for n in names):
                return  # nothing was said
            until = self._until[loop] if loop else _ONCE
            drawn = speech.rounds.get(until.output or "")
            if until.token is not None and drawn and _is_over(until, speech):
                drawn.pop()  # a graph before drew the end
            else:
                yield from self._loop(speech, positions, until)

    def _loop(self, speech: Saying, positions: list[int], until: Until) -> Iterator[Round]:
        """Yield the runs of graphs that run in rounds together, until their loop ends."""
        end = until.longest
        for step in range(until.longest):
            counts = {name: len(rounds) for name, rounds in speech.rounds.items()}
            for position in positions:
                yield from self._repeat(speech, position, step, step + 1 == until.longest)
                if until.output in self.parts[position].values and _is_over(until, speech):
                    end = min(end, step + until.after)
                if step >= end:
                    for name, count in counts.items():
                        del speech.rounds[name][count:]
                    return

    def _repeat(self, speech: Saying, position: int, step: int, is_last: bool) -> Iterator[Round]:
        """Yield the runs of a graph in one round of its loop."""
        part, call = self.parts[position], speech.call
        times = part.table.repeat
        for inner in range(times):
            number = step * times + inner
            feeds = self._feeds(speech, position, inner if times > 1 else step, number)
            seed = call.seed and (*call.seed, *([position, number] if position or number else []))
            yield Round(position, number, feeds, seed, is_last and inner + 1 == times)
            returned = dict(zip(part.returns, speech.run(position, feeds, seed), strict=True))
            passed = _time(part.table, inner + 1, times) - _time(part.table, inner, times)
            moved = part.table.flow.items()
            returned |= {n: feeds[f.input] + returned[f.output] * passed for n, f in moved}
            speech.put(part, returned)
            for name, sample in part.table.sample.items():
                drawn = speech.rounds[name]
                stream = _DRAW_STREAM + self._draws.index(name)
                seed = call.seed and (*call.seed, stream, len(drawn))
                stops = [u.token for u in self._until.values() if u.output == name]
                with model_errors(f"no token can be drawn of '{sample.logits}'"):
                    read = [np.transpose(speech.latest[sample.after])] if sample.after else []
                    before = [*read, *drawn]
                    tokens = draw_tokens(sample, returned[sample.logits], before, seed, stops)
                speech.put(part, {name: tokens})

    def _value(self, name: str, role: Input, call: Call, values: Made) -> Any:
        """Return what an input is given by a text, with the axes that its role has."""
        if isinstance(role, ValueInput):
            quiet = call.seed is None and role.quiet is not None
            value: Any = role.quiet if quiet else role.value
            return np.broadcast_to(value, self._shape(role, call, values)) if role.shape else value
        if isinstance(role, SpeakerInput):
            return role.value if call.speaker is None else self.speakers[call.speaker]
        symbols = call.symbols
        if isinstance(role, StyleInput):
            voices = self.styles[role]
            style = voices[call.speaker or next(iter(voices))]
            return choose_row(role.rule, style, tokens=len(symbols.ids), text=symbols.characters)
        assert isinstance(role, TokensInput), f"input '{name}' has a role of its own"
        if role.role in {"tokens", "transcript"}:
            ids = symbols.ids if role.role == "tokens" else call.transcript
            return self._speller.framed(ids)
        if role.role == "tones":
            return self._speller.framed(symbols.tones, tones=True)
        size = self._size(role.size, call, values)
        return size if role.role == "lengths" else [1] * size

    def _shape(self, role: NoiseInput | ValueInput, call: Call, values: Made) -> tuple[int, ...]:
        sizes = role.shape
        shape = tuple(s if isinstance(s, int) else self._size(s, call, values) for s in sizes)
        with model_errors(f"{role.role} of the contract cannot be made"):
            bounded_bytes(shape, 4, MOST_ARRAY_BYTES)
        return shape

    def _size(self, name: str, call: Call, values: Made) -> int:
        if name == TOKENS:
            return len(self._speller.framed(call.symbols.ids))
        return _size_of(name, self._sizes[name], values)

    def token_counts(self) -> tuple[int, int]:
        """Return the number of tokens for each symbol, and of those that are always there."""
        of_one, of_two = (len(self._speller.framed(range(count))) for count in (1, 2))
        return of_two - of_one, 2 * of_one - of_two

    def _find_speakers(self) -> Mapping[str, int]:
        speakers = _numbered(next(iter(self.styles.values()), {}))
        for role in (role for part in self.parts for role in part.roles.values()):
            if isinstance(role, SpeakerInput):
                names = role.speakers or [str(number) for number in range(role.count)]
                speakers = names if isinstance(names, dict) else _numbered(names)
        return MappingProxyType(speakers) if len(speakers) > 1 else NO_SPEAKERS


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _size_of(name: str, size: Size, values: Made) -> int:
    """Return a size that follows from what a graph returned.

    Arithmetic is in float32, as of programs that go on with a graph's own numbers.
    """
    if size.axis is not None:
        with model_errors(f"size '{name}' is that of an axis which '{size.output}' lacks"):
            return size.plus + int(np.shape(values.get(size.output, np.empty((0,) * 8)))[size.axis])
    if size.output not in values:
        raise ModelError(
            f"size '{name}' follows from '{size.output}', which no graph before returns"
        )
    value = np.asarray(values[size.output])
    if value.size != 1:
        raise ModelError(
            f"size '{name}' follows from one number, but output '{size.output}' has the shape "
            f"{list(value.shape)}"
        )
    length = value.reshape(()).astype(np.float32) / np.float32(size.speed) * np.float32(size.rate)
    if not np.isfinite(length) or not 1 <= length / size.hop <= _LONGEST:
        raise ModelError(
            f"output '{size.output}' is {float(value.reshape(())):.4g}, from which no size "
            f"'{name}' follows (1 to {_LONGEST})"
        )
    return size.plus - (-int(length) // size.hop)


def _time(table: GraphTable, step: int, rounds: int) -> float:
    """Return the time of a flow before a round, 0 to 1."""
    return table.shift * step / (rounds + (table.shift - 1) * step)


def _is_over(until: Until, speech: Saying) -> bool:
    """Return True if what was returned or drawn last ends a loop."""
    value = np.reshape(speech.latest[until.output or ""], -1)[:1]
    return bool((value == until.token if until.above is None else value > until.above).all())


def _state(role: StateInput, expected: GraphInput, part: Part, speech: Saying, step: int) -> Any:
    """Return what a graph carries: from its run before, from another graph, or from the start."""
    source, returned = role.output or expected.name, speech.of_graph.get(part.path, {})
    if source in returned and (step or part.table.repeat == 1):
        return returned[source]
    if not role.shape and role.fill is None and source in speech.latest:
        return speech.latest[source]
    sizes = role.shape or expected.shape or ()
    shape = [n if isinstance(n, int) else int(axis == 0) for axis, n in enumerate(sizes)]
    with model_errors(f"the state '{expected}' cannot be made"):
        bounded_bytes(shape, expected.dtype.itemsize, MOST_ARRAY_BYTES)
    return np.full(shape, role.fill or 0, expected.dtype)


def _as_input(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the graph's type and number of axes; missing ones come first."""
    array = cast(value, expected, source)
    rank = max(array.ndim, 1) if expected.shape is None else len(expected.shape)
    while array.ndim > rank and array.shape[0] == 1:
        array = array[0]
    shape = (1,) * (rank - array.ndim) + array.shape
    if not expected.fits(shape):
        raise ModelError(f"the contract gives shape {list(array.shape)} to input '{expected}'")
    return array.reshape(shape)


def _noise(role: NoiseInput, shape: tuple[int, ...], seed: Seed) -> Samples:
    """Return noise that is equal at equal times for any length.

    Times are along the last axis whose size follows from something, else along the last axis.
    """
    if seed is None:
        return np.zeros(shape, np.float32)
    generator = np.random.default_rng(seed)
    named = [axis for axis, size in enumerate(role.shape) if isinstance(size, str)]
    axis = named[-1] if named else -1
    turned = np.moveaxis(np.empty(shape, bool), axis, 0).shape
    if role.distribution == "uniform":
        values = generator.random(turned, np.float32)
    else:
        values = generator.standard_normal(turned, np.float32)
    return np.ascontiguousarray(np.moveaxis(values, 0, axis))


def cast(value: Any, expected: GraphInput, source: str | None) -> npt.NDArray[np.generic]:
    """Return a value with the type of a graph's input.

    Args:
        value: Numbers of the contract or the text, or what a graph returned.
        expected: The input.
        source: Name of the output that returned the value; None for numbers of the contract,
            whose whole reals may become integers.
    """
    array, wanted = np.asarray(value), expected.dtype
    named = "a value of the contract" if source is None else f"output '{source}' {array.dtype}"
    kinds = {"i" if dtype.kind == "u" else dtype.kind for dtype in (array.dtype, wanted)}
    if source is not None and kinds not in ({"i"}, {"f"}) and not np.can_cast(array.dtype, wanted):
        raise ModelError(
            f"{named} cannot be input '{expected}': integers stay integers and reals reals; name "
            "another output, or export the graph with that type"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        changed = array.astype(wanted)
    kept = np.isfinite(changed) | ~np.isfinite(array) if wanted.kind == "f" else changed == array
    if not kept.all():
        wrong = array[~kept].flat[0]
        raise ModelError(f"{named} is {wrong!s:.40}, which input '{expected}' does not hold")
    return changed
