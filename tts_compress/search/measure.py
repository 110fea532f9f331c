"""Damage and cost of converted graphs of a voice, on a few short texts; estimated or measured.

Estimates are of first order, from one pass of second moments and one gain per layer. Rounding is
noise that is added to what a layer returns. Its power follows from the second moments
of the layer's inputs: an error of a weight counts by the power of the input that it multiplies, and
one of an input by the squares of the weights, as if errors and inputs were independent of each
other. That power, relative to the power of what the layer returns, times the gain of the layer is
the estimate. The gain is measured: noise of known power is added to what the layer returns, by
rounding it coarsely, and the change of the audio and of durations is measured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import hypot, sqrt
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tts_compress.audio import Audio
from tts_compress.compression.sound import (
    OTHER_SEED,
    AudioComparison,
    DurationComparison,
    SoundDamage,
    energies,
)
from tts_compress.compression.workbench import Workbench
from tts_compress.errors import ModelError
from tts_compress.evaluation.intervals import take_turns
from tts_compress.evaluation.metric import Record
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.process import Worker
from tts_compress.folders import temporary_folder
from tts_compress.models.base import GraphModel
from tts_compress.models.onnx_voice import OnnxVoice
from tts_compress.models.streaming import cut_part, open_cut
from tts_compress.numerics.ranges import LEVELS, Range
from tts_compress.numerics.weights import by_axis, round_blocks, round_in_parts, round_weight
from tts_compress.onnx.graph import Graph, copy_model, with_outputs
from tts_compress.onnx.modules import vary_weights
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.precision import rounded_durations
from tts_compress.onnx.quantize.collect import record_tensors
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.quantize.operators import remainders
from tts_compress.onnx.session import (
    SHARED,
    Feeds,
    group_ms,
    open_session,
    run_session,
    share_arena,
)
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Rule
from tts_compress.search.options import Objective

_HELD = "tts_compress.held."
_Floats = npt.NDArray[np.float32]

_MOST_FRAMES = 0.01
"""Change of durations that is admitted: a symbol in a hundred lasts a frame more or less."""

_ROUNDS = 5


class Damage(Record):
    """Damage by a part of a graph: the energies of several add up."""

    same_noise: float
    """Distance from the reference's audio with the same noise and durations, 1 is that of mu-law
    (`AudioComparison.same_noise`)."""

    pause_noise: float = 0.0
    """Power added to pauses in shares of their floor, 1 is a rise of 3 dB; 0 in estimates."""

    moment: float = 0.0
    """Damage of the worst moment, in margins of its kind; 0 in estimates, and in searches that did
    not measure it."""

    duration_frames: float
    """Mean change of a predicted duration before it is made whole, frames: about the share of
    symbols that last a frame more or less."""

    def energy(self, bound: float) -> float:
        """Return the energy in squares of a bound on distortion."""
        moved = self.duration_frames / _MOST_FRAMES
        return max(energies(self.same_noise, self.pause_noise, self.moment, bound)) + moved**2


class MeasuredDamage(Damage):
    """Damage by a whole graph, or by a part that was measured."""

    distortion: float
    """The metric `distortion` with the durations of the reference, 1 is what mu-law adds."""

    floor_db: float
    """Rise of the floor of pauses, worst octave, decibels."""

    def share(self, bound: float) -> float:
        """Return the largest share that is used of a bound on sound or durations."""
        sound = SoundDamage(distortion=self.distortion, floor_db=self.floor_db, moment=self.moment)
        return max(sound.share(bound), self.duration_frames / _MOST_FRAMES)


class GraphComparison:
    """Compares converted graphs of a voice with the FP32 one: the same noise and durations."""

    def __init__(
        self, model: GraphModel, reference: onnx.ModelProto, texts: Sequence[str], *, seed: int = 0
    ) -> None:
        self._spec, self._rate = model.spec, model.sample_rate
        nodes = rounded_durations(reference, model.parts[""].lengths)
        self._rounded = [node.output[0] for node in nodes]
        self._sound = reference.graph.output[0].name
        self.feeds = list(model.calibration_calls(texts, seed=seed))
        """Inputs of each text, with fed noise."""

        self._durations = DurationComparison(
            reference, model.parts[""].lengths, self.feeds, model.spec
        )
        graph = with_outputs(feed_noise(reference), [self._sound, *self._rounded])
        session = open_session(graph, self._spec, 1, briefly=True)
        runs = [run_session(session, feeds, self._spec) for feeds in self.feeds]
        audios = [self._audio(run[0]) for run in runs]
        if not all(np.isfinite(audio.samples).all() for audio in audios):
            raise ModelError(
                f"'{self._spec}' speaks samples that are not finite, so nothing can be compared; "
                "export from a checkpoint that is sound"
            )
        calls = list(model.calibration_calls(texts, seed=seed + OTHER_SEED))
        others = [self._audio(run_session(session, feeds, self._spec)[0]) for feeds in calls]
        if all(np.array_equal(a.samples, b.samples) for a, b in zip(audios, others, strict=True)):
            session = open_session(vary_weights(graph), self._spec, 1, briefly=True)
            others = [self._audio(run_session(session, feeds, self._spec)[0]) for feeds in calls]
        self._comparison = AudioComparison(audios, others)
        self._held = [{f"{_HELD}{n}": value for n, value in enumerate(run[1:])} for run in runs]

    def measure(self, graph: onnx.ModelProto) -> MeasuredDamage:
        """Return the damage of a converted graph, which is not modified."""
        fed = feed_noise(graph)
        audios = self._speak(self._open_held(fed), {})
        damage = self._comparison.judge(audios)
        return MeasuredDamage(
            same_noise=self._comparison.same_noise(audios),
            pause_noise=self._comparison.pause_noise(audios),
            duration_frames=self._durations.changes(fed, [{}])[0],
            distortion=damage.distortion,
            floor_db=damage.floor_db,
            moment=damage.moment,
        )

    def probe(self, graph: onnx.ModelProto, inputs: Sequence[Feeds]) -> list[Damage]:
        """Return the damage of a graph with further inputs, without that to pauses."""
        fed = feed_noise(graph)
        held, changes = self._open_held(fed), self._durations.changes(fed, inputs)
        return [
            Damage(
                same_noise=self._comparison.same_noise(self._speak(held, more)),
                duration_frames=change,
            )
            for more, change in zip(inputs, changes, strict=True)
        ]

    def _open_held(self, fed: onnx.ModelProto) -> Any:
        """Open a graph that reads durations as inputs, and returns nothing but its sound."""
        graph = Graph(with_outputs(copy_model(fed), [self._sound]))
        for number, tensor in enumerate(self._rounded):
            name = f"{_HELD}{number}"
            graph.redirect(tensor, name)
            value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
            graph.model.graph.input.append(value)
        return open_session(graph.finish(), self._spec, 1, briefly=True)

    def _speak(self, session: Any, more: Feeds) -> list[Audio]:
        calls = zip(self.feeds, self._held, strict=True)
        return [self._audio(run_session(session, f | h | more, self._spec)[0]) for f, h in calls]

    def _audio(self, samples: _Floats) -> Audio:
        flat = np.asarray(samples, np.float32).reshape(-1)
        return Audio(samples=flat, sample_rate=self._rate)


UNITS: Mapping[Objective, str] = {
    "size": "bytes of the graph",
    "latency": "share of FP32's time",
    "memory": "peak bytes of a process",
    "first-audio": "share of FP32's time to the first sound",
}

Cost = Callable[[onnx.ModelProto], float]


def open_cost(
    objective: Objective, voice: GraphModel, feeds: Sequence[Feeds], *, in_chunks: bool = False
) -> Cost:
    """Return the function that measures a converted graph.

    Args:
        objective: The cost.
        voice: The original, of one graph.
        feeds: Inputs of the graph for each text, with fed noise.
        in_chunks: Graphs make their sound in chunks once they are artifacts.
    """
    if objective == "size":
        return lambda graph: float(len(graph.SerializeToString()))
    if objective == "memory":
        if in_chunks:
            return lambda graph: _peak_bytes(voice.in_chunks("", graph, feeds), feeds)
        return lambda graph: _peak_bytes(graph, feeds)
    in_stages = objective == "first-audio"

    def opened(graph: onnx.ModelProto, *, original: bool = False) -> Callable[[], list[float]]:
        runs = _first_sound(voice, graph, original=original) if in_stages else None
        timed = _timed(runs or _whole(graph), feeds)
        timed()
        return timed

    before = opened(voice.graph(), original=True)

    def compare(graph: onnx.ModelProto) -> float:
        after = opened(graph)
        fastest = np.min(take_turns((before, after), _ROUNDS), axis=0)  # [2, texts]
        return float(fastest[1].sum() / fastest[0].sum())

    return compare


def _timed(speak: Callable[[Feeds], Any], feeds: Sequence[Feeds]) -> Callable[[], list[float]]:
    """Return a run of all texts: seconds of each."""

    def run() -> list[float]:
        spent = []
        for call in feeds:
            start = perf_counter()
            speak(call)
            spent.append(perf_counter() - start)
        return spent

    return run


def _whole(model: onnx.ModelProto) -> Callable[[Feeds], Any]:
    """Return what runs a graph on the inputs of a text."""
    session = open_session(feed_noise(model), "the graph", 1)
    return lambda call: run_session(session, call, "the graph")


def _first_sound(
    voice: GraphModel, model: onnx.ModelProto, *, original: bool
) -> Callable[[Feeds], Any] | None:
    """Return what runs a graph of a voice, in stages, until its first 0.1 s are there.

    None where most of it is not local in time, so that nothing is heard before the end.
    """
    assert isinstance(voice, OnnxVoice), "voices of graphs are"
    part, opened = voice.parts[""], partial(open_session, threads=1, **SHARED)
    share_arena()
    try:
        cut = cut_part(part, feed_noise(model), voice.two_calls(""), original=original)
    except ModelError:
        return None
    streamer = open_cut(part, voice.sample_rate, cut, opened)
    names = streamer.inputs
    return lambda call: streamer.start({name: call[name] for name in names if name in call})


def _peak_bytes(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> float:
    """Return the peak memory of a process that opens a graph and runs it."""
    with temporary_folder() as folder:
        path = folder / "graph.onnx"
        path.write_bytes(feed_noise(model).SerializeToString())
        with Worker("graph", str(path), EvaluationOptions()) as worker:
            for call in feeds:
                inputs = folder / "inputs.npz"
                np.savez(inputs, **call)  # type: ignore[arg-type]
                peak = worker.ask("run", inputs=str(inputs))["peak_bytes"]
    return float(peak)


class Times(Record):
    """Milliseconds of the kernels of each group, over all texts."""

    reference: dict[str, float]
    """In FP32; under an empty name those of all other operators."""

    formats: dict[str, dict[str, float]]
    """Where every group has the format, by its name."""

    def saved_ms(self, group: str, form: str) -> float:
        """Return the time that a group takes less of in a format than in FP32."""
        return self.reference[group] - self.formats[form][group]


def profile_formats(
    bench: Workbench,
    feeds: Sequence[Feeds],
    groups: Sequence[str],
    rules: Mapping[str, Sequence[Rule]],
) -> Times:
    """Profile a voice in FP32 and with everything in each format, by onnxruntime.

    A layer alone in integers also pays for the way into them and out again; with its neighbours it
    does not. So formats are compared with all layers in them.
    """
    formats = {}
    for name, several in rules.items():
        whole = bench.recipe.model_copy(update={"component": tuple(several)})
        formats[name] = group_ms(bench.convert(whole), feeds, groups)
    return Times(reference=group_ms(bench.model.graph(), feeds, groups), formats=formats)


_Array = npt.NDArray[np.float64]

_NOISE = 0.02
"""Noise of a probe, relative to what the layer returns: about that of 8 bits."""

_OFF = 1e-7
"""Step of the layers that are not probed, relative: finer than FP32 itself."""

_AT_ONCE = 24
"""Layers whose activations are held at the same time."""

_PROBE = "tts_compress.probe."


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Second moments of one layer's activations over all texts."""

    inputs: _Array
    """Mean square of each input channel, shape `[C]`."""

    span: Range
    """Lowest and highest input."""

    output: float
    """Mean square of what it returns."""

    output_span: Range


