"""Compressing modules that lie on a GPU.

The integer layers here are for CPUs. On a GPU the same recipes give linear layers to torchao;
everything else of a recipe, 16-bit floats and weights that are only stored small, is the same
everywhere.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from glob import escape
from typing import TYPE_CHECKING

import torch

from tts_compress.errors import QuantizationError, TTSCompressWarning
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Rule
from tts_compress.torch.convert import Converted, convert, finish
from tts_compress.torch.decisions import decide
from tts_compress.torch.layers.base import CompressedLayer, Geometry
from tts_compress.torch.layers.build import layer_state
from tts_compress.torch.layers.structure import prepare, replace_module, share
from tts_compress.torch.torchao_layer import float8_linear, int8_linear
from tts_compress.torch.weight_codes import choose_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor, nn

    from tts_compress.progress import Progress
    from tts_compress.recipes.recipe import Recipe
    from tts_compress.torch.decisions import Decision

__all__ = ["convert_on_gpu", "runs_on_gpu"]

_HANDED = frozenset({"dynamic", "float8"})
"""Activations whose linear layers torchao computes on a GPU."""

_ALIGNED = 8
"""Inputs and outputs CUDA's integer product takes multiples of; torchao would compute others on the
CPU, with copies there and back."""

_FLOAT8_FROM = (8, 9)
"""The first compute capability with 8-bit floats."""

_BY_ROW = frozenset({9, 10})
"""Generations whose products in 8-bit floats take a scale per row in every build of torch that
torchao supports; the others take one per tensor."""

_SHOWN_REASONS = 12


def runs_on_gpu(root: nn.Module, recipe: Recipe) -> bool:
    """Return whether a recipe asks for arithmetic in eight bits and the module lies on a GPU.

    Args:
        root: The module.
        recipe: What happens to which layer.

    Raises:
        QuantizationError: The recipe asks for arithmetic that there is not where the module lies.
    """
    devices = _devices(root)
    asked = {rule.activations for rule in recipe.component} & (_HANDED | {"static"})
    if "float8" in asked:
        _check_float8(devices)
    on_gpu = any(device.type == "cuda" for device in devices)
    if not asked or not on_gpu:
        return False
    if "static" in asked:
        raise QuantizationError(
            f"'{recipe.scheme}' rounds activations with fixed ranges, which is for CPUs; "
            "on a GPU take 'int8-dynamic'"
        )
    if any(device.type != "cuda" for device in devices):
        shown = ", ".join(sorted(map(str, devices)))
        raise QuantizationError(f"the module lies on {shown}; move all of it to the GPU, or none")
    return True


@torch.no_grad()
def convert_on_gpu(
    root: nn.Module,
    recipe: Recipe,
    run: Callable[[nn.Module], None] | None,
    *,
    progress: Progress,
) -> Converted:
    """Return a compressed copy of a module on a GPU, as `convert` does of one on the CPU.

    Linear layers with arithmetic in eight bits are torchao's. Convolutions with it keep FP32:
    torchao has none, and a warning says so.

    Args:
        root: A module in FP32, for which `runs_on_gpu` was true; it is not changed.
        recipe: What happens to which layer.
        run: Calls a module with calibration data; None where the recipe needs none.
        progress: Is told of every layer.

    Raises:
        QuantizationError: The recipe does not fit the module.
        MissingExtraError: torchao is not installed.
    """
    if any(isinstance(module, CompressedLayer) for module in root.modules()):
        raise QuantizationError("the module is already compressed; compress the original")
    plain = prepare(share(root)).eval()
    asked = decide(plain, recipe)
    decisions = tuple(_fit(decision, plain) for decision in asked)
    _refuse_if_idle(decisions)
    _tell_of_kept([new for old, new in zip(asked, decisions, strict=True) if new is not old])
    handed = [decision for decision in decisions if decision.activations in _HANDED]
    codes = choose_codes(plain, handed, run, progress=progress)
    small = plain
    if any(d.weights != "float32" for d in decisions if d.activations not in _HANDED):
        rest = _without(recipe, (d for d in asked if d.activations in _HANDED))
        small = convert(root, rest, run, progress=progress).root
    for done, decision in enumerate(handed):
        progress.advance("compress", done, len(handed))
        layer = _layer(plain.get_submodule(decision.module), decision, codes)
        small = replace_module(small, decision.module, layer)
    progress.advance("compress", len(handed), len(handed))
    return finish(small, decisions)


def _devices(root: nn.Module) -> set[torch.device]:
    return {parameter.device for parameter in root.parameters()}


def _check_float8(devices: set[torch.device]) -> None:
    """Refuse 8-bit floats where there is no arithmetic with them."""
    needed = (
        "8-bit floats ('fp8') need an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper, "
        "Blackwell)"
    )
    others = sorted(str(device) for device in devices if device.type != "cuda")
    if others:
        raise QuantizationError(
            f"{needed}; the module lies on {', '.join(others)}: move it to such a GPU, "
            "or take 'int8', which CPUs compute with"
        )
    if torch.version.hip is not None:
        raise QuantizationError(f"{needed}, and this is a build of torch for ROCm; take 'bf16'")
    for device in sorted(devices, key=str):
        found = torch.cuda.get_device_capability(device)
        if found < _FLOAT8_FROM:
            raise QuantizationError(
                f"{needed}; {device} has {found[0]}.{found[1]}: take 'int8' or 'fp16'"
            )


def _fit(decision: Decision, root: nn.Module) -> Decision:
    """Return the decision, or FP32 with a reason where no kernel of a GPU carries it out."""
    if decision.activations != "dynamic":
        return decision
    reason = ""
    if decision.operator != "Linear":
        reason = f"there is no {decision.operator} in integers on a GPU"
    else:
        outputs, inputs = Geometry.of(root.get_submodule(decision.module)).shape
        if outputs % _ALIGNED or inputs % _ALIGNED:
            reason = (
                f"its {inputs} inputs and {outputs} outputs are not both multiples of {_ALIGNED}"
            )
    if not reason:
        return decision
    return replace(decision, weights=Weights.FLOAT32, activations=Activations.NONE, reason=reason)


def _refuse_if_idle(decisions: Sequence[Decision]) -> None:
    if any(decision.weights != "float32" for decision in decisions):
        return
    lines = [f"\n- '{d.module}' ({d.operator}): {d.reason}" for d in decisions]
    shown = "".join(lines[:_SHOWN_REASONS]) or "\n- it has no layers"
    if len(lines) > _SHOWN_REASONS:
        shown += f"\n- … and {len(lines) - _SHOWN_REASONS} more"
    raise QuantizationError(f"the recipe would change nothing in this module on a GPU:{shown}")


def _tell_of_kept(kept: Sequence[Decision]) -> None:
    """Warn of layers that are compressed on a CPU, but not on a GPU."""
    if kept:
        warnings.warn(
            f"{len(kept)} layers keep FP32 on a GPU, such as '{kept[0].module}': {kept[0].reason}",
            TTSCompressWarning,
            stacklevel=8,  # who called `compress`
        )


def _without(recipe: Recipe, decisions: Iterable[Decision]) -> Recipe:
    """Return a recipe that leaves some layers as they are and decides alike about all others."""
    names = (escape(decision.module) for decision in decisions)
    rules = (Rule(match=name) for name in names)
    return recipe.model_copy(update={"component": (*rules, *recipe.component)})


def _layer(
    module: nn.Module, decision: Decision, codes: Mapping[str, Mapping[str, Tensor]]
) -> CompressedLayer:
    geometry = Geometry.of(module)
    try:
        state = layer_state(module, decision)
        if decision.activations == "float8":
            device: torch.device = module.weight.device  # type: ignore[assignment]
            generation, _ = torch.cuda.get_device_capability(device)
            return float8_linear(geometry, state, by_row=generation in _BY_ROW)
        state.update(codes.get(decision.module, {}))
        return int8_linear(geometry, state)
    except QuantizationError as error:
        raise QuantizationError(f"'{decision.module}': {error}") from error
