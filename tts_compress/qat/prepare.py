"""From a module in FP32 to one that trains as if it were compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from tts_compress.errors import ModelError, QuantizationError
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    DynamicFakeQuantize,
    FakeQuantize,
    WeightFakeQuantize,
)
from tts_compress.qat.layer import FakeQuantizedLayer
from tts_compress.qat.observers import HistogramObserver, MovingAverageObserver
from tts_compress.qat.stubs import Bordered
from tts_compress.qat.weight_format import WeightFormat
from tts_compress.torch.convert import refuse_unfit
from tts_compress.torch.decisions import decide
from tts_compress.torch.layers.base import Geometry
from tts_compress.torch.layers.pointwise import is_pointwise
from tts_compress.torch.layers.structure import prepare, replace_module, share

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tts_compress.qat.observers import Observer
    from tts_compress.recipes.recipe import Recipe
    from tts_compress.torch.decisions import Decision

__all__ = ["PreparedModule", "QATOptions", "own_tensors", "prepare_qat"]

_TRAINED = frozenset({"int8", "int4"})
_LEAST_STEP_OF_LINEAR = 6.1e-5
"""torch's dynamic kernels for linear layers round no finer; its name there is
SMALL_SCALE_THRESHOLD."""

_KEPT = frozenset({"float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class QATOptions:
    """How ranges and scales come about."""

    observer: Literal["recipe", "moving-average"] = "recipe"
    """Who chooses the ranges of activations: what the recipe's calibration names, from all that
    is seen, or a moving average of each tensor's extremes."""

    momentum: float = 0.01
    """Of the moving average: the share that the newest tensor decides."""

    learn_ranges: bool = False
    """Whether static ranges of activations are parameters."""

    learn_weight_scales: bool = False
    """Whether scales of weights are parameters; if not, they follow each channel's peak."""


class PreparedModule(Bordered):
    """A module that trains as if it were compressed, and what was decided for its layers.

    Args:
        module: With fake-quantized layers.
        decisions: For every layer with weights, by its name below `module`.
    """

    def __init__(self, module: nn.Module, decisions: Sequence[Decision]) -> None:
        super().__init__(module)
        self.decisions = tuple(decisions)


def prepare_qat(
    root: nn.Module,
    recipe: Recipe,
    *,
    options: QATOptions | None = None,
    components: Collection[str] = (),
) -> PreparedModule:
    """Return a copy of a module with fake-quantized layers, ready to be trained.

    Every tensor of it is its own. Weight norm is folded: scales are computed from the weights
    themselves, and what is deployed has no norm. All parameters of real numbers are trainable,
    those of layers that stay in FP32 as well, which learn to make up for the others.

    torchao's QAT swaps linear layers only, with ranges found at run time; here they share one kind
    of layer with convolutions, so that all become the layers of `compress`.

    Args:
        root: In FP32; not modified.
        recipe: What happens to which layer. How it chooses codes does not matter: training does.
        options: How ranges and scales come about.
        components: Dotted names of modules that get stubs at their borders, besides the root.

    Raises:
        QuantizationError: The module is compressed or prepared already, has no weights in memory or
            not in FP32, or the recipe would round nothing of it in training.
        RecipeError: The recipe has what only ONNX graphs have.
        ModelError: There is no component of that name, or nothing calls it.
    """
    if any(isinstance(module, FakeQuantize) for module in root.modules()):
        raise QuantizationError("the module is already prepared; prepare the original")
    copy = own_tensors(prepare(share(root)).eval(), trainable=True)
    decisions = decide(copy, recipe)
    refuse_unfit(copy, decisions)
    _refuse_untrainable(copy, decisions)
    swap = _Swap(recipe=recipe, options=options or QATOptions())
    for decision in decisions:
        if decision.weights in _TRAINED:
            layer = swap.layer(copy.get_submodule(decision.module), decision)
            copy = replace_module(copy, decision.module, layer)
    for name in sorted(components, key=len, reverse=True):  # the inner ones first
        copy = replace_module(copy, name, Bordered(_component(copy, name)))
    return PreparedModule(copy, decisions)


