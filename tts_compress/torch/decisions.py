"""Decisions: the format of each layer of a module, by recipe."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from tts_compress.artifact import LayerRecord
from tts_compress.errors import RecipeError
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Recipe, Rule
from tts_compress.torch.layers.base import CompressedLayer, find_layer, is_layer, walk_layers
from tts_compress.torch.layers.geometry import (
    KINDS,
    RECURRENT,
    Geometry,
    operator_of,
    tied_layers,
    weights_of,
)

_KEEP = Rule(match="*")
_TORCHS = (*KINDS, *RECURRENT)
_CODES = frozenset({Weights.INT8, Weights.INT4})
_EXCLUDED, _KEPT = "the recipe excludes it", "the recipe keeps it in FP32"
_NOT_COVERED = "no rule of the recipe covers it"
_OWN = "it computes in a way of its own"
_CLOSED = "the attention around it never calls it, but hands its weight to a function"
_COMPUTED = "its weight is computed from others (parametrizations), which keep their type"
STATED = frozenset({_EXCLUDED, _KEPT, _NOT_COVERED})
"""Reasons for FP32 that whoever reads the recipe knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDecision(LayerRecord):
    """The format of one layer, and how it is reached."""

    group_size: int
    """Inputs that share a scale, for four bits."""

    algorithm: Algorithm
    """Algorithm that chooses the codes of linear layers."""

    tied: str = ""
    """The first layer with the same weight, where it is not this one."""

    @property
    def is_layer(self) -> bool:
        """True if a compressed layer replaces it; otherwise at most a file stores it smaller."""
        return is_layer(self.weights, self.activations)


