"""Decisions of a recipe for the operators of a graph."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from tts_compress.artifact import LayerRecord
from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer.emitter import integer_form
from tts_compress.onnx.modules import (
    CONVERTIBLE,
    NO_TECHNIQUE,
    OPERATORS,
    PASSING,
    RECURRENT,
    SMALLEST_TABLE,
    WeightFinder,
    is_small_cut,
    module_of,
)
from tts_compress.onnx.nodes import attribute
from tts_compress.onnx.precision import (
    duration_outputs,
    length_outputs,
    logarithm_outputs,
    phase_outputs,
)
from tts_compress.onnx.weight_codes import has_even_blocks
from tts_compress.recipes.formats import BY_CHANNEL, CALIBRATED, Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Format, Recipe, Rule

_SUPPORTED: dict[Activations, tuple[str, ...]] = {
    Activations.NONE: CONVERTIBLE,
    Activations.FLOAT16: ("Conv", "ConvTranspose", "MatMul"),
    Activations.DYNAMIC: ("Conv", "MatMul", "LSTM"),
    Activations.STATIC: ("Conv", "MatMul"),
    **dict.fromkeys(BY_CHANNEL, ("Conv", "ConvTranspose")),
}
"""Operators each kind of arithmetic has kernels for."""

_SUPPORTED_FUSED = ("Conv", "ConvTranspose")
"""The same for calibrated integers in onnxruntime's own operators: no kernel transposes a
convolution in integers, but it can be written as a plain one."""

_ELEMENTWISE = ("LeakyRelu", "Relu", "Add")
"""Without weights; static quantization keeps them in integers where a recipe names them."""

_ACTIVATIONS = frozenset({"LeakyRelu", "Relu"})

_IN_16_BITS = PASSING | {
    *("Abs", "Add", "Concat", "Cos", "Div", "Elu", "LeakyRelu", "Max", "Min", "Mul", "Relu"),
    *("Sigmoid", "Sin", "Sub", "Tanh"),
}
"""Operators without weights that Qualcomm's NPU computes on codes of 16 bits, 70 dB or more from
FP32 in its simulator. It lacks `Erf`; `Pow`, `Softplus`, `Sqrt` and products of two computed
tensors are worse there, and behind exponentials most codes are for the loudest."""

_CODES = Rule(match="*", weights=Weights.INT8, activations=Activations.STATIC)

_NARROWEST, _MEASURED_KERNEL = 16, 3
"""Channels and kernel from which on integers are faster in onnxruntime's own operators: two
residual blocks of 16 channels take 0.58 of FP32's time, of 8 channels 1.09 (x86 with VNNI, one
thread)."""

_NARROWEST_LSTM = 64
"""Units of an LSTM from which on integers are faster: they take 1.12 of FP32's time with 32 units,
0.91 with 64, 0.59 with 128 (20 steps) and 0.23 with 256 in both directions (200 steps; x86 with
VNNI, one thread)."""

_TORCH_ONLY = {Weights.FLOAT8, Algorithm.INC_RTN, Algorithm.INC_GPTQ}

SMALL_TABLE = f"a table of fewer than {SMALLEST_TABLE:,} weights is not worth it"
"""Reason that is no cause for a warning."""

_LOGARITHM = "it makes a spectrum whose logarithm is taken"

_FINE = {Weights.FLOAT32, Weights.FLOAT16, Weights.INT16}
"""Formats in which a weight of a Fourier transform lets little of one band through to others."""

_GROUPED = 16
"""Integer convolutions that make no more channels than this lay several frames side by side, with
their weights repeated; those stay in eight bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(LayerRecord):
    """The format of one operator, and how it is reached."""

    output: str
    """The operator's first output: the only name of it that is always unique."""

    weights: Weights
    activations: Activations
    weight: str | None
    """Name of its weight tensor; None where it has none."""

    axis: int
    """Axis of the weight's output channels."""

    recurrent: str | None = None
    """Name of a recurrent operator's second weight."""

    group_size: int = 0
    """Weights that share a factor, where they have four bits."""

    algorithm: Algorithm = Algorithm.RTN
    """Algorithm that chooses four-bit codes; GPTQ chooses eight-bit codes wherever the recipe
    calibrates."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the weights of an operator that has some."""
        return (self.tensor, self.recurrent) if self.recurrent else (self.tensor,)

    @property
    def tensor(self) -> str:
        """Name of the weight of an operator that has one."""
        assert self.weight is not None
        return self.weight

    def renamed(self, names: Mapping[str, str]) -> "Decision":
        """Return the decision for weights of other names."""
        weight, recurrent = (names.get(name or "", name) for name in (self.weight, self.recurrent))
        return replace(self, weight=weight, recurrent=recurrent)

    @property
    def label(self) -> str:
        """Name under which the manifest counts it, such as `Conv int8/static`."""
        return f"{self.operator} {self.weights}/{self.activations}"


