"""First-order estimates of damage, from one pass of second moments and one gain per layer.

Rounding is noise that is added to what a layer returns. Its power follows from the second moments
of the layer's inputs: an error of a weight counts by the power of the input that it multiplies, and
one of an input by the squares of the weights, as if errors and inputs were independent of each
other. That power, relative to the power of what the layer returns, times the gain of the layer is
the estimate. The gain is measured: noise of known power is added to what the layer returns, by
rounding it coarsely, and the change of the audio and of durations is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tts_compress.numerics.ranges import LEVELS, Range
from tts_compress.numerics.weights import round_blocks, round_weight
from tts_compress.onnx.graph import Graph, attribute, copy_model
from tts_compress.onnx.quantize.collect import record_tensors
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.session import Feeds
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.search.measure import Damage, GraphComparison

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
    """Estimates the damage of rounding layers of a graph.

    Args:
        model: The graph in FP32, in the form that is converted.
        layers: A decision for each operator with weights.
        comparison: Measures the gains.
    """

    def __init__(
        self, model: onnx.ModelProto, layers: Sequence[Decision], comparison: GraphComparison
    ) -> None:
        self._graph = Graph(copy_model(model))
        layers = [d for d in layers if d.weight is not None and _takes(self._graph, d)]
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
        """Return the noise of a rounded layer relative to what it returns, a ratio of amplitudes.

        Args:
            decision: What becomes of it.
        """
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
        shape = [-1 if axis == decision.axis else 1 for axis in range(weight.ndim)]
        return np.asarray(codes * scales.reshape(shape), np.float64)
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


def _takes(graph: Graph, decision: Decision) -> bool:
    """Return True for layers whose noise has a formula here."""
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
