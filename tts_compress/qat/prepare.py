"""Conversion of an FP32 module to one that trains as if compressed, and to a compressed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import FakeQuantize, disable_observer
from tts_compress.qat.layer import FakeQuantizedLayer
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.convert import Converted, finish, refuse_unfit, round_stored
from tts_compress.torch.decisions import Decision, decide
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, normalize, replace_module

_TRAINED = frozenset({"int8", "int4"})
_STORED = frozenset({"float32", "float16", "bfloat16"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedModule:
    """A module that trains as if it were compressed."""

    module: nn.Module
    """The module with fake-quantized layers, in evaluation mode: dropout would be noise that the
    teacher never had, and statistics of batches are not deployed."""

    decisions: tuple[Decision, ...]
    """Decisions for every layer with weights, which they name below `module`."""


def prepare_qat(root: nn.Module, recipe: Recipe, *, learned_ranges: bool = False) -> PreparedModule:
    """Return a copy of a module with fake-quantized layers, ready to be trained.

    Every tensor of it is its own. Weight norm is folded: scales are computed from the weights
    themselves, and what is deployed has no norm. All parameters of real numbers are trainable,
    also those of layers that stay in FP32, which compensate for the others.

    torchao's QAT swaps linear layers only, with ranges found at run time; here they share one kind
    of layer with convolutions, so that all become the layers of `compress`.

    Args:
        root: In FP32; not modified.
        recipe: The format of each layer. Its algorithm does not matter: training chooses the codes.
        learned_ranges: True if static ranges of activations are parameters.

    Raises:
        QuantizationError: The module is compressed or prepared already, has no weights in memory or
            not in FP32, or the recipe would round nothing of it in training.
        RecipeError: The recipe has what only ONNX graphs have.
    """
    if any(isinstance(module, FakeQuantize) for module in root.modules()):
        raise QuantizationError("the module is already prepared; prepare the original")
    copy = own_tensors(normalize(copy_sharing_tensors(root)).eval(), trainable=True)
    decisions = decide(copy, recipe)
    refuse_unfit(copy, decisions)
    _refuse_untrainable(copy, decisions)
    for decision in decisions:
        if decision.weights in _TRAINED:
            module = copy.get_submodule(decision.module)
            layer = FakeQuantizedLayer(
                module, decision, recipe.calibration, learned_ranges=learned_ranges
            )
            copy = replace_module(copy, decision.module, layer)
    return PreparedModule(module=copy, decisions=tuple(decisions))


@torch.no_grad()
def convert_qat(prepared: PreparedModule) -> Converted:
    """Return a compressed copy with the trained weights and ranges.

    Its layers are those that `compress` makes, and it shares no tensor with what was trained.

    Args:
        prepared: As `prepare_qat` made it and training left it; not modified.

    Raises:
        QuantizationError: A range was never observed, a weight is not finite, or the finished
            module does not hold what the recipe promised.
    """
    root = own_tensors(copy_sharing_tensors(prepared.module), trainable=False)
    disable_observer(root)
    for name, parameter in root.named_parameters():
        if not torch.isfinite(parameter).all():
            raise QuantizationError(
                f"'{name}' is not finite: training went wrong; go back to an earlier checkpoint"
            )
    rounded: dict[int, nn.Parameter] = {}
    for decision in prepared.decisions:
        layer = root.get_submodule(decision.module)
        if isinstance(layer, FakeQuantizedLayer):
            root = replace_module(root, decision.module, layer.build())
        elif decision.weights != "float32":
            round_stored(layer, decision.weights, rounded)
    return finish(root.eval(), prepared.decisions)


def own_tensors(root: nn.Module, *, trainable: bool) -> nn.Module:
    """Give a module tensors of its own, in place; what its parts share, they share still.

    Args:
        root: The module whose parameters and buffers are copied.
        trainable: True if floating-point parameters get gradients.
    """
    made: dict[int, tuple[Tensor, Tensor]] = {}
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


def _copied(tensor: Tensor, trainable: bool) -> Tensor:
    values = tensor.detach().clone()
    if not isinstance(tensor, nn.Parameter):
        return values
    return nn.Parameter(values, requires_grad=trainable and values.is_floating_point())


def _refuse_untrainable(root: nn.Module, decisions: Sequence[Decision]) -> None:
    """Refuse arithmetic that is not trained for, and weights that are not FP32."""
    for decision in decisions:
        is_stored = decision.weights in _STORED and decision.activations == "none"
        if decision.weights not in _TRAINED and not is_stored:
            raise QuantizationError(
                f"'{decision.module}': training rounds to int8 and int4, not to "
                f"{decision.weights} with {decision.activations} activations; give another recipe"
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