def decide(root: nn.Module, recipe: Recipe) -> tuple[LayerDecision, ...]:
    """Return a recipe's decision for every layer with weights, in the modules' order."""
    _refuse_graph_settings(recipe)
    decisions, tied = [], tied_layers(root)
    layers = [(n, m, Geometry.of(m)) for n, m in root.named_modules() if operator_of(m) is not None]
    recipe = recipe.for_sizes(math.prod(g.shape) for n, _, g in layers if n not in tied)
    closed = {id(m.out_proj) for m in root.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, module, geometry in layers:
        rule, reason = _choose(name, geometry, recipe)
        if unfit := _CLOSED if id(module) in closed else _unfit(module):
            rule, reason = _KEEP, unfit
        elif is_parametrized(module) and not is_layer(rule.weights, rule.activations):
            rule, reason = _KEEP, reason or _COMPUTED
        decision = LayerDecision(
            module=name,
            operator=geometry.operator,
            weights=rule.weights,
            activations=rule.activations,
            parameters=math.prod(geometry.shape),
            group_size=rule.group_size,
            algorithm=rule.algorithm,
            reason=reason,
            tied=tied.get(name, ""),
        )
        decisions.append(decision)
    return _agreed(decisions)


def _unfit(module: nn.Module) -> str:
    """Return why no compressed layer computes what a module does; nothing if some does."""
    kind = weights_of(module)[0].dtype
    if not kind.is_floating_point:
        return f"its weights are {str(kind).removeprefix('torch.')}"
    if getattr(module, "max_norm", None) is not None:
        return "it shortens its rows when they are looked up (max_norm)"
    return ""


def _agreed(decisions: Sequence[LayerDecision]) -> tuple[LayerDecision, ...]:
    """Return the decisions, with one format for layers that share a weight in 8 or 4 bits.

    INT8 weights with FP32 arithmetic are what every kind of layer has, and keep as it is stored.
    """
    sharing: dict[str, list[LayerDecision]] = {}
    for decision in decisions:
        sharing.setdefault(decision.tied or decision.module, []).append(decision)
    common = {
        name
        for name, members in sharing.items()
        if len(members) > 1 and all(member.weights in _CODES for member in members)
    }
    int8: Any = {"weights": Weights.INT8, "activations": Activations.NONE, "algorithm": "rtn"}

    def agree(decision: LayerDecision) -> LayerDecision:
        first = decision.tied or decision.module
        changed = replace(decision, **int8)
        if first not in common or changed == decision:
            return decision
        other = next(x.module for x in sharing[first] if x.module != decision.module)
        return replace(changed, reason=f"it shares its weight with {other!r}")

    return tuple(map(agree, decisions))


def _refuse_graph_settings(recipe: Recipe) -> None:
    settings = {
        f"format = {recipe.format!r}": recipe.format != "qdq",
        "float_residuals": recipe.float_residuals,
        "equalize": recipe.calibration is not None and recipe.calibration.equalize,
        "skip_graph_inputs": any(rule.skip_graph_inputs for rule in recipe.component),
        "skip_upsampled": any(rule.skip_upsampled for rule in recipe.component),
    }
    if wrong := [name for name, is_on in settings.items() if is_on]:
        raise RecipeError(
            f"{', '.join(wrong)}: a matter of ONNX graphs, and this model runs in torch; "
            "leave it out"
        )


def _choose(name: str, geometry: Geometry, recipe: Recipe) -> tuple[Rule, str]:
    """Return the rule that decides about a layer, or one that keeps FP32 and the reason."""
    reason = ""
    for rule in recipe.component:
        if not rule.covers(name, geometry.operator):
            continue
        if rule.excludes(name):
            return _KEEP, _EXCLUDED
        if rule.weights == Weights.FLOAT32:
            return _KEEP, _KEPT
        objection = _objection(geometry, rule)
        if not objection:
            return rule, ""
        reason = reason or objection
    return _KEEP, reason or _NOT_COVERED


def _objection(geometry: Geometry, rule: Rule) -> str:
    """Return why a rule that covers a layer cannot decide about it; nothing if it can."""
    if geometry.operator != "Embedding" and min(geometry.shape[:2]) < rule.min_channels:
        return f"it has fewer than {rule.min_channels} channels"
    if len(geometry.shape) == 3 and geometry.shape[2] < rule.min_kernel:
        return f"its kernel is smaller than {rule.min_kernel}"
    if math.prod(geometry.shape) < rule.min_weights:
        return f"it has fewer than {rule.min_weights} weights"
    if not is_layer(rule.weights, rule.activations):
        return ""
    chosen = (geometry, rule.weights, rule.activations)
    if layer := find_layer(*chosen) or find_layer(*chosen, device="cuda"):
        return layer.objection(geometry, rule.group_size)
    in_fp32 = rule.activations == Activations.NONE
    kind = f"{rule.weights} weights" if in_fp32 else f"{rule.activations} activations"
    return f"there is no {geometry.operator} with {kind}"


def count_decisions(decisions: Iterable[LayerRecord]) -> Counter[str]:
    """Return the number of layers of each operator and format that the recipe promises."""
    return Counter(_label(d.operator, d.weights, d.activations) for d in decisions)


def count_layers(root: nn.Module, decisions: Sequence[LayerDecision]) -> Counter[str]:
    """Return the number of layers of each operator and format that a finished module holds."""
    stored = {d.module: d.weights for d in decisions if not d.is_layer}
    counts: Counter[str] = Counter()
    for name, module in walk_layers(root):
        if isinstance(module, CompressedLayer):
            counts[_label(module.geometry.operator, module.weights, module.activations)] += 1
        elif (operator := operator_of(module)) is not None:
            weights = stored.get(name, Weights.FLOAT32)
            counts[_label(operator, weights, Activations.NONE)] += 1
    return counts


def _label(operator: str, weights: str, activations: str) -> str:
    return f"{operator} {weights}/{activations}"


def other_parts(root: nn.Module) -> list[LayerRecord]:
    """Return a record of each part of a module with weights of its own that is no known layer."""
    return [
        LayerRecord(
            module=name,
            operator=type(module).__name__,
            weights=Weights.FLOAT32,
            activations=Activations.NONE,
            parameters=size,
            reason=_OWN
            if isinstance(module, _TORCHS)
            else "there is no compressed layer of its kind",
        )
        for name, module in walk_layers(root)
        if operator_of(module) is None and not isinstance(module, CompressedLayer)
        if not _is_weight_of_layer(root, name)
        if (size := sum(parameter.numel() for parameter in module.parameters(recurse=False)))
    ]


def _is_weight_of_layer(root: nn.Module, name: str) -> bool:
    """Return True for what a layer's weight is computed from (`LAYER.parametrizations.weight`)."""
    owner, parametrizations, _ = name.rpartition(".parametrizations.")
    return bool(parametrizations) and operator_of(root.get_submodule(owner)) is not None


def describe_untouched(root: nn.Module, decisions: Sequence[LayerDecision]) -> list[str]:
    """Return the reasons why a module would stay as it is, one for each part with weights."""
    parts = [*decisions, *other_parts(root)]
    reasons = [f"'{part.module}' ({part.operator}): {part.reason}" for part in parts]
    return reasons or ["it has no weights"]