def decide(
    model: onnx.ModelProto,
    recipe: Recipe,
    lengths: Collection[str] = frozenset(),
    *,
    may_keep_all: bool = False,
    sound: Collection[str] = frozenset(),
) -> list[Decision]:
    """Return a decision for every operator with weights, and for every other one a rule names.

    Args:
        model: The graph.
        recipe: Decides by module.
        lengths: Outputs of the graph that decide durations.
        may_keep_all: Allow that nothing is compressed.
        sound: Tensors that get codes of 16 bits where neither rules nor lengths want FP32.

    Raises:
        QuantizationError: Nothing is compressed, and `may_keep_all` is False.
    """
    for rule in recipe.component:
        _check_rule(rule, recipe.format)
    graph, durations = Graph(model), duration_outputs(model, lengths)
    tensors = {weight.name: weight for node in graph.nodes for weight in _weights(graph, node)}
    recipe = recipe.for_sizes(math.prod(weight.dims) for weight in tensors.values())
    phases, argued = phase_outputs(graph), logarithm_outputs(graph)
    real = phases | argued | length_outputs(model, lengths) if sound else phases
    coded = frozenset(sound) - real
    every = (_decide_one(graph, node, recipe, durations, phases, coded) for node in graph.nodes)
    decided = (_finer(d) if d and d.output in argued else d for d in every)
    decisions = _apart(graph, [decision for decision in decided if decision is not None], coded)
    if not may_keep_all and all(d.weights == Weights.FLOAT32 for d in decisions):
        reason = _why_nothing(graph, decisions, recipe)
        raise QuantizationError(f"the recipe compresses nothing in this model: {reason}")
    return decisions


def _finer(decision: Decision) -> Decision | None:
    """Return the decision for an operator before a logarithm; None where it has no weight."""
    if decision.weight is None:
        return None
    real = replace(decision, activations=Activations.NONE, group_size=0)
    if decision.weights in _FINE:
        return real
    return replace(real, weights=Weights.FLOAT32, algorithm=Algorithm.RTN, reason=_LOGARITHM)


def _apart(graph: Graph, decisions: list[Decision], coded: Collection[str]) -> list[Decision]:
    """Return decisions without those on operators that read what layers in FP32 make of codes.

    Between codes onnxruntime would round the weights of such layers itself.
    """
    kept = (d for d in decisions if d.activations != Activations.STATIC)
    real = {d.output for d in kept if d.output in coded}
    nodes = {node.output[0]: node for node in graph.nodes}
    return [d for d in decisions if d.weight or real.isdisjoint(nodes[d.output].input)]


def _why_nothing(graph: Graph, decisions: list[Decision], recipe: Recipe) -> str:
    finder = WeightFinder(graph.model.graph)
    stored = {tensor.data_type for node in graph.nodes for tensor in finder.find_all(node)}
    if stored and onnx.TensorProto.FLOAT not in stored:
        kinds = ", ".join(sorted(onnx.TensorProto.DataType.Name(kind).lower() for kind in stored))
        return f"its weights are {kinds} already; compress the FP32 original"
    if not decisions:
        kinds = ", ".join(CONVERTIBLE)
        return f"it stores no weight of a layer outside branches and loops; accepted: {kinds}"
    matched = [
        decision.operator
        for decision in decisions
        if any(rule.covers(decision.module, decision.operator) for rule in recipe.component)
    ]
    if matched:
        counts = ", ".join(f"{count} {name}" for name, count in Counter(matched).most_common())
        weighted = not all(decision.reason for decision in decisions)
        advice = "; try int8-weight-only" if weighted else ", nor does any technique"
        return f"of {counts}, none is of a kind and size that its rules convert{advice}"
    patterns = ", ".join(dict.fromkeys(repr(rule.match) for rule in recipe.component))
    modules = sorted({decision.module.split(".")[0] or "unnamed" for decision in decisions})
    return f"no module matches {patterns}; its components are {', '.join(modules)}"


