"""From a module in FP32 and a recipe to a compressed one, with a record of what was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from tts_compress.errors import QuantizationError
from tts_compress.torch.decisions import (
    Decision,
    count_decisions,
    count_layers,
    decide,
    describe_untouched,
)
from tts_compress.torch.layers.base import CompressedLayer, Geometry
from tts_compress.torch.layers.build import build_layer, is_layer, layer_state
from tts_compress.torch.layers.structure import prepare, replace_module, share
from tts_compress.torch.observe import observe_ranges
from tts_compress.torch.weight_codes import choose_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from tts_compress.artifact import LayerRecord
    from tts_compress.numerics.histogram import Range
    from tts_compress.progress import Progress
    from tts_compress.recipes.formats import Weights
    from tts_compress.recipes.recipe import Recipe

    Run = Callable[[nn.Module], None]

__all__ = ["Converted", "convert", "finish", "refuse_unfit", "round_stored"]

_STORED: dict[str, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_SHOWN_REASONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A compressed module."""

    root: nn.Module
    layers: tuple[LayerRecord, ...]
    counts: Mapping[str, int]
    """Layers by decision, counted in the finished module."""


@torch.no_grad()
def convert(root: nn.Module, recipe: Recipe, run: Run | None, *, progress: Progress) -> Converted:
    """Return a compressed copy of a module, which shares every other tensor with it.

    Args:
        root: A module in FP32; it is not changed.
        recipe: What happens to which layer.
        run: Calls a module with calibration data; None where the recipe needs none.
        progress: Is told of every layer.

    Raises:
        QuantizationError: The recipe does not fit the module, or the finished module does not
            hold what the recipe promises.
    """
    copy = prepare(share(root)).eval()
    decisions = decide(copy, recipe)
    refuse_unfit(copy, decisions)
    limits = _limits(copy, decisions, recipe, run)
    codes = choose_codes(copy, decisions, run, progress=progress)
    changed = [d for d in decisions if d.weights != "float32"]
    rounded: dict[int, nn.Parameter] = {}
    for done, decision in enumerate(changed):
        progress.advance("compress", done, len(changed))
        if is_layer(decision):
            copy = _exchange(copy, decision, limits, codes)
        else:
            round_stored(copy.get_submodule(decision.module), decision.weights, rounded)
    progress.advance("compress", len(changed), len(changed))
    return finish(copy, decisions)


def finish(root: nn.Module, decisions: Sequence[Decision]) -> Converted:
    """Return what was made of a module, after counting its layers.

    Raises:
        QuantizationError: They are not what was decided.
    """
    promised, held = count_decisions(decisions), count_layers(root, decisions)
    if promised != held:
        raise QuantizationError(
            f"the finished module holds {dict(held)}, but the recipe promises {dict(promised)}; "
            "please report this model"
        )
    return Converted(
        root=root,
        layers=tuple(decision.record() for decision in decisions),
        counts=dict(sorted(held.items())),
    )


def refuse_unfit(root: nn.Module, decisions: Sequence[Decision]) -> None:
    """Refuse what cannot be compressed, with reasons.

    Raises:
        QuantizationError: The module is compressed already, has no weights in memory, or has none
            that the decisions would change.
    """
    if any(isinstance(module, CompressedLayer) for module in root.modules()):
        raise QuantizationError("the module is already compressed; compress the original")
    if any(parameter.is_meta for parameter in root.parameters()):
        raise QuantizationError("the module's weights are on the meta device: load them first")
    if any(decision.weights != "float32" for decision in decisions):
        return
    reasons = describe_untouched(root, decisions)
    shown = "".join(f"\n- {reason}" for reason in reasons[:_SHOWN_REASONS])
    if len(reasons) > _SHOWN_REASONS:
        shown += f"\n- … and {len(reasons) - _SHOWN_REASONS} more"
    raise QuantizationError(f"the recipe would change nothing in this module:{shown}")


def _limits(
    root: nn.Module, decisions: Sequence[Decision], recipe: Recipe, run: Run | None
) -> dict[str, Range]:
    static = [d.module for d in decisions if d.activations == "static"]
    if not static:
        return {}
    assert recipe.calibration is not None, "a recipe with static activations has one"
    assert run is not None
    return observe_ranges(root, static, run, recipe.calibration)


def _exchange(
    root: nn.Module,
    decision: Decision,
    limits: Mapping[str, Range],
    codes: Mapping[str, Mapping[str, Tensor]],
) -> nn.Module:
    module = root.get_submodule(decision.module)
    try:
        state = layer_state(
            module, decision, group=decision.group, limits=limits.get(decision.module)
        )
    except QuantizationError as error:
        raise QuantizationError(f"'{decision.module}': {error}") from error
    state.update(codes.get(decision.module, {}))
    layer = build_layer(Geometry.of(module), decision, state)
    return replace_module(root, decision.module, layer)


def round_stored(module: nn.Module, weights: Weights, done: dict[int, nn.Parameter]) -> None:
    """Give a module the weights that a file of another type will give it back.

    Args:
        module: Whose own parameters are rounded.
        weights: The type in the file, `float16` or `bfloat16`.
        done: Those rounded before, by the original's identity: what modules share stays shared.

    Raises:
        QuantizationError: A weight is too large for the type.
    """
    kind = _STORED[weights]
    for name, parameter in list(module.named_parameters(recurse=False)):
        if id(parameter) not in done:
            values = parameter.to(kind).to(parameter.dtype)
            if not torch.isfinite(values).all():
                largest = parameter.abs().max()
                raise QuantizationError(f"a weight of {largest:g} is too large for {kind}")
            made = nn.Parameter(values, requires_grad=False)
            done[id(parameter)] = done[id(made)] = made
        setattr(module, name, done[id(parameter)])