class Estimator:
    """Estimates the damage of rounding layers of a graph."""

    def __init__(
        self, model: onnx.ModelProto, layers: Sequence[Decision], comparison: GraphComparison
    ) -> None:
        self._graph = Graph(copy_model(model))
        layers = [d for d in layers if d.weight is not None and has_formula(self._graph, d)]
        self.moments = dict(_moments(model, layers, comparison.feeds))
        self.probes = _probe(model, self.moments, comparison)
        """Damage of the noise of a probe at the output of each layer."""

    def estimate(self, decisions: Sequence[Decision]) -> Damage:
        """Return the damage that decisions will cause.

        Noises of several layers are independent: their powers add up.
        """
        sound = frames = 0.0
        for decision in decisions:
            if decision.output in self.moments and decision.weights != Weights.FLOAT32:
                noise, probe = self.noise(decision) / _NOISE, self.probes[decision.output]
                if not decision.decides_durations:
                    sound = hypot(sound, noise * probe.same_noise)
                frames = hypot(frames, noise * probe.duration_frames)
        return Damage(same_noise=sound, duration_frames=frames)

    def noise(self, decision: Decision) -> float:
        """Return the noise of a rounded layer relative to what it returns, as amplitudes."""
        moments, weight = self.moments[decision.output], self._graph.value(decision.tensor)
        weight = weight.astype(np.float64)
        error = rounded(weight, decision) - weight
        power = self._power(decision, np.square(error), moments.inputs)
        if decision.activations in {Activations.STATIC, Activations.DYNAMIC}:
            flat = np.full_like(moments.inputs, _step_power(moments.span))
            power += self._power(decision, np.square(weight), flat)
        if decision.activations == Activations.STATIC:
            power += _step_power(moments.output_span)
        return sqrt(power / moments.output) if moments.output > 0 else 0.0

    def _power(self, decision: Decision, squares: _Array, inputs: _Array) -> float:
        """Return the mean over outputs of the sum of squared weights times input power."""
        node = self._graph.producer(decision.output)
        assert node is not None
        if decision.operator in {"Gather", "Slice"}:
            return float(squares.mean())
        if decision.operator == "Conv":
            groups = attribute(node, "group", 1)
            taps = squares.reshape(groups, -1, squares.shape[1], squares[0, 0].size).sum(-1)
            return float(np.einsum("goc,gc->go", taps, inputs.reshape(groups, -1)).mean())
        if decision.operator == "ConvTranspose":
            taps = squares.reshape(*squares.shape[:2], -1).sum(-1)
            stride = np.prod(attribute(node, "strides", (1,)))
            return float((inputs @ taps).mean() / stride)
        matrix = np.moveaxis(squares, decision.axis, -1).reshape(-1, squares.shape[decision.axis])
        return float((inputs @ matrix).mean())


