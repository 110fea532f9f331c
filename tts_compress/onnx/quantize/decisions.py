"""Which operator of a graph gets what, by recipe."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx

from tts_compress.artifact import LayerRecord
from tts_compress.errors import QuantizationError
from tts_compress.onnx.graph import Graph
from tts_compress.onnx.integer.convolutions import is_convolution
from tts_compress.onnx.modules import initializer_names, module_of
from tts_compress.recipes.formats import Activations, Algorithm, Weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tts_compress.onnx.graph import Array
    from tts_compress.recipes.recipe import Format, Recipe, Rule

__all__ = ["Decision", "count_decisions", "decide", "static_outputs"]

_WEIGHT_INPUT = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gather": 0}

_CHANNEL_AXIS = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1, "Gather": 0}
"""The axis of output channels (of rows, for a table that is looked up) in the weight tensor."""

_SUPPORTED: dict[Activations, tuple[str, ...]] = {
    Activations.NONE: ("Conv", "ConvTranspose", "MatMul", "Gather"),
    Activations.FLOAT16: ("Conv", "ConvTranspose", "MatMul"),
    Activations.DYNAMIC: ("Conv", "MatMul"),
    Activations.STATIC: ("Conv", "MatMul"),
}
"""Operators each kind of arithmetic has kernels for."""

_SUPPORTED_FUSED = ("Conv", "ConvTranspose")
"""The same for calibrated integers in onnxruntime's own operators: no kernel transposes a
convolution in integers, but it can be written as a plain one."""

_ELEMENTWISE = ("LeakyRelu", "Relu", "Add")
"""Without weights; static quantization keeps them in integers where a recipe names them."""

_SMALLEST_TABLE = 4_096
"""Elements; below that a looked-up table is not worth an operator."""

_NARROWEST, _MEASURED_TAPS = 16, 3
"""Channels and taps from which on integers are faster in onnxruntime's own operators: two residual
blocks of 16 channels take 0.58 of FP32's time, of 8 channels 1.09 (x86 with VNNI, one thread)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one operator."""

    output: str
    """The operator's first output: the only name of it that is always unique."""

    operator: str
    module: str
    weights: Weights
    activations: Activations
    weight: str | None
    """Name of its weight tensor; None where it has none."""

    axis: int
    """Axis of the weight's output channels."""

    parameters: int

    @property
    def label(self) -> str:
        """How the manifest counts it, such as `Conv int8/static`."""
        return f"{self.operator} {self.weights}/{self.activations}"

    def record(self) -> LayerRecord:
        """Return what the manifest records of it."""
        return LayerRecord(
            module=self.module,
            operator=self.operator,
            weights=self.weights,
            activations=self.activations,
            parameters=self.parameters,
        )


def decide(model: onnx.ModelProto, recipe: Recipe) -> list[Decision]:
    """Return a decision for every operator with weights, and for every other one a rule names.

    Args:
        model: A prepared graph.
        recipe: Its rules.

    Raises:
        QuantizationError: A rule names operators its technique cannot convert, or the recipe
            compresses nothing in this graph.
    """
    for rule in recipe.component:
        _check_operators(rule, recipe.format)
    possible = _Possible(model, recipe.format)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    # Graphs also add lengths and indices; only what is known to be sound is touched.
    floats = {
        value.name
        for value in model.graph.value_info
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    }
    decisions = [
        decision
        for node in model.graph.node
        if (node.op_type not in _ELEMENTWISE or node.output[0] in floats)
        and (decision := _decide_one(node, recipe, tensors, possible)) is not None
    ]
    if all(decision.weights == Weights.FLOAT32 for decision in decisions):
        patterns = ", ".join(repr(rule.match) for rule in recipe.component)
        modules = sorted({decision.module.split(".")[0] or "unnamed" for decision in decisions})
        raise QuantizationError(
            f"the recipe compresses nothing in this model: no module matches {patterns}; "
            f"its components are {', '.join(modules) or 'none'}"
        )
    return decisions


def static_outputs(decisions: Iterable[Decision]) -> frozenset[str]:
    """Return the outputs of the operators that compute in calibrated integers."""
    return frozenset(d.output for d in decisions if d.activations == Activations.STATIC)


def count_decisions(decisions: Sequence[Decision]) -> Counter[str]:
    """Return how many operators with weights got what, as a finished graph counts them."""
    weighted = [decision for decision in decisions if decision.weight is not None]
    # Upsampling is computed in integers as a convolution that makes all phases at once.
    return Counter(
        decision.label.replace("ConvTranspose int8/static", "Conv int8/static")
        for decision in weighted
    )


