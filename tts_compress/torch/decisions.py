"""Which layer of a module gets what, by recipe."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.artifact import LayerRecord
from tts_compress.errors import RecipeError
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.torch.layers.base import CompressedLayer, Geometry, operator_of
from tts_compress.torch.layers.build import is_layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from tts_compress.recipes.recipe import Recipe, Rule

__all__ = ["Decision", "count_decisions", "count_layers", "decide", "describe_untouched"]

_ARITHMETIC: dict[Activations, tuple[str, ...]] = {
    Activations.NONE: ("Linear", "Conv1d", "ConvTranspose1d", "Embedding"),
    Activations.FLOAT16: ("Linear", "Conv1d", "ConvTranspose1d"),
    Activations.BFLOAT16: ("Linear", "Conv1d", "ConvTranspose1d"),
    Activations.FLOAT8: ("Linear",),
    Activations.DYNAMIC: ("Linear", "Conv1d", "ConvTranspose1d"),
    Activations.STATIC: ("Linear", "Conv1d", "ConvTranspose1d"),
}
"""Operators there are layers for, by what their arithmetic runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What happens to one layer."""

    module: str
    """Its dotted name below the root."""

    operator: str
    weights: Weights
    activations: Activations
    parameters: int
    """Number of weights; biases are not counted."""

    group: int = 64
    """Inputs that share a scale, for four bits."""

    algorithm: Algorithm = Algorithm.RTN
    """How four-bit codes are chosen."""

    reason: str = ""
    """Why it keeps FP32, where it does."""

    def record(self) -> LayerRecord:
        """Return what a manifest says of it."""
        return LayerRecord(
            module=self.module,
            operator=self.operator,
            weights=self.weights,
            activations=self.activations,
            parameters=self.parameters,
        )

    @property
    def label(self) -> str:
        """What counts are kept by: operator, weights and arithmetic."""
        return f"{self.operator} {self.weights}/{self.activations}"


def decide(root: nn.Module, recipe: Recipe) -> tuple[Decision, ...]:
    """Return what a recipe makes of every layer with weights, in the modules' order.

    Args:
        root: A prepared module: weight norm folded, attention opened.
        recipe: The first rule that covers a layer, and can, decides.

    Raises:
        RecipeError: The recipe has settings that only ONNX graphs have.
    """
    _refuse_graph_settings(recipe)
    decisions = []
    for name, module in root.named_modules():
        operator = operator_of(module)
        if operator is not None:
            decisions.append(_decide(name, Geometry.of(module), recipe))
    return tuple(decisions)


def _refuse_graph_settings(recipe: Recipe) -> None:
    given = {
        f"format = {recipe.format!r}": recipe.format != "qdq",
        "float_residuals": recipe.float_residuals,
        "equalize": recipe.calibration is not None and recipe.calibration.equalize,
        "skip_graph_inputs": any(rule.skip_graph_inputs for rule in recipe.component),
    }
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise RecipeError(
            f"{', '.join(wrong)}: a matter of ONNX graphs, and this model runs in torch; "
            "leave it out"
        )


def _decide(name: str, geometry: Geometry, recipe: Recipe) -> Decision:
    parameters = 1
    for extent in geometry.shape:
        parameters *= extent
    rule, reason = _choose(name, geometry, recipe)
    return Decision(
        module=name,
        operator=geometry.operator,
        weights=rule.weights if rule else Weights.FLOAT32,
        activations=rule.activations if rule else Activations.NONE,
        parameters=parameters,
        group=rule.group_size if rule else 64,
        algorithm=rule.algorithm if rule else Algorithm.RTN,
        reason=reason,
    )


def _choose(name: str, geometry: Geometry, recipe: Recipe) -> tuple[Rule | None, str]:
    """Return the rule that decides about a layer, or none and why it keeps FP32."""
    reason = ""
    for rule in recipe.component:
        if not rule.covers(name, geometry.operator):
            continue
        if rule.excludes(name):
            return None, "the recipe excludes it"
        if rule.weights == Weights.FLOAT32:
            return None, "the recipe keeps it in FP32"
        objection = _objection(geometry, rule)
        if not objection:
            return rule, ""
        reason = reason or objection
    return None, reason or "no rule of the recipe covers it"


def _objection(geometry: Geometry, rule: Rule) -> str:
    """Return why a rule that covers a layer cannot decide about it; nothing if it can."""
    if geometry.operator not in _ARITHMETIC[rule.activations]:
        return f"there is no {geometry.operator} with {rule.activations} activations"
    if geometry.operator != "Embedding" and min(geometry.shape[:2]) < rule.min_channels:
        return f"it has fewer than {rule.min_channels} channels"
    if len(geometry.shape) == 3 and geometry.shape[2] < rule.min_kernel:
        return f"it has fewer than {rule.min_kernel} taps"
    return _impossible(geometry, rule)


def _impossible(geometry: Geometry, rule: Rule) -> str:
    integers = rule.activations in {Activations.DYNAMIC, Activations.STATIC}
    if rule.weights == Weights.INT4:
        if geometry.operator == "Embedding":
            return "four bits are for linear layers and convolutions"
        inputs = math.prod(geometry.shape) // geometry.shape[geometry.channel_axis]
        if inputs % rule.group_size:
            return f"its {inputs} inputs are no multiple of the group of {rule.group_size}"
    if rule.weights == Weights.FLOAT8 and any(extent % 16 for extent in geometry.shape):
        return "its inputs and outputs are not both multiples of 16"
    if geometry.operator == "ConvTranspose1d" and integers and geometry.dilation > 1:
        return "no integer kernel computes a dilated transposed convolution"
    if integers and geometry.groups > 1 and _channels_in_group(geometry) < _LEAST_IN_GROUP:
        return "a convolution by channels is not faster in integers"
    return ""


_LEAST_IN_GROUP = 8


def _channels_in_group(geometry: Geometry) -> int:
    if geometry.operator == "ConvTranspose1d":
        return min(geometry.shape[0] // geometry.groups, geometry.shape[1])
    return min(geometry.shape[1], geometry.shape[0] // geometry.groups)


def count_decisions(decisions: Iterable[Decision]) -> Counter[str]:
    """Return how many layers, and how many of their weights, the recipe promises of each kind."""
    counts: Counter[str] = Counter()
    for decision in decisions:
        counts[decision.label] += 1
    return counts


def count_layers(root: nn.Module, decisions: Sequence[Decision]) -> Counter[str]:
    """Return how many layers of each kind a finished module really holds.

    Args:
        root: The module.
        decisions: For the layers that only a file stores in another type.
    """
    stored = {d.module: d.weights for d in decisions if not is_layer(d)}
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    for name, module in root.named_modules():
        if name.rpartition(".")[0] in inside:
            inside.add(name)  # a part of a compressed layer
        elif isinstance(module, CompressedLayer):
            inside.add(name)
            operator = module.geometry.operator
            counts[f"{operator} {module.weights}/{module.activations}"] += 1
        elif (plain := operator_of(module)) is not None:
            counts[f"{plain} {stored.get(name, 'float32')}/none"] += 1
    return counts


def describe_untouched(root: nn.Module, decisions: Sequence[Decision]) -> list[str]:
    """Return why a module would stay as it is: a reason for each layer, and what is no layer."""
    reasons = [f"'{d.module}' ({d.operator}): {d.reason}" for d in decisions]
    for name, module in root.named_modules():
        own = sum(p.numel() for p in module.parameters(recurse=False))
        if own and operator_of(module) is None:
            kind = type(module).__name__
            reasons.append(f"'{name}' ({kind}): there is no compressed layer of its kind")
    return reasons or ["it has no weights"]