def rounded(weight: _Array, decision: Decision) -> _Array:
    """Return a weight as its format stores it."""
    if decision.weights == Weights.INT8:
        multiplied = decision.activations != Activations.NONE
        codes, scales = round_weight(weight, decision.axis, multiplied=multiplied)
        return np.asarray(codes * by_axis(scales, decision.axis, weight.ndim), np.float64)
    if decision.weights in {Weights.INT16, Weights.INT12}:
        codes, scales = round_in_parts(weight, decision.axis, remainders(decision, weight.size))
        return np.asarray(codes * by_axis(scales, decision.axis, weight.ndim), np.float64)
    if decision.weights == Weights.INT4:
        # To nearest; what an algorithm chooses is a little better.
        first = np.moveaxis(weight, decision.axis, 0).astype(np.float32)
        blocks = round_blocks(np.ascontiguousarray(first), decision.group_size)
        wide = (blocks.wide() * blocks.scales[:, None]).reshape(first.shape)
        return np.asarray(np.moveaxis(wide, 0, decision.axis), np.float64)
    if decision.weights == Weights.BFLOAT16:
        kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
        return weight.astype(np.float32).astype(kind).astype(np.float64)
    if decision.weights == Weights.FLOAT16:
        return weight.astype(np.float16).astype(np.float64)
    return weight


