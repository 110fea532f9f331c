"""Conversion of an FP32 module to one that trains as if compressed, and to a compressed one."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn
from torch.nn.utils import parametrize
from typing_extensions import override

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    DynamicFakeQuantize,
    FakeQuantize,
    WeightFakeQuantize,
    disable_observer,
    observing,
)
from tts_compress.recipes.recipe import Calibration, Recipe, find_recipe
from tts_compress.torch.convert import Converted, compressed, finish, refuse_unfit, round_stored
from tts_compress.torch.decisions import LayerDecision, decide
from tts_compress.torch.layers.checkpoint import STORED_TYPES
from tts_compress.torch.layers.geometry import RECURRENT, Geometry, apply_operator
from tts_compress.torch.layers.integer import is_pointwise
from tts_compress.torch.layers.module_surgery import (
    copy_sharing_tensors,
    normalize,
    redirect,
    replace_module,
)

_TRAINED = frozenset({"int8", "int4"})
_ROUNDED_AFTERWARDS = frozenset(kind.__name__ for kind in RECURRENT)
"""Layers that train in FP32: their kernels take all steps at once, and none rounds in between."""

_LEAST_STEP_OF_LINEAR = 6.1e-5
"""torch's dynamic kernels for linear layers round no finer; its name there is
SMALL_SCALE_THRESHOLD."""


class FakeQuantizedLayer(nn.Module):
    """Replaces a linear layer, a convolution or an embedding while it is trained.

    Only what goes in is rounded: the integer layers that this one becomes return FP32.
    """

    def __init__(
        self,
        module: nn.Module,
        decision: LayerDecision,
        calibration: Calibration | None,
        *,
        learned_ranges: bool = False,
    ) -> None:
        super().__init__()
        self.geometry = Geometry.of(module)
        vars(self).update(self.geometry.attributes)
        self.decision = decision
        self.weight = _parameter_of(module, "weight")
        self.bias = _parameter_of(module, "bias")
        in_integers = decision.activations != "none"
        is_transposed = self.geometry.operator == "ConvTranspose1d"
        self.weight_fake_quant = WeightFakeQuantize(
            axis=self.geometry.channel_axis,
            multiplied=in_integers,
            group=decision.group_size if decision.weights == "int4" else None,
            phases=self.geometry if is_transposed and in_integers else None,
        )
        self.activation_fake_quant: ActivationFakeQuantize | DynamicFakeQuantize | None = None
        if decision.activations == "dynamic":
            is_linear = self.geometry.operator == "Linear" or is_pointwise(self.geometry)
            least = _LEAST_STEP_OF_LINEAR if is_linear else 0.0
            self.activation_fake_quant = DynamicFakeQuantize(least)
        elif decision.activations != "none":
            assert calibration is not None, "a recipe with static activations has one"
            self.activation_fake_quant = ActivationFakeQuantize(calibration, learned=learned_ranges)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  torch's layers call it so
        """Return the layer's output with rounded values; `input` is indices for an embedding."""
        try:
            weight = self.weight_fake_quant(self.weight)
            observed = self.activation_fake_quant
            values = input if observed is None else observed(input)
        except QuantizationError as error:
            raise QuantizationError(f"'{self.decision.module}': {error}") from error
        if self.geometry.operator == "Embedding":
            told = self.geometry.attributes  # they decide which rows learn, and how fast
            by_count = told["scale_grad_by_freq"]
            return F.embedding(values, weight, told["padding_idx"], scale_grad_by_freq=by_count)
        return apply_operator(self.geometry, values, weight, self.bias)

    @override
    def extra_repr(self) -> str:
        shape = "×".join(map(str, self.geometry.shape))
        return f"{shape}, weights={self.decision.weights}, activations={self.decision.activations}"