def _decide_one(
    node: onnx.NodeProto,
    recipe: Recipe,
    tensors: Mapping[str, onnx.TensorProto],
    possible: _Possible,
) -> Decision | None:
    weight = _weight_of(node, tensors)
    if weight is None and node.op_type not in _ELEMENTWISE:
        return None
    module = module_of(node, tensors.keys())
    covering = (r for r in recipe.component if r.covers(module, node.op_type))
    rule = next((r for r in covering if possible(r, node, weight)), None)
    if rule is not None and rule.excludes(module):
        rule = None
    if weight is not None and not _is_convertible(node, tensors):
        rule = None
    if weight is None and rule is None:
        return None
    return Decision(
        output=node.output[0],
        operator=node.op_type,
        module=module,
        weights=rule.weights if rule else Weights.FLOAT32,
        activations=rule.activations if rule else Activations.NONE,
        weight=weight,
        axis=_CHANNEL_AXIS.get(node.op_type, 0),
        parameters=int(np.prod(tensors[weight].dims)) if weight else 0,
    )


def _weight_of(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> str | None:
    position = _WEIGHT_INPUT.get(node.op_type)
    if position is None or node.input[position] not in tensors:
        return None
    tensor = tensors[node.input[position]]
    if tensor.data_type != onnx.TensorProto.FLOAT or len(tensor.dims) < 2:
        return None
    return tensor.name


def _is_convertible(node: onnx.NodeProto, tensors: Mapping[str, onnx.TensorProto]) -> bool:
    """Return whether an operator's weight has a form that every technique handles."""
    dims = tensors[node.input[_WEIGHT_INPUT[node.op_type]]].dims
    if node.op_type == "Gather":
        return bool(np.prod(dims) >= _SMALLEST_TABLE)
    if node.op_type == "MatMul":
        return len(dims) == 2
    if len(node.input) > 2 and node.input[2] and node.input[2] not in tensors:
        return False  # a computed bias cannot be stored in the scale of the products
    return node.op_type == "Conv" or _groups(node) == 1


def _groups(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "group"), 1)


class _Possible:
    """Tells which rule an operator of a graph can follow; where one cannot, the next decides."""

    def __init__(self, model: onnx.ModelProto, form: Format) -> None:
        self._graph = Graph(model)
        self._form = form
        self._inputs = {value.name for value in model.graph.input} - initializer_names(model.graph)

    def __call__(self, rule: Rule, node: onnx.NodeProto, weight: str | None) -> bool:
        if rule.skip_graph_inputs and self._inputs.intersection(node.input):
            return False
        if weight is None:
            return node.op_type in rule.operators
        values = self._graph.constant(weight)
        small = values is not None and not _is_large(rule, values)
        if small or node.op_type not in _possible_operators(rule, self._form):
            return False
        if rule.activations != Activations.STATIC:
            return True
        if self._form == "qoperator":
            return is_convolution(self._graph, node) and _pays(node, values)
        # The caller gets FP32, and what is not rounded behind does not run in integers.
        return node.output[0] not in self._graph.outputs


def _pays(node: onnx.NodeProto, values: Array | None) -> bool:
    """Return whether a convolution is faster in integers than in FP32.

    That was measured with as many outputs as inputs and three taps; where the sides differ, the
    wider one counts, and more taps make up for fewer channels.
    """
    if values is None:
        return False
    width, taps = int(max(values.shape[:2])), int(values.shape[2])
    if node.op_type == "ConvTranspose":
        return width >= _NARROWEST
    return width * max(1.0, taps / _MEASURED_TAPS) >= _NARROWEST


def _is_large(rule: Rule, weight: Array) -> bool:
    """Return whether a weight has the channels and taps a rule wants."""
    kernel = min(weight.shape[2:], default=rule.min_kernel)
    return min(weight.shape[:2]) >= rule.min_channels and kernel >= rule.min_kernel


def _possible_operators(rule: Rule, form: Format) -> tuple[str, ...]:
    if rule.activations == Activations.STATIC and form == "qoperator":
        return _SUPPORTED_FUSED
    return _SUPPORTED[rule.activations]


_TORCH_ONLY = {
    Weights.INT4,
    Weights.FLOAT8,
    Algorithm.GPTQ,
    Algorithm.INC_RTN,
    Algorithm.INC_GPTQ,
}


def _check_operators(rule: Rule, form: Format) -> None:
    torch_only = [
        f"{key} = {value!r}"
        for key, value in (
            ("weights", rule.weights),
            ("algorithm", rule.algorithm),
        )
        if value in _TORCH_ONLY
    ]
    if rule.activations not in _SUPPORTED:
        torch_only.append(f"activations = {rule.activations!r}")
    if torch_only:
        raise QuantizationError(
            f"rule '{rule.match}' has {' and '.join(torch_only)}, which is for models that run in "
            "torch; an ONNX graph takes float16, bfloat16 and int8 weights, rounded to nearest"
        )
    possible = _possible_operators(rule, form)
    if rule.activations == Activations.STATIC and form == "qdq":
        possible += _ELEMENTWISE
    wrong = [operator for operator in rule.operators if operator not in possible]
    if wrong:
        raise QuantizationError(
            f"rule '{rule.match}' names {', '.join(wrong)}; with activations "
            f"{rule.activations!r} it can convert {', '.join(possible)}"
        )