def follow_weights(graph: Graph, decisions: Iterable[Decision]) -> list[Decision]:
    """Return decisions with the names that their operators' weights have now."""

    def current(decision: Decision) -> str | None:
        node = graph.producer(decision.output)
        if decision.weight is None or node is None:
            return None
        return str(node.input[OPERATORS[decision.operator].weight])

    return [replace(decision, weight=current(decision)) for decision in decisions]


def static_outputs(decisions: Iterable[Decision]) -> frozenset[str]:
    """Return the outputs of the operators that compute in calibrated integers."""
    return frozenset(d.output for d in decisions if d.activations == Activations.STATIC)


def channel_outputs(decisions: Iterable[Decision]) -> dict[str, bool]:
    """Return the outputs of the operators whose ranges are by channel; True if one is rounded."""
    chosen = [d for d in decisions if d.activations in BY_CHANNEL]
    rounded = {d.output for d in chosen if d.activations == Activations.CHANNELS}
    return {d.output: d.output in rounded for d in chosen}


def count_decisions(decisions: Iterable[Decision], *, parts: bool = True) -> Counter[str]:
    """Return the number of operators with weights by label, as counted in a finished graph.

    Args:
        decisions: Decisions.
        parts: Count weights of 12 and 16 bits as what they are read from, codes of 8.
    """
    arithmetic = re.compile(f"/({'|'.join(BY_CHANNEL)})$")
    weighted = (decision.label for decision in decisions if decision.weight is not None)
    stored = (re.sub("int1[26]", "int8", label) if parts else label for label in weighted)
    labels = (arithmetic.sub("/static", label) for label in stored)
    # Upsampling is computed in integers as a convolution that makes all phases at once.
    return Counter(re.sub(r"^ConvTranspose (.*/static)$", r"Conv \1", label) for label in labels)


def _decide_one(
    graph: Graph,
    node: onnx.NodeProto,
    recipe: Recipe,
    durations: Collection[str],
    phases: Collection[str],
    coded: Collection[str],
) -> Decision | None:
    weights, output = _weights(graph, node), node.output[0]
    # Graphs also add lengths and indices; only what is known to be sound is touched.
    is_sound = graph.types.get(output) == onnx.TensorProto.FLOAT and output not in graph.outputs
    is_ruled = bool(weights) or (node.op_type in _ELEMENTWISE and is_sound)
    if not is_ruled and output not in coded:
        return None
    module = module_of(node, graph.initializers.keys())
    decides = bool(weights) and output in durations
    kind, rules = node.op_type, recipe.component
    covering = [r for r in rules if r.covers(module, kind, decides_durations=decides)]
    # If a rule's technique cannot be applied, the next rule decides.
    usable = (r for r in covering if is_ruled and _applies(r, recipe.format, graph, node, weights))
    rule = next(usable, None)
    is_phase = output in phases and rule is not None and rule.activations == Activations.FLOAT16
    if rule and (is_phase or rule.excludes(module) or not _is_convertible(graph, node, weights)):
        rule = None
    if output in coded and _gets_codes(graph, node, weights, rule):
        is_kept = any(r.excludes(module) or r.weights == Weights.FLOAT32 for r in covering)
        rule = None if rule is None and is_kept else _CODES
    if not weights and rule is None:
        return None
    rule = rule or Rule(match="*")
    return Decision(
        output=output,
        operator=kind,
        module=module,
        weights=rule.weights,
        activations=rule.activations,
        weight=weights[0].name if weights else None,
        axis=_channel_axis(node, len(weights[0].dims)) if weights else 0,
        parameters=sum(math.prod(tensor.dims) for tensor in weights),
        decides_durations=decides,
        recurrent=weights[1].name if len(weights) > 1 else None,
        group_size=rule.group_size if rule.weights == Weights.INT4 else 0,
        algorithm=rule.algorithm,
        reason=_unfit(graph, node, weights),
    )