def _step_power(span: Range) -> float:
    """Return the power of rounding to 8-bit codes of a range."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    return float(((high - low) / LEVELS) ** 2 / 12.0)


def has_formula(graph: Graph, decision: Decision) -> bool:
    """Return True for layers whose noise can be estimated."""
    formulas = {"Conv", "ConvTranspose", "MatMul", "Gemm", "Gather", "Slice"}
    convertible = decision.operator != "MatMul" or graph.value(decision.tensor).ndim == 2
    return decision.operator in formulas and convertible and decision.output not in graph.outputs


def _moments(
    model: onnx.ModelProto, layers: Sequence[Decision], feeds: Sequence[Feeds]
) -> Iterator[tuple[str, Moments]]:
    graph = Graph(model)
    for start in range(0, len(layers), _AT_ONCE):
        part = layers[start : start + _AT_ONCE]
        inputs = {d.output: _activation(graph, d) for d in part}
        wanted = list(dict.fromkeys([*inputs, *(name for name in inputs.values() if name)]))
        runs = record_tensors(model, wanted, feeds, threads=1)
        for decision in part:
            source = inputs[decision.output]
            read = [run[source] for run in runs] if source else []
            yield decision.output, _moment(decision, read, [run[decision.output] for run in runs])


def _moment(
    decision: Decision, inputs: Sequence[npt.NDArray[np.float32]], outputs: Sequence[_Array]
) -> Moments:
    axis = 1 if decision.operator in {"Conv", "ConvTranspose"} else -1
    rows = [np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]) for x in inputs]
    joined = np.concatenate(rows).astype(np.float64) if rows else np.zeros((1, 1))
    returned = np.concatenate([np.asarray(y, np.float64).ravel() for y in outputs])
    return Moments(
        inputs=np.square(joined).mean(axis=0),
        span=(float(joined.min()), float(joined.max())),
        output=float(np.square(returned).mean()),
        output_span=(float(returned.min()), float(returned.max())),
    )


def _activation(graph: Graph, decision: Decision) -> str | None:
    node = graph.producer(decision.output)
    assert node is not None
    return None if decision.operator in {"Gather", "Slice"} else str(node.input[0])


def _probe(
    model: onnx.ModelProto, moments: Mapping[str, Moments], comparison: GraphComparison
) -> dict[str, Damage]:
    """Add noise to one layer after another, in one graph that has a step for each."""
    graph = Graph(copy_model(model))
    names = {output: f"{_PROBE}{number}" for number, output in enumerate(moments)}
    for output, name in names.items():
        readers = graph.readers(output)
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        graph.model.graph.input.append(value)
        steps = graph.insert("Div", [output, name], f"{name}.steps")
        whole = graph.insert("Round", [steps], f"{name}.whole")
        graph.redirect(output, graph.insert("Mul", [whole, name], f"{name}.rounded"), readers)
    scales = {names[o]: sqrt(12.0 * moment.output) or 1.0 for o, moment in moments.items()}
    off: Feeds = {name: np.array(scale * _OFF, np.float32) for name, scale in scales.items()}
    probes = [off | {name: np.array(s * _NOISE, np.float32)} for name, s in scales.items()]
    return dict(zip(moments, comparison.probe(graph.finish(), probes), strict=True))
