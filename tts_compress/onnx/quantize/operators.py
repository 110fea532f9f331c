"""Operators in the forms that decisions state: small weights, static or dynamic integers.

With calibrated ranges every operator to be run in integers stands between `DequantizeLinear` and
`QuantizeLinear`; a runtime that knows the pattern fuses it, another one computes the same rounding
in FP32.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import LEVELS, Affine, Range
from tts_compress.numerics.weights import (
    REMAINDERS,
    Float32,
    least_scales,
    round_bias,
    round_in_parts,
    round_weight,
)
from tts_compress.onnx.graph import CONTRIB, Array, Graph
from tts_compress.onnx.modules import INTEGER_LSTM, LAYERS, PASSING, module_of
from tts_compress.onnx.nodes import copy_attributes, tensors_read
from tts_compress.onnx.precision import duration_outputs, logarithm_outputs, phase_outputs
from tts_compress.onnx.quantize.decisions import Decision
from tts_compress.onnx.weight_codes import (
    WeightCodes,
    WholeCodes,
    store_blocks,
    store_pairs,
)
from tts_compress.recipes.formats import Activations, Weights

_SAFE = frozenset(
    {
        *("Conv", "ConvTranspose", "MatMul"),
        *("Add", "Mul", "Neg", "Sub"),
        *("Erf", "LeakyRelu", "Relu", "Sigmoid", "Tanh"),
        *("Concat", "Expand", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze"),
        *("Transpose", "Unsqueeze"),
    }
)
"""Operators that keep their meaning in half precision. Left out: sums over time and their squares
(cumulative sums of durations, layer norm's variance), exponentials and softmax, comparisons and
rounding, division, ranges, and random numbers, whose half-precision form onnxruntime's CPU
refuses."""


def halve(
    graph: Graph, decisions: Sequence[Decision], lengths: Collection[str] = frozenset()
) -> None:
    """Run modules with `activations = "float16"`, and safe operators between, in float16."""
    halved = {d.output: d.module for d in decisions if d.activations == Activations.FLOAT16}
    if not halved:
        return
    components = {module.split(".")[0] for module in halved.values()}
    phases = phase_outputs(graph)
    exact = duration_outputs(graph.finish(), lengths) | phases | logarithm_outputs(graph)
    # Only the phase part of a module such as an STFT must stay in FP32.
    kept = {d.module for d in decisions if d.output not in phases.union(halved)}
    region = [
        node
        for node in graph.nodes
        if node.op_type in _SAFE
        and exact.isdisjoint(node.output)
        and (module := module_of(node, graph.initializers.keys())).split(".")[0] in components
        and (module not in kept or node.output[0] in halved)
        and graph.types.get(node.output[0]) == TensorProto.FLOAT
        and (node.op_type in LAYERS or not any(_vanishes(graph, name) for name in node.input))
    ]
    produced = {name for node in region for name in node.output}
    for node in region:
        for position, name in enumerate(node.input):
            if name not in produced and graph.types.get(name) == TensorProto.FLOAT:
                graph.replace_input(node, position, _narrow(graph, name))
    _widen_border(graph, region)


def _vanishes(graph: Graph, name: str) -> bool:
    """Return True for a constant, such as an epsilon, of which float16 would leave zeros alone."""
    values = graph.value(name) if name in graph.initializers else np.zeros(0)
    # Half of its smallest number is rounded to zero.
    return bool(0 < np.abs(values).max(initial=0) <= 2.0**-25)


def _narrow(graph: Graph, name: str) -> str:
    """Return a tensor in float16: another constant, or a cast."""
    half = f"{name}.float16"
    if name in graph.initializers:
        values = graph.value(name)
        check_half(name, values)
        return graph.share_constant(half, values.astype(np.float16))
    if graph.producer(half) is None:
        graph.insert("Cast", [name], half, to=TensorProto.FLOAT16)
    return half


def _widen_border(graph: Graph, region: list[onnx.NodeProto]) -> None:
    """Give FP32 to every node outside that reads a tensor of the region."""
    inside = {id(node) for node in region}
    outside = [node for node in graph.nodes if id(node) not in inside]
    wide = {name for node in outside for name in tensors_read(node)} | set(graph.outputs)
    for node in region:
        for position, name in enumerate(node.output):
            if name in wide:
                half = f"{name}.float16"
                readers = [node for node in graph.readers(name) if id(node) in inside]
                graph.redirect(name, half, readers)
                graph.rename_output(node, position, half)
                graph.insert("Cast", [half], name, to=TensorProto.FLOAT)


def check_half(name: str, values: Float32) -> None:
    """Refuse a weight that half precision would turn into infinities; a mask may have some."""
    largest = float(np.finfo(np.float16).max)
    if (np.abs(values[np.isfinite(values)]) > largest).any():
        raise QuantizationError(
            f"weight '{name}' has values beyond float16 (±{largest:.0f}); "
            "exclude its module in the recipe"
        )


_STORED = {Weights.FLOAT16: TensorProto.FLOAT16, Weights.BFLOAT16: TensorProto.BFLOAT16}


def separate_weights(graph: Graph, decisions: Sequence[Decision]) -> list[Decision]:
    """Return decisions each of whose weights is stored in one form; others get copies of it.

    Operators that share a weight may have their outputs along different axes of it.
    """
    forms: dict[str, dict[object, int]] = {}
    separate = []
    for decision in decisions:
        form = (decision.axis, decision.weights, decision.activations, decision.group_size)
        names, node = dict[str, str](), graph.producer(decision.output)
        # Half precision is the same along every axis.
        has_form = decision.weight and decision.activations != Activations.FLOAT16
        for tensor in decision.tensors if has_form else ():
            several = forms.setdefault(tensor, {})
            number = several.setdefault(form, len(several))
            copy = f"{tensor}.{number}"
            names[tensor] = graph.share_constant(copy, graph.value(tensor)) if number else tensor
        assert node is not None
        for position, tensor in enumerate(node.input):
            if tensor in names:
                graph.replace_input(node, position, names[tensor])
        separate.append(decision.renamed(names))
    return separate


def store_weights(graph: Graph, decisions: Iterable[Decision], codes: WeightCodes) -> None:
    """Store weights of operators whose activations stay FP32 in the types of their decisions."""
    for decision in decisions:
        if decision.activations != Activations.NONE or decision.weights == Weights.FLOAT32:
            continue
        node = graph.producer(decision.output)
        assert node is not None
        for tensor in decision.tensors:
            if decision.weights in {Weights.INT8, Weights.INT4}:
                wide, _ = wide_weight(graph, tensor, decision, codes, multiplied=False)
            elif decision.weights in {Weights.INT16, Weights.INT12}:
                wide = _added_weight(graph, tensor, decision, codes)
            else:
                wide = _widened_weight(graph, tensor, decision.weights)
            graph.replace_input(node, list(node.input).index(tensor), wide)


def wide_weight(
    graph: Graph,
    weight: str,
    decision: Decision,
    codes: WeightCodes,
    *,
    multiplied: bool,
    least: Array | None = None,
) -> tuple[str, Array]:
    """Store a weight in eight or four bits, once for all operators that share it.

    Returns:
        The tensor that holds it as FP32 at run time, and its scales.
    """
    axis, rows = decision.axis, np.moveaxis(graph.value(weight), decision.axis, 0)
    blocks = codes.blocks(decision.output, rows, least)
    if blocks is None:
        wide = f"{weight}.dequantized"
        rounded, scales = codes.rounded(decision.output, rows, multiplied=multiplied, least=least)
    else:
        wide, scales = f"{weight}.from_int4", blocks.scales
    if graph.producer(wide) is not None:
        return wide, scales
    if blocks is None:
        stored = graph.share_constant(f"{weight}.int8", np.moveaxis(rounded, 0, axis))
    else:
        stored = store_blocks(graph, weight, blocks, rows.shape)
        if axis:
            order = [*range(1, axis + 1), 0, *range(axis + 1, rows.ndim)]
            stored = graph.make("Transpose", [stored], f"{weight}.turned", perm=order)
    steps = graph.share_constants(weight, scale=scales, zero=np.zeros(len(scales), np.int8))
    return graph.insert("DequantizeLinear", [stored, *steps], wide, axis=axis), scales


def remainders(decision: Decision, size: int) -> int:
    """Return the steps of a weight of 16 or 12 bits in a step of 8; pairs of 4 bits are even."""
    return REMAINDERS if decision.weights == Weights.INT12 and size % 2 == 0 else 256


def _added_weight(graph: Graph, weight: str, decision: Decision, codes: WeightCodes) -> str:
    """Store a weight in 16 or 12 bits: codes of 8, and remainders of 8 or 4, added at run time."""
    wide = f"{weight}.added"
    if graph.producer(wide) is not None:
        return wide
    values = graph.value(weight).astype(np.float64)
    levels = remainders(decision, values.size)
    chosen = codes.chosen.get(decision.output)
    if isinstance(chosen, WholeCodes):
        rounded, scales = np.moveaxis(chosen.codes, 0, decision.axis), chosen.scales
    else:
        rounded, scales = round_in_parts(values, decision.axis, levels)
    high = np.floor(rounded / levels)
    low = (rounded - levels * high).astype(np.uint8)
    stored = graph.share_constant(f"{weight}.high", high.astype(np.int8))
    if levels == REMAINDERS:
        remainder = store_pairs(graph, f"{weight}.low", low)
    else:
        remainder = graph.share_constant(f"{weight}.low", low)
    parts = []
    for name, part, step, kind in (
        ("high", stored, levels, np.int8),
        ("low", remainder, 1, np.uint8),
    ):
        factors, zeros = (step * scales).astype(np.float32), np.zeros(len(scales), kind)
        steps = graph.share_constants(f"{weight}.{name}", scale=factors, zero=zeros)
        inputs, axis = [part, *steps], decision.axis
        parts.append(graph.insert("DequantizeLinear", inputs, f"{weight}.{name}.wide", axis=axis))
    return graph.insert("Add", parts, wide)


def _widened_weight(graph: Graph, weight: str, kind: Weights) -> str:
    wide, name = f"{weight}.widened", f"{weight}.{kind}"
    if graph.producer(wide) is None:
        values = graph.value(weight)
        if kind == Weights.FLOAT16:
            check_half(weight, values)
        stored = values.astype(helper.tensor_dtype_to_np_dtype(_STORED[kind]))
        # Bytes as they are: element by element a 16-bit number would take three.
        small = helper.make_tensor(name, _STORED[kind], values.shape, stored.tobytes(), raw=True)
        graph.insert("Cast", [graph.share_constant(name, small)], wide, to=TensorProto.FLOAT)
    return wide


_OPSET_OF_16_BITS = 21
"""Version of the standard operators from which they round to 16 bits; most graphs have an older."""

ROUNDED = ".rounded"
"""Suffix of a tensor as an integer kernel reads or returns it; without it the tensor is real."""

_BOUNDED = {"Sigmoid": (0.0, 1 - 2.0**-16), "Tanh": (-1.0, 1 - 2.0**-15)}
"""Ranges of what operators return, for which Qualcomm's NPU has one code of 16 bits each."""

_HEADROOM = 2.0
"""Factor of observed ranges for 16 bits: it costs a bit, which is not heard. Without it a sentence
of a small voice (hfc) was cut off, and had 19 dB instead of 29."""


def observed_tensors(model: onnx.ModelProto, decisions: Sequence[Decision]) -> list[str]:
    """Return the activations whose ranges static quantization needs, in graph order."""
    chosen = _static(decisions)
    weights = {tensor.name for tensor in model.graph.initializer}
    observed: dict[str, None] = {}
    for node in model.graph.node:
        if node.output[0] in chosen:
            tensors = _activation_inputs(node, chosen[node.output[0]])
            tensors += [] if node.op_type in PASSING else node.output
            observed |= dict.fromkeys(name for name in tensors if name not in weights)
    return list(observed)


def quantize_statically(
    graph: Graph,
    decisions: Sequence[Decision],
    ranges: Mapping[str, Range],
    codes: WeightCodes,
    levels: int = LEVELS,
) -> None:
    """Put quantize-dequantize pairs around the operators that static decisions name."""
    chosen, narrow = _static(decisions), levels == LEVELS
    nodes = [node for node in graph.nodes if node.output[0] in chosen]
    makers = {name: node for node in nodes for name in node.output}
    limits = dict(ranges) if narrow else _wide_ranges(graph, nodes, chosen, ranges)
    code_of = {t: Affine.spanning(*r, single=True, levels=levels) for t, r in limits.items()}
    for node in nodes:
        decision, source = chosen[node.output[0]], node.input[0]
        for position, name in enumerate(_activation_inputs(node, decision)):
            if name in code_of and name not in makers:
                if graph.producer(f"{name}{ROUNDED}") is None:
                    _add_pair(graph, name, code_of[name])
                graph.replace_input(node, position, f"{name}{ROUNDED}")
        if decision.weight is not None:
            step = code_of[node.output[0]].scale
            _convert_weight(graph, node, decision, code_of[source], codes, step)
    for output, node in makers.items():
        if output not in graph.outputs:
            graph.redirect(output, f"{output}{ROUNDED}")
            _add_pair(graph, output, code_of[output])
        elif not narrow:  # in eight bits the caller gets FP32
            real = graph.fresh(f"{output}.real")
            graph.rename_output(node, list(node.output).index(output), real)
            _add_pair(graph, real, code_of[output], output)


def _wide_ranges(
    graph: Graph,
    nodes: Iterable[onnx.NodeProto],
    chosen: Mapping[str, Decision],
    ranges: Mapping[str, Range],
) -> dict[str, Range]:
    """Return the ranges of 16 bits of all that operators read and make, constants among it."""
    wide = {name: (_HEADROOM * low, _HEADROOM * high) for name, (low, high) in ranges.items()}
    for node in nodes:
        for name in _activation_inputs(node, chosen[node.output[0]]):
            if name in graph.initializers:
                values = graph.value(name)
                wide[name] = float(values.min()), float(values.max())
        if node.op_type in _BOUNDED:
            wide[node.output[0]] = _BOUNDED[node.op_type]
        elif node.op_type in PASSING:
            if node.op_type == "Pad" and (filled := graph.scalar("".join(node.input[2:3]))):
                low, high = wide[node.input[0]]
                wide[node.input[0]] = min(low, filled), max(high, filled)
            wide |= dict.fromkeys(node.output, wide[node.input[0]])
    return wide


def _static(decisions: Sequence[Decision]) -> dict[str, Decision]:
    return {d.output: d for d in decisions if d.activations == Activations.STATIC}


def _activation_inputs(node: onnx.NodeProto, decision: Decision) -> list[str]:
    """Return the activations: all inputs, or the first one if others are a weight or places."""
    is_single = decision.weight is not None or node.op_type in PASSING
    return [node.input[0]] if is_single else list(node.input)


def _convert_weight(
    graph: Graph,
    node: onnx.NodeProto,
    decision: Decision,
    source: Affine,
    codes: WeightCodes,
    step: float,
) -> None:
    """Store weight and bias as integers; the bias in the scale of the accumulated products."""
    # Kernels for activations in 8 bits may sum two products in 16.
    narrow, weight = source.levels == LEVELS, decision.tensor
    real = graph.value(node.input[2]) if len(node.input) > 2 else None
    least = None
    if real is not None and len(graph.readers(weight)) == 1:  # who shares it has another bias
        least = least_scales(real, source.scale)
    wide, weight_scales = wide_weight(
        graph, weight, decision, codes, multiplied=narrow, least=least
    )
    graph.replace_input(node, 1, wide)
    if real is None:
        return
    scales = np.float32(source.scale) * weight_scales
    bias = round_bias(real, scales.astype(np.float64))
    if np.abs(real - bias * scales.astype(np.float64)).max() > step:
        raise QuantizationError(
            f"a bias of '{node.name}' has no code of 32 bits in the steps of its products, for its "
            "channel has hardly any weight, which others share; exclude its module in the recipe"
        )
    name = f"{node.output[0]}.rounded_bias"
    zeros = np.zeros(len(bias), np.int32)
    stored = graph.share_constants(name, int32=bias, scale=scales, zero=zeros)
    graph.replace_input(node, 2, graph.insert("DequantizeLinear", stored, name, axis=0))


def _add_pair(graph: Graph, name: str, code: Affine, rounded: str = "") -> None:
    """Round a tensor; without a name for the result it has that of the tensor and `ROUNDED`."""
    narrow, scale = code.levels == LEVELS, np.array(code.scale, np.float32)
    zero = np.array(code.zero, np.uint8 if narrow else np.uint16)
    constants = graph.share_constants(name, activation_scale=scale, activation_zero=zero)
    domain = {}
    if not narrow and graph.opset() < _OPSET_OF_16_BITS:
        graph.require_opset(CONTRIB, 1)
        domain = {"domain": CONTRIB}
    stored = graph.insert("QuantizeLinear", [name, *constants], f"{name}.quantized", **domain)
    graph.insert("DequantizeLinear", [stored, *constants], rounded or f"{name}{ROUNDED}", **domain)


def quantize_dynamically(graph: Graph, decisions: Iterable[Decision], codes: WeightCodes) -> None:
    """Replace operators by their integer forms.

    onnxruntime's kernels want opposite weight types: `ConvInteger` is four times faster with
    unsigned weights, `MatMulInteger` two and a half times with signed ones. Products of two
    unsigned bytes are added in 32 bits everywhere, so only the signed ones are kept from overflow.
    """
    chosen = {d.output: d for d in decisions if d.activations == Activations.DYNAMIC}
    for node in [node for node in graph.nodes if node.output[0] in chosen]:
        decision = chosen[node.output[0]]
        graph.remove(node)
        _FORMS[decision.operator](graph, node, decision, codes)


def _convolution(
    graph: Graph, node: onnx.NodeProto, decision: Decision, codes: WeightCodes
) -> None:
    weight, output = graph.value(decision.tensor), node.output[0]
    stored, scales = _unsigned_weight(graph, decision, codes)
    middle = graph.share_constant("tts_compress.uint8_middle", np.array(128, np.uint8))
    activation, scale, zero = _rounded_input(graph, node.input[0])
    inputs, attributes = [activation, stored, zero, middle], copy_attributes(node)
    accumulated = graph.insert("ConvInteger", inputs, f"{output}.int32", **attributes)
    per_channel = [1, -1] + [1] * (weight.ndim - 2)
    weight_scale = graph.share_constant(f"{decision.tensor}.scale", scales.reshape(per_channel))
    bias = None
    if len(node.input) > 2:
        values = graph.value(node.input[2]).reshape(per_channel)
        bias = graph.share_constant(f"{output}.channel_bias", values)
    _scaled(graph, accumulated, [scale, weight_scale], bias, output)


def _unsigned_weight(graph: Graph, decision: Decision, codes: WeightCodes) -> tuple[str, Array]:
    """Store a convolution's weight, unsigned with a zero point of 128 for the faster kernel."""
    weight, name = graph.value(decision.tensor), f"{decision.tensor}.uint8"
    blocks = codes.blocks(decision.output, weight)
    if blocks is None:
        rounded, scales = codes.rounded(decision.output, weight, multiplied=False)
        unsigned = (rounded.astype(np.int16) + 128).astype(np.uint8)
        return graph.share_constant(name, unsigned), scales
    if graph.producer(name) is None:
        signed = store_blocks(graph, decision.tensor, blocks, weight.shape)
        wide = graph.insert("Cast", [signed], f"{name}.signed", to=TensorProto.INT32)
        middle = graph.share_constant("tts_compress.int32_middle", np.array(128, np.int32))
        shifted = graph.insert("Add", [wide, middle], f"{name}.shifted")
        graph.insert("Cast", [shifted], name, to=TensorProto.UINT8)
    return name, blocks.scales


def _product(graph: Graph, node: onnx.NodeProto, decision: Decision, codes: WeightCodes) -> None:
    weight, name = graph.value(decision.tensor), f"{decision.tensor}.int8"
    blocks = codes.blocks(decision.output, weight.T)
    if blocks is None:
        rounded, scales = codes.rounded(decision.output, weight.T, multiplied=True)
        stored = graph.share_constant(name, np.ascontiguousarray(rounded.T))
    else:
        stored, scales = name, blocks.scales
        if graph.producer(name) is None:
            turned = store_blocks(graph, decision.tensor, blocks, weight.T.shape)
            graph.insert("Transpose", [turned], name, perm=[1, 0])
    weight_scale = graph.share_constant(f"{decision.tensor}.scale", scales)
    (activation, scale, zero), output = _rounded_input(graph, node.input[0]), node.output[0]
    accumulated = graph.insert("MatMulInteger", [activation, stored, zero], f"{output}.int32")
    _scaled(graph, accumulated, [scale, weight_scale], None, output)


def _recurrence(graph: Graph, node: onnx.NodeProto, decision: Decision, _: WeightCodes) -> None:
    """Write an LSTM whose products are integer; states and gates stay real.

    The operator takes weights (directions, inputs, 4 · units), as its kernel multiplies them, and a
    scale for each direction, gate and unit; everything else as the LSTM does.
    """
    inputs = [*node.input, *[""] * (8 - len(node.input))]
    rounded = []
    for position, tensor in enumerate(decision.tensors, start=1):
        parts = [round_weight(part, 0, multiplied=True) for part in graph.value(tensor)]
        codes = np.stack([codes.T for codes, _ in parts])
        scales = np.stack([scales for _, scales in parts])
        inputs[position] = graph.share_constant(f"{tensor}.int8", codes)
        zeros = np.zeros(scales.shape, np.int8)
        rounded += graph.share_constants(tensor, scale=scales, zero=zeros)
    graph.require_opset(CONTRIB, 1)
    attributes = {name: value for name, value in copy_attributes(node).items() if name != "layout"}
    graph.add(INTEGER_LSTM, inputs + rounded, node.output, node.name, domain=CONTRIB, **attributes)


def _rounded_input(graph: Graph, tensor: str) -> tuple[str, str, str]:
    """Return an activation as uint8 with its scale and zero point; shared by all its readers."""
    names = (f"{tensor}.uint8", f"{tensor}.uint8_scale", f"{tensor}.uint8_zero")
    if graph.producer(names[0]) is None:
        graph.add("DynamicQuantizeLinear", [tensor], names)
    return names


def _scaled(
    graph: Graph, accumulated: str, scales: list[str], bias: str | None, output: str
) -> None:
    """Turn 32-bit sums back into the FP32 tensor that readers expect."""
    wide = graph.insert("Cast", [accumulated], f"{output}.float", to=TensorProto.FLOAT)
    scale = graph.insert("Mul", scales, f"{output}.scale")
    scaled = graph.insert("Mul", [wide, scale], output if bias is None else f"{output}.scaled")
    if bias is not None:
        graph.insert("Add", [scaled, bias], output)


_FORMS = {"Conv": _convolution, "MatMul": _product, "LSTM": _recurrence}
