"""Conversion of an FP32 graph to a compressed one, by a recipe."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import onnx
from onnx import TensorProto

from tts_compress.artifact import LayerRecord
from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import LEVELS, WIDE_LEVELS, ChannelCodes, Range, choose_range
from tts_compress.onnx import integer
from tts_compress.onnx.graph import Graph, copy_model, fence_bodies
from tts_compress.onnx.integer.by_channel import emit_by_channel, tensors_by_channel
from tts_compress.onnx.modules import (
    INTEGER_LAYERS,
    LAYERS,
    OPERATORS,
    WeightFinder,
    undecided_layers,
)
from tts_compress.onnx.nodes import nested_nodes
from tts_compress.onnx.noise import feed_noise
from tts_compress.onnx.quantize import operators
from tts_compress.onnx.quantize.blocks import add_height
from tts_compress.onnx.quantize.collect import Calls, Extremes, collect
from tts_compress.onnx.quantize.decisions import (
    Decision,
    channel_outputs,
    count_decisions,
    decide,
    follow_weights,
    static_outputs,
)
from tts_compress.onnx.quantize.equalize import equalize_channels
from tts_compress.onnx.quantize.gptq import Moments, choose_codes, is_asked
from tts_compress.onnx.quantize.operators import halve, quantize_dynamically, store_weights
from tts_compress.onnx.quantize.prepare import optimize, prepare, widen_halves
from tts_compress.onnx.receptive import observe_shapes, walk
from tts_compress.onnx.rewrite import drop_neutral, rewrite
from tts_compress.onnx.rewrite.convolutions import split_gemms
from tts_compress.onnx.rewrite.plain_forms import split_fused
from tts_compress.onnx.session import Feeds
from tts_compress.onnx.weight_codes import Chosen, WeightCodes, shift_biases
from tts_compress.progress import Progress, counted, report_status
from tts_compress.recipes.formats import BY_CHANNEL, Activations, Weights
from tts_compress.recipes.recipe import Calibration, Format, Recipe

_TRACE = "stack_trace"
"""End of the key under which torch's exporter keeps lines of source, half of an artifact."""

_SHARED_BYTES = 256
"""Below, constants that are equal may stay apart."""

_FUSED = {"QLinearConv", "QLinearMatMul"}
_REAL = {"Conv", "FusedConv", "MatMul", "FusedMatMul"}

_HEADROOM = 1.5
"""Factor of a channel's observed range. Other texts, and other languages, exceed what calibration
saw: what is clipped is heard as a burst or a hole, half a bit of resolution hardly at all."""

STAGE = "compress"
"""All of the work on a graph, in which calibration is the only part that can be counted."""