def _parameter_of(module: nn.Module, name: str) -> nn.Parameter | None:
    """Return a layer's own parameter, or one of the values that a parametrization computes.

    A buffer that serves as weight does not learn.
    """
    values = getattr(module, name, None)
    if values is None or isinstance(values, nn.Parameter):
        return values
    learns = parametrize.is_parametrized(module, name)
    return nn.Parameter(values.detach().clone(), requires_grad=learns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedModule:
    """A module that trains as if it were compressed."""

    module: nn.Module
    """The module with fake-quantized layers, in evaluation mode: dropout would be noise that the
    teacher never had, and statistics of batches are not deployed."""

    decisions: tuple[LayerDecision, ...]
    """Decisions for every layer with weights, which they name below `module`."""

    def observing(self) -> AbstractContextManager[None]:
        """Return a context in which calls of `module` observe ranges in FP32; its end freezes them.

        Without it each call moves the ranges, until `convert_qat`.
        """
        return observing(self.module)


def prepare_qat(
    root: nn.Module, recipe: Recipe | str = "int8-qat", *, learned_ranges: bool = False
) -> PreparedModule:
    """Return a copy of a module with fake-quantized layers, ready to be trained.

    Train its `module` with any loss and optimizer, then call `convert_qat`. It shares no tensor
    with the original. Weight norm and other parametrizations of layers are folded: scales are
    computed from the weights themselves, and what is deployed has no norm. All parameters of real
    numbers are trainable, also those of layers that stay in FP32, which compensate for the others.

    torchao's QAT swaps linear layers only, with ranges found at run time; here they share one kind
    of layer with convolutions, so that all become the layers of `compress`.

    Args:
        root: In FP32; not modified.
        recipe: The format of each layer, or a scheme of torch modules. Its algorithm does not
            matter: training chooses the codes.
        learned_ranges: True if static ranges of activations are parameters.

    Raises:
        QuantizationError: The module is compressed or prepared already, has no weights in memory or
            not in FP32, or the recipe would round nothing of it in training.
        SchemeError: There is no such scheme.
        RecipeError: The recipe has what only ONNX graphs have.
    """
    recipe = find_recipe("module", recipe) if isinstance(recipe, str) else recipe
    if any(isinstance(module, FakeQuantize) for module in root.modules()):
        raise QuantizationError("the module is already prepared; prepare the original")
    copy = own_tensors(normalize(copy_sharing_tensors(root)).eval(), trainable=True)
    decisions = decide(copy, recipe)
    refuse_unfit(copy, decisions)
    _refuse_untrainable(copy, decisions)
    for decision in decisions:
        if _is_trained(decision):
            module = copy.get_submodule(decision.module)
            layer = FakeQuantizedLayer(
                module, decision, recipe.calibration, learned_ranges=learned_ranges
            )
            copy = replace_module(copy, decision.module, layer)
    redirect(copy)
    return PreparedModule(module=copy, decisions=tuple(decisions))


@torch.no_grad()
def convert_qat(prepared: PreparedModule) -> Converted:
    """Return a compressed copy with the trained weights and ranges.

    Its layers are those that `compress` makes, and it shares no tensor with what was trained.

    Args:
        prepared: As `prepare_qat` made it and training left it; not modified.

    Returns:
        The compressed module as `root`, with the records of its layers.

    Raises:
        QuantizationError: A range was never observed, a weight is not finite, or the finished
            module does not hold what the recipe promised.
    """
    if not isinstance(prepared, PreparedModule):
        raise QuantizationError("give what prepare_qat returned, not its `module`")
    root = own_tensors(prepared.module, trainable=False)
    disable_observer(root)
    for name, parameter in root.named_parameters():
        if not torch.isfinite(parameter).all():
            raise QuantizationError(
                f"'{name}' is not finite: training went wrong; go back to an earlier checkpoint"
            )
    rounded: dict[int, nn.Parameter] = {}
    for decision in prepared.decisions:
        layer = root.get_submodule(decision.module)
        if decision.is_layer:
            fake = getattr(layer, "activation_fake_quant", None)
            limits = fake.limits() if isinstance(fake, ActivationFakeQuantize) else None
            part = compressed(layer, decision, limits=limits)
            root = replace_module(root, decision.module, part)
        elif decision.weights != "float32":
            round_stored(layer, decision.weights, rounded)
    return finish(root.eval(), prepared.decisions)


def own_tensors(root: nn.Module, *, trainable: bool) -> nn.Module:
    """Return a copy of a module with tensors of its own; what its parts share, they share still."""

    def copied(tensor: Tensor) -> Tensor:
        values = tensor.detach().clone()
        if not isinstance(tensor, nn.Parameter):
            return values
        return nn.Parameter(values, requires_grad=trainable and values.is_floating_point())

    return copy_sharing_tensors(root, copied)


def _is_trained(decision: LayerDecision) -> bool:
    return decision.weights in _TRAINED and decision.operator not in _ROUNDED_AFTERWARDS


def _refuse_untrainable(root: nn.Module, decisions: Sequence[LayerDecision]) -> None:
    """Refuse arithmetic that is not trained for, and weights that are not FP32."""
    for decision in decisions:
        is_stored = decision.weights in {"float32", *STORED_TYPES}
        if decision.weights not in _TRAINED and not (is_stored and decision.activations == "none"):
            raise QuantizationError(
                f"'{decision.module}': training rounds to int8 and int4, not to "
                f"{decision.weights} with {decision.activations} activations; give another recipe"
            )
    trained = [d for d in decisions if _is_trained(d)]
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