def _unfit(graph: Graph, node: onnx.NodeProto, weights: Sequence[onnx.TensorProto]) -> str:
    """Return the reason why every recipe leaves weights in FP32; empty where one need not."""
    if not weights or (node.op_type in CONVERTIBLE and _is_convertible(graph, node, weights)):
        return ""
    if node.op_type not in {"Gather", "Slice"}:
        return NO_TECHNIQUE
    is_small = math.prod(weights[0].dims) < SMALLEST_TABLE
    return SMALL_TABLE if is_small else ""  # else a mask, which is no weight


def _gets_codes(
    graph: Graph, node: onnx.NodeProto, weights: Sequence[onnx.TensorProto], rule: Rule | None
) -> bool:
    """Return True for an operator that can have codes of 16 bits, and has no other form yet."""
    if rule and (rule.weights, rule.activations) != (Weights.INT8, Activations.NONE):
        return False
    if weights:
        kinds = _SUPPORTED[Activations.FLOAT16]
        return node.op_type in kinds and _is_convertible(graph, node, weights)
    divides = node.op_type == "Div" and graph.constant(node.input[1]) is None
    return node.op_type in _IN_16_BITS and not divides


def _channel_axis(node: onnx.NodeProto, dimensions: int) -> int:
    if node.op_type == "Gemm" and attribute(node, "transB", 0):
        return 0
    return (OPERATORS[node.op_type].axis or 0) % dimensions


def _weights(graph: Graph, node: onnx.NodeProto) -> list[onnx.TensorProto]:
    """Return an operator's constant FP32 weights; a recurrent one has two."""
    if node.op_type not in OPERATORS:
        return []
    first, weights = OPERATORS[node.op_type].weight, list[onnx.TensorProto]()
    for name in node.input[first : first + 1 + (node.op_type in RECURRENT)]:
        tensor = graph.initializers.get(name)
        is_float = tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT
        if tensor is None or not is_float or len(tensor.dims) < 2 or is_small_cut(node, tensor):
            break
        weights.append(tensor)
    return weights


def _is_convertible(
    graph: Graph, node: onnx.NodeProto, weights: Sequence[onnx.TensorProto]
) -> bool:
    """Return True if an operator's weights have a form that every technique handles."""
    if not weights:
        return True
    if node.op_type in {"Gather", "Slice"}:
        is_table = math.prod(weights[0].dims) >= SMALLEST_TABLE
        return bool(is_table and np.isfinite(graph.value(weights[0].name)).all())  # else a mask
    if node.op_type in {"MatMul", "Gemm"}:
        return len(weights[0].dims) == 2
    if len(node.input) > 2 and node.input[2] not in graph.initializers:
        return False  # a computed bias, which has no code in the steps of the products, or weight
    return node.op_type == "Conv" or attribute(node, "group", 1) == 1


def _applies(
    rule: Rule,
    form: Format,
    graph: Graph,
    node: onnx.NodeProto,
    weights: Sequence[onnx.TensorProto],
) -> bool:
    """Return True if a rule's technique can be applied to an operator."""
    if _is_skipped(rule, graph, node):
        return False
    if not weights:
        return node.op_type in rule.operators
    # A recurrent operator's first axis is that of the directions.
    shape = tuple(weights[0].dims)[node.op_type in RECURRENT :]
    kernel = min(shape[2:], default=rule.min_kernel)
    is_small = min(shape[:2]) < rule.min_channels or kernel < rule.min_kernel
    is_small |= math.prod(weights[0].dims) < rule.min_weights
    if is_small or not (_has_kernel(rule, form, node, shape) and _has_blocks(rule, node, weights)):
        return False
    if rule.activations not in CALIBRATED:
        return True
    if form == "qoperator":
        plain = integer_form(graph, node)
        # Neighbourhoods that are laid side by side follow each other sample by sample.
        slides = rule.activations == Activations.INPUTS
        return bool(plain and _pays(node, shape) and (not slides or plain.convolution.stride == 1))
    # The caller gets FP32, and a result that is not rounded is not computed in integers.
    return node.output[0] not in graph.outputs