_STORED: dict[int, str] = {
    TensorProto.INT4: "int4",
    TensorProto.INT8: "int8",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """An FP32 graph and everything that determines its compressed form."""

    graph: onnx.ModelProto
    """Rewritten for the form it will have, and equal to the original up to rounding in FP32."""

    decisions: tuple[Decision, ...]
    """One per operator with weights, and per other operator that a rule names."""

    ranges: Mapping[str, Range]
    """Lowest and highest value of every tensor that is rounded with a calibrated range."""

    form: Format = "qdq"
    """Form in which the finished graph expresses integer arithmetic."""

    lengths: frozenset[str] = frozenset()
    """Outputs of the graph that decide durations."""

    by_channel: Mapping[str, ChannelCodes] = field(default_factory=dict)
    """Codes of the tensors that are rounded by channel."""

    chosen: Mapping[str, Chosen] = field(default_factory=dict)
    """Weights whose codes an algorithm chose, by the operator's output; others are rounded."""

    @property
    def codes(self) -> WeightCodes:
        """How weights are rounded."""
        sizes = {d.output: d.group_size for d in self.decisions if d.weights == Weights.INT4}
        return WeightCodes(sizes=sizes, chosen=self.chosen)

    @property
    def static(self) -> frozenset[str]:
        """Outputs of the operators that compute in calibrated integers."""
        return static_outputs(self.decisions)

    @property
    def layers(self) -> tuple[LayerRecord, ...]:
        """The manifest's records of the decisions, and of the layers that nothing decides about."""
        return (*(d.record() for d in self.decisions), *undecided_layers(self.graph.graph))

    @property
    def counts(self) -> dict[str, int]:
        """Operators by decision, which `convert` compares with the finished graph, and others."""
        others = Counter(
            f"{x.operator} {x.weights}/none" for x in undecided_layers(self.graph.graph)
        )
        return dict(sorted((count_decisions(self.decisions, parts=False) + others).items()))


_CodeKey: TypeAlias = tuple[str, str, int, str]
_Content: TypeAlias = tuple[int, tuple[int, ...], bytes]


@dataclass(frozen=True, slots=True)
class Observed:
    """A graph in the form that is converted, and what was observed of it so far.

    Recipes share it: what one of them needs is there for the next.
    """

    graph: Graph
    progress: Progress
    ranges: dict[str, Range] = field(default_factory=dict)
    by_channel: dict[str, ChannelCodes] = field(default_factory=dict)
    codes: dict[_CodeKey, Chosen | None] = field(default_factory=dict)
    """Weights whose codes GPTQ chose, by operator, bits, block and arithmetic."""

    moments: Moments = field(default_factory=dict)
    """Those that GPTQ chose by."""

    def find_ranges(
        self,
        tensors: Sequence[str],
        decisions: Sequence[Decision],
        settings: Calibration,
        calls: Calls,
    ) -> dict[str, Range]:
        """Return the range of each tensor, and find the codes of those rounded by channel.

        What is missing is observed in one pass.

        Args:
            tensors: Those with one range.
            decisions: What is rounded by channel is known by them.
            settings: The recipe's table.
            calls: Inputs of the graph with fed noise.
        """
        channels = tensors_by_channel(self.graph, channel_outputs(decisions))
        new = [name for name in tensors if name not in self.ranges]
        new_channels = [name for name in channels if name not in self.by_channel]
        if new or new_channels:
            reported = counted(calls.feeds(), self.progress, "calibrate", calls.total)
            seen, extremes = collect(self.graph.model, new, new_channels, reported)
            self.ranges.update({name: choose_range(seen[name], settings) for name in new})
            self.by_channel.update({name: _codes(pairs) for name, pairs in extremes.items()})
        return {name: self.ranges[name] for name in tensors}

    def find_codes(self, decisions: Sequence[Decision], calls: Calls) -> dict[str, Chosen]:
        """Return the codes that GPTQ chooses for decisions, by the operator's output."""
        asked = {_code_key(d): d for d in decisions if is_asked(d)}
        if missing := {key: d for key, d in asked.items() if key not in self.codes}:
            report_status(self.progress, STAGE, "choose codes")
            several = list(missing.values())
            chosen = choose_codes(self.graph, several, calls.feeds(), self.by_channel, self.moments)
            self.codes.update(zip(missing, chosen, strict=True))
        pairs = [(d.output, self.codes[key]) for key, d in asked.items()]
        return {output: codes for output, codes in pairs if codes is not None}


def _code_key(decision: Decision) -> _CodeKey:
    # Whatever becomes of the result.
    arithmetic = "channels" if decision.activations in BY_CHANNEL else decision.activations
    return decision.output, decision.weights, decision.group_size, arithmetic


def prepare_conversion(
    exported: Callable[[], onnx.ModelProto],
    recipe: Recipe,
    calls: Calls | None,
    *,
    batch_one: bool,
    lengths: frozenset[str] = frozenset(),
    progress: Progress,
) -> Conversion:
    """Decide what happens to each operator of a graph, and calibrate it.

    Args:
        exported: Returns a graph in FP32 that nobody else holds, so that its memory is freed.
        recipe: Decides by module.
        calls: Inputs to observe activations on; None where the recipe needs none.
        batch_one: The graph is a voice's, which is called with one text at a time.
        lengths: Outputs of the graph that decide durations.
        progress: Is advanced with every call. `STAGE` begins here; the caller ends it when the
            graph is converted and compared.
    """
    progress.advance(STAGE, 0, 1)
    graph = convertible_graph(exported(), recipe.format, batch_one=batch_one)
    model = graph.model
    sound = frozenset[str]()
    if recipe.format == "qdq16" and calls is not None:
        sound = _local_tensors(graph, calls.feeds())
    decisions = decide(model, recipe, lengths, sound=sound)
    observed = Observed(graph, progress)
    ranges: dict[str, Range] = {}
    chosen: dict[str, Chosen] = {}
    if recipe.calibration is not None:
        assert calls is not None
        make_residuals_float(graph, decisions, recipe)
        if recipe.calibration.equalize:
            report_status(progress, STAGE, "equalize channels")
            decisions = equalize_decided(graph, decisions, recipe, calls)
        tensors = observed_tensors(model, decisions, recipe.format)
        report_status(progress, STAGE, "calibrate")
        ranges = observed.find_ranges(tensors, decisions, recipe.calibration, calls)
        chosen = observed.find_codes([d for d in decisions if d.weights == Weights.INT4], calls)
    report_status(progress, STAGE, "convert and compare")
    return Conversion(
        graph=model,
        decisions=tuple(decisions),
        ranges=ranges,
        form=recipe.format,
        lengths=lengths,
        by_channel=observed.by_channel,
        chosen=chosen,
    )


def _local_tensors(graph: Graph, calls: Iterator[Feeds]) -> frozenset[str]:
    """Return the tensors in FP32 that outputs are made of, as far as that is local in time.

    In `qdq16` all of them get codes, for NPUs compute what has none in FP16, or not at all.

    Args:
        graph: The graph.
        calls: Its inputs, with fed noise; without two of different sizes nothing is known.
    """
    first: Feeds = next(calls, {})
    others = (c for c in calls if any(c[name].shape != a.shape for name, a in first.items()))
    if (other := next(others, None)) is None:
        return frozenset()
    model = feed_noise(graph.model)
    local = walk(Graph(model), observe_shapes(model, [first, other], "the graph"), graph.outputs)
    names = {name for node in local.nodes for name in node.output}
    return frozenset(name for name in names if graph.types.get(name) == TensorProto.FLOAT)


def make_residuals_float(graph: Graph, decisions: Sequence[Decision], recipe: Recipe) -> None:
    """Take the sums off the codes that a recipe wants in real numbers."""
    if recipe.float_residuals and recipe.format == "qoperator":
        integer.make_residuals_float(graph, static_outputs(decisions))


def equalize_decided(
    graph: Graph, decisions: Sequence[Decision], recipe: Recipe, calls: Calls
) -> list[Decision]:
    """Equalize the channels of what decisions put on codes; return them for the graph as it is."""
    if coded := observed_tensors(graph.model, decisions, recipe.format):
        equalize_channels(graph, coded, calls.feeds())
    return follow_weights(graph, decisions)


def _codes(extremes: Extremes) -> ChannelCodes:
    """Return the codes of a tensor with a range for each channel."""
    low, high = extremes[:, 0].min(axis=0), extremes[:, 1].max(axis=0)
    return ChannelCodes.spanning(_HEADROOM * low, _HEADROOM * high)


def with_chosen_codes(conversion: Conversion, calls: Calls, progress: Progress) -> Conversion:
    """Return a conversion whose codes of 8 and 12 bits keep what operators return in calls.

    Where weights will be trained they are rounded to nearest instead.
    """
    graph, channels = Graph(conversion.graph), dict(conversion.by_channel)
    asked = [d for d in conversion.decisions if d.weights != Weights.INT4]
    if conversion.form == "qdq16":  # no kernel sums products in 16 bits, or makes phases
        static, none = conversion.static, Activations.NONE
        asked = [replace(d, activations=none) if d.output in static else d for d in asked]
    chosen = Observed(graph, progress, by_channel=channels).find_codes(asked, calls)
    report_status(progress, STAGE, "convert and compare")
    return replace(conversion, chosen={**conversion.chosen, **chosen})


def observed_tensors(
    model: onnx.ModelProto, decisions: Sequence[Decision], form: Format
) -> list[str]:
    """Return the tensors whose ranges decisions need, in graph order."""
    if form == "qoperator":
        return integer.observed_tensors(model, static_outputs(decisions))
    return operators.observed_tensors(model, decisions)


def _refuse_codes(model: onnx.ModelProto) -> None:
    """Refuse a graph whose weights are integers already."""
    counts = count_operators(model)
    coded = [f"{n} {label}" for label, n in sorted(counts.items()) if " float" not in label]
    if coded:
        raise QuantizationError(
            f"the graph is compressed already: {counts.total()} of its layers hold weights, among "
            f"them {', '.join(coded)}; compress the FP32 original"
        )


def convertible_graph(model: onnx.ModelProto, form: Format, *, batch_one: bool) -> Graph:
    """Return an exported graph in the form that is converted: in FP32, equal up to rounding."""
    graph = Graph(prepare(widen_halves(model)))
    split_fused(graph)
    split_gemms(graph)
    if form == "qdq16" and batch_one:
        drop_neutral(graph)  # masks of an utterance's length would be read throughout
    graph.infer_types()  # it drops what nothing reads, of which nothing is decided
    _refuse_codes(graph.model)
    if form == "qoperator":
        rewrite(graph, batch_one=batch_one)
    return graph


def convert(conversion: Conversion) -> onnx.ModelProto:
    """Return the converted copy of a prepared graph."""
    graph = Graph(copy_model(conversion.graph))
    decisions = operators.separate_weights(graph, conversion.decisions)
    shift_biases(graph, conversion.chosen)
    if conversion.form == "qoperator":
        integer.emit_integer(graph, conversion.static, conversion.ranges, conversion.codes)
        rounded = channel_outputs(decisions)
        emit_by_channel(graph, rounded, conversion.by_channel, conversion.codes)
        integer.add_in_pairs(graph)
    else:
        levels = WIDE_LEVELS if conversion.form == "qdq16" else LEVELS
        ranges, codes = conversion.ranges, conversion.codes
        operators.quantize_statically(graph, decisions, ranges, codes, levels)
    quantize_dynamically(graph, decisions, conversion.codes)
    halve(graph, decisions, conversion.lengths)
    store_weights(graph, decisions, conversion.codes)
    add_height(graph, conversion.graph, conversion.decisions, conversion.lengths)
    _share_weights(graph)
    fence_bodies(graph)
    finished = graph.finish()
    for node in nested_nodes(finished.graph.node):
        kept = [entry for entry in node.metadata_props if not entry.key.endswith(_TRACE)]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    promised, held = count_decisions(decisions), count_operators(finished)
    if promised != held:
        raise QuantizationError(
            f"the finished graph holds {dict(held)}, but the recipe promises {dict(promised)}; "
            "please report this voice"
        )
    if conversion.form == "qdq":
        _check_fused(finished, decisions)
    return finished


def _share_weights(graph: Graph) -> None:
    """Store weights once that are equal, or each other's transposes.

    Several layers may share a weight, and a language model's last product may multiply its table of
    tokens.
    """
    first: dict[_Content, str] = {}
    shapes = {tuple(tensor.dims) for tensor in graph.initializers.values()}
    for name, tensor in list(graph.initializers.items()):
        if len(tensor.raw_data) < _SHARED_BYTES:
            continue
        if (stored := first.setdefault(_content(tensor), name)) != name:
            graph.redirect(name, stored)
        elif len(tensor.dims) == 2 and tuple(tensor.dims)[::-1] in shapes:
            stored = first.get(_content(tensor, turned=True), name)
            if stored != name:
                turned = graph.make("Transpose", [stored], f"{name}.turned", perm=[1, 0])
                graph.redirect(name, turned)


def _content(tensor: TensorProto, *, turned: bool = False) -> _Content:
    """Return what weights, or their transposes, have in common if they are equal."""
    shape, raw = tuple(tensor.dims), tensor.raw_data
    if turned:
        words = np.frombuffer(raw, f"V{len(raw) // math.prod(shape)}")
        shape, raw = shape[::-1], words.reshape(shape).T.tobytes()
    return tensor.data_type, shape, hashlib.sha256(raw).digest()


def _check_fused(graph: onnx.ModelProto, decisions: Sequence[Decision]) -> None:
    """Refuse a graph whose promised integer operators the runtime would compute in FP32."""
    static_ones = [d for d in decisions if d.activations == Activations.STATIC]
    promised = sum(decision.weight is not None for decision in static_ones)
    if not promised or (fused := count_fused(graph)) == promised:
        return
    outputs = {decision.output for decision in static_ones}
    asked = {node.name for node in graph.graph.node if outputs.intersection(node.output)}
    nodes = optimize(graph, fuse=True).graph.node
    real = [n.name for n in nodes if n.op_type in _REAL and n.name in asked]
    if fused > promised and not real:
        return  # it rounds the weights of layers between codes itself, too
    names = ", ".join(f"'{name}'" for name in real)
    raise QuantizationError(
        f"the recipe promises {promised} integer operators, but onnxruntime runs only {fused} of "
        f"them in integers and {names or 'others'} in FP32; exclude their modules"
    )


def count_operators(model: onnx.ModelProto) -> Counter[str]:
    """Return the number of operators with weights by storage and arithmetic.

    Keys read like a decision's label: `Conv int8/static` is a convolution with INT8 weights and
    calibrated INT8 activations.
    """
    weights = WeightFinder(model.graph)
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    rounding = (node for node in model.graph.node if node.op_type == "QuantizeLinear")
    rounded = {node.input[0]: types.get(node.input[-1], TensorProto.UINT8) for node in rounding}
    counts: Counter[str] = Counter()
    for node in model.graph.node:
        weight = weights.find(node)
        if weight is None:
            continue
        if form := OPERATORS[node.op_type].stands_for:
            operator, arithmetic = form
            stored = _STORED.get(weight.data_type, "int8")  # or unsigned
            counts[f"{operator} {stored}/{arithmetic}"] += 1
        elif weight.data_type in _STORED:
            stored = _STORED[weight.data_type]
            arithmetic = _arithmetic(node, stored, weights, rounded.get(node.output[0]))
            kind = node.op_type
            if arithmetic == "static" and kind == "ConvTranspose":
                kind = "Conv"  # as decisions are counted
            counts[f"{kind} {stored}/{arithmetic}"] += 1
    return counts


def count_arithmetic(optimized: onnx.ModelProto) -> dict[str, int]:
    """Return the number of layers by the arithmetic of their kernels: integers, float16 or FP32.

    Those of branches and loop bodies count: the last stages of a voice may be in a loop.

    Args:
        optimized: A graph as onnxruntime optimized it, where casts stand before what it has no
            kernel for.
    """
    weights, counts = WeightFinder(optimized.graph), Counter[str]()
    for node in nested_nodes(optimized.graph.node):
        weight = weights.find(node) if node.op_type in LAYERS else None
        if weight is not None:
            halves = weight.data_type == TensorProto.FLOAT16 and not weights.is_widened(node)
            real = "float16" if halves else "FP32"
            counts["integers" if node.op_type in INTEGER_LAYERS else real] += 1
    return dict(counts)


def count_fused(model: onnx.ModelProto) -> int:
    """Return the number of convolutions and products onnxruntime runs in calibrated integers.

    The portable form only asks for integers; a pattern the runtime does not recognise is computed
    in FP32, slower than before. So the runtime's own optimised graph is counted.

    Args:
        model: A finished graph in the portable form.
    """
    optimized = optimize(model, fuse=True)
    return sum(node.op_type in _FUSED for node in optimized.graph.node)


def _arithmetic(node: onnx.NodeProto, stored: str, weights: WeightFinder, codes: int | None) -> str:
    """Return the arithmetic of a layer whose result is rounded to codes of a type, or is not."""
    if stored == "float16" and node.op_type != "Gather":
        return "none" if weights.is_widened(node) else "float16"
    source = weights.producer(node.input[0])
    if stored not in {"int8", "int4"} or source is None or source.op_type != "DequantizeLinear":
        return "none"
    # The portable form rounds what flows in and what flows out. A neighbour of a region on codes
    # reads what was dequantized too, but nobody quantized it just before.
    pair = weights.producer(source.input[0])
    rounded = codes is not None and pair is not None and pair.op_type == "QuantizeLinear"
    # In 16 bits upsampling has codes; otherwise at most its neighbours and its weights have some.
    is_wide = codes == TensorProto.UINT16 and all(map(weights.producer, node.input))
    kinds = {"Conv", "MatMul"} | ({"ConvTranspose"} if is_wide else set())
    return "static" if rounded and node.op_type in kinds else "none"