def own_tensors(root: nn.Module, *, trainable: bool) -> nn.Module:
    """Give a module tensors of its own, in place; what its parts share, they share still.

    Args:
        root: Whose parameters and buffers are copied.
        trainable: Whether parameters of real numbers get gradients.
    """
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for module in root.modules():
        tables: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)  # noqa: SLF001
        for held in tables:
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:  # the original is kept, lest another get its identity
                    made[id(tensor)] = (tensor, _copied(tensor, trainable))
                held[name] = made[id(tensor)][1]
    return root


def _copied(tensor: torch.Tensor, trainable: bool) -> torch.Tensor:
    values = tensor.detach().clone()
    if not isinstance(tensor, nn.Parameter):
        return values
    return nn.Parameter(values, requires_grad=trainable and values.is_floating_point())


def _refuse_untrainable(root: nn.Module, decisions: Sequence[Decision]) -> None:
    """Refuse arithmetic that is not trained for, and weights that are not FP32."""
    foreign = [
        d
        for d in decisions
        if d.weights not in _TRAINED and (d.weights not in _KEPT or d.activations != "none")
    ]
    if foreign:
        raise QuantizationError(
            f"'{foreign[0].module}': training rounds to int8 and int4, not to "
            f"{foreign[0].weights} with {foreign[0].activations} activations; give another recipe"
        )
    trained = [d for d in decisions if d.weights in _TRAINED]
    if not trained:
        raise QuantizationError(
            "the recipe has no int8 or int4 weights for this module, so there is nothing to train; "
            "compress it without"
        )
    for decision in trained:
        kind = root.get_submodule(decision.module).weight.dtype
        if kind != torch.float32:
            raise QuantizationError(
                f"the weight of '{decision.module}' is {kind}; training needs FP32: call "
                "module.float() first"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    """Makes fake-quantized layers."""

    recipe: Recipe
    options: QATOptions

    def layer(self, module: nn.Module, decision: Decision) -> FakeQuantizedLayer:
        """Return what stands for a layer in training."""
        weight: torch.Tensor = module.weight  # type: ignore[assignment]
        form = self._form(Geometry.of(module), decision)
        learned = self.options.learn_weight_scales
        return FakeQuantizedLayer(
            module,
            decision,
            WeightFakeQuantize(form, weight, learned=learned),
            self._activation(Geometry.of(module), decision),
        )

    def _form(self, geometry: Geometry, decision: Decision) -> WeightFormat:
        in_integers = decision.activations != "none"
        is_transposed = geometry.operator == "ConvTranspose1d"
        return WeightFormat(
            axis=geometry.channel_axis,
            multiplied=in_integers,
            group=decision.group if decision.weights == "int4" else None,
            phases=geometry if is_transposed and in_integers else None,
        )

    def _activation(
        self, geometry: Geometry, decision: Decision
    ) -> ActivationFakeQuantize | DynamicFakeQuantize | None:
        if decision.activations == "none":
            return None
        if decision.activations == "dynamic":
            is_linear = geometry.operator == "Linear" or is_pointwise(geometry)
            return DynamicFakeQuantize(_LEAST_STEP_OF_LINEAR if is_linear else 0.0)
        return ActivationFakeQuantize(self._observer(), learned=self.options.learn_ranges)

    def _observer(self) -> Observer:
        if self.options.observer == "moving-average":
            return MovingAverageObserver(self.options.momentum)
        assert self.recipe.calibration is not None, "a recipe with static activations has one"
        return HistogramObserver(self.recipe.calibration)


def _component(root: nn.Module, name: str) -> nn.Module:
    try:
        component = root.get_submodule(name)
    except AttributeError as error:
        known = ", ".join(child for child, _ in root.named_children())
        raise ModelError(f"there is no component {name!r}; there are: {known}") from error
    if isinstance(component, nn.ModuleList | nn.ModuleDict):
        kind = type(component).__name__
        raise ModelError(f"'{name}' is a {kind}, which is never called; name what it holds")
    return component