def _has_blocks(rule: Rule, node: onnx.NodeProto, weights: Sequence[onnx.TensorProto]) -> bool:
    """Return True if an operator's weights can be stored in the bits of a rule."""
    if rule.weights != Weights.INT4:
        return True
    if node.op_type == "LSTM" and rule.activations == Activations.DYNAMIC:
        return False  # its kernel wants the weights of both directions turned
    for shape in (tuple(weight.dims) for weight in weights):
        outputs = shape[_channel_axis(node, len(shape))]
        if rule.activations == Activations.STATIC and outputs <= _GROUPED:
            return False
        if node.op_type == "ConvTranspose" and rule.activations == Activations.STATIC:
            outputs *= attribute(node, "strides", (1,))[0]  # as the convolution into phases
        if not has_even_blocks(math.prod(shape), outputs, rule.group_size):
            return False
    return True


def _is_skipped(rule: Rule, graph: Graph, node: onnx.NodeProto) -> bool:
    """Return True if a rule leaves an operator out because of its inputs."""
    inputs = graph.inputs.keys() - graph.initializers.keys()
    if rule.skip_graph_inputs and any(_origin(graph, name) in inputs for name in node.input):
        return True
    maker = graph.producer(node.input[0]) if rule.skip_upsampled else None
    while maker is not None and maker.op_type in _ACTIVATIONS:
        maker = graph.producer(maker.input[0])
    return maker is not None and maker.op_type == "ConvTranspose"


def _origin(graph: Graph, name: str) -> str:
    """Return the tensor whose values a tensor has in another form, such as a graph's input."""
    while (maker := graph.producer(name)) and maker.op_type in {*PASSING, "Cast"}:
        name = maker.input[0]
    return name


def _has_kernel(rule: Rule, form: Format, node: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Return True if there is a kernel of a rule's arithmetic, and it is faster than FP32."""
    if node.op_type not in _possible_operators(rule, form):
        return False
    if node.op_type != "LSTM" or rule.activations != Activations.DYNAMIC:
        return True
    # The integer operator has no `layout`: it reads (time, batch, inputs).
    return attribute(node, "layout", 0) == 0 and shape[0] >= 4 * _NARROWEST_LSTM


def _pays(node: onnx.NodeProto, shape: tuple[int, ...]) -> bool:
    """Return True if a convolution is faster in integers than in FP32.

    Measured with as many outputs as inputs and a kernel of three. If the sides differ, the wider
    one counts; a longer kernel makes up for fewer channels.
    """
    width = max(shape[:2])
    if node.op_type == "ConvTranspose":
        return width >= _NARROWEST
    return width * max(1.0, shape[2] / _MEASURED_KERNEL) >= _NARROWEST


def _possible_operators(rule: Rule, form: Format) -> tuple[str, ...]:
    if rule.activations == Activations.STATIC and form == "qoperator":
        return _SUPPORTED_FUSED
    return _SUPPORTED[rule.activations]


def _check_rule(rule: Rule, form: Format) -> None:
    settings = {"weights": rule.weights, "algorithm": rule.algorithm}
    torch_only = [f"{key} = {value!r}" for key, value in settings.items() if value in _TORCH_ONLY]
    if rule.activations not in _SUPPORTED:
        torch_only.append(f"activations = {rule.activations!r}")
    if torch_only:
        raise QuantizationError(
            f"rule '{rule.match}' has {' and '.join(torch_only)}, which is for models that run in "
            "torch; an ONNX graph takes float16, bfloat16, int8 and int4 weights, by rtn or gptq"
        )
    if rule.activations in BY_CHANNEL and form != "qoperator":
        raise QuantizationError(
            f"rule '{rule.match}' has activations {rule.activations!r}, and format {form!r} has no "
            "operators for them; make the recipe's format 'qoperator'"
        )
    possible = _possible_operators(rule, form)
    if rule.activations == Activations.STATIC and form != "qoperator":
        possible += _ELEMENTWISE
    wrong = [operator for operator in rule.operators if operator not in possible]
    if wrong:
        raise QuantizationError(
            f"rule '{rule.match}' names {', '.join(wrong)}; with activations "
            f"{rule.activations!r} it can convert {', '.join(possible)}"
        )
