"""Conversion of an FP32 module by a recipe, with a record of its layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from tts_compress.artifact import LayerRecord
from tts_compress.errors import QuantizationError
from tts_compress.progress import Progress
from tts_compress.recipes.formats import Activations, Weights
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.decisions import (
    Decision,
    count_decisions,
    count_layers,
    decide,
    describe_untouched,
)
from tts_compress.torch.gpu import fit_to_gpu, runs_on_gpu, warn_of_kept
from tts_compress.torch.layers.base import CompressedLayer, build_layer, layer_state, share_weight
from tts_compress.torch.layers.checkpoint import STORED_TYPES
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.module_surgery import (
    copy_sharing_tensors,
    normalize,
    refuse_hooks,
    replace_module,
)
from tts_compress.torch.observe import observe_ranges
from tts_compress.torch.weight_codes import choose_codes

_STAGES = (
    (".qat", "prepared for training"),
    ("fake_quantize", "prepared for training"),
    ("observer", "prepared for calibration"),
    ("quantiz", "quantized"),
)
"""Parts of the names of packages whose layers or tensors a quantizer leaves, and what it did."""

_HARMLESS = ("torch.ao.quantization.stubs", "torch.ao.nn.intrinsic.modules")
"""`QuantStub` and `DeQuantStub`, which compute nothing, and fused layers, which are in FP32."""


def refuse_foreign(root: nn.Module) -> None:
    """Refuse a module that torch.ao or torchao, or `prepare_qat`, made of the FP32 one.

    Raises:
        QuantizationError: It holds a layer, an observer or a tensor of theirs.
    """
    tensors = ((name, parameter.data) for name, parameter in root.named_parameters())
    for name, part in chain(root.named_modules(), tensors):
        home, kind = type(part).__module__, type(part).__name__
        if home.startswith("tts_compress.qat."):
            raise QuantizationError(
                f"the module was prepared by prepare_qat ('{name}' is a {kind}); give what "
                "prepare_qat returned to convert_qat"
            )
        if not home.startswith(("torch.ao.", "torchao.")) or home.startswith(_HARMLESS):
            continue
        for mark, stage in _STAGES:
            if mark in home:
                raise QuantizationError(
                    f"the module was {stage} by {'.'.join(home.split('.')[:2])} ('{name}' is a "
                    f"{kind}); give the FP32 module it was made from, in which QuantStub and "
                    "DeQuantStub may stay: compress, or prepare_qat and convert_qat, take the "
                    "place of torch's own"
                )


_SHOWN_REASONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A compressed module."""

    root: nn.Module
    layers: tuple[LayerRecord, ...]
    counts: Mapping[str, int]
    """Layers by operator and format, counted in the finished module."""


@torch.no_grad()
def convert(
    root: nn.Module,
    recipe: Recipe,
    run: Callable[[nn.Module], None] | None,
    *,
    progress: Progress,
) -> Converted:
    """Return a compressed copy of a module, which shares every other tensor with it.

    On a GPU, linear layers with arithmetic in eight bits are torchao's. Convolutions with it keep
    FP32: torchao has none, and a warning states so.

    Args:
        root: A module in FP32; it is not changed.
        recipe: The format of each layer.
        run: Calls a module with calibration data; None where the recipe needs none.
        progress: Receives every layer.

    Raises:
        QuantizationError: The recipe does not fit the module, or the finished module does not
            hold what the recipe promises.
        MissingExtraError: A package is not installed.
    """
    on_gpu = runs_on_gpu(root, recipe)
    copy = normalize(copy_sharing_tensors(root)).eval()
    asked = decide(copy, recipe)
    decisions = fit_to_gpu(copy, asked) if on_gpu else asked
    refuse_unfit(copy, decisions)
    warn_of_kept(asked, decisions)
    static = [d.module for d in decisions if d.activations == Activations.STATIC]
    run = run or (lambda _: None)  # nothing is observed then
    limits = {}
    if static:
        assert recipe.calibration is not None, "a recipe with static activations has one"
        limits = observe_ranges(copy, static, run, recipe.calibration)
    codes = choose_codes(copy, decisions, run, progress=progress)
    changed = [d for d in decisions if d.weights != Weights.FLOAT32]
    rounded: dict[int, nn.Parameter] = {}
    for done, decision in enumerate(changed):
        progress.advance("compress", done, len(changed))
        name, module = decision.module, copy.get_submodule(decision.module)
        if not decision.is_layer:
            round_stored(module, decision.weights, rounded)
            continue
        chosen, device = (decision.weights, decision.activations), "cuda" if on_gpu else "cpu"
        settings: Any = {"group_size": decision.group_size, "limits": limits.get(name)}
        state = layer_state(module, *chosen, **settings, device=device) | codes.get(name, {})
        layer = build_layer(Geometry.of(module), *chosen, state, device=device)
        copy = replace_module(copy, name, layer)
    progress.advance("compress", len(changed), len(changed))
    return finish(copy, decisions)


def finish(root: nn.Module, decisions: Sequence[Decision]) -> Converted:
    """Return a finished module with its records, after counting its layers.

    Raises:
        QuantizationError: They are not what was decided.
    """
    for decision in decisions:
        if decision.tied and decision.is_layer:
            leader = root.get_submodule(decision.tied)
            share_weight(leader, root.get_submodule(decision.module))
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
    """Refuse a module that cannot be compressed, with reasons.

    Raises:
        QuantizationError: The module is compressed already, has no weights in memory or some that
            are not finite, or has none that the decisions would change.
    """
    if any(isinstance(module, CompressedLayer) for module in root.modules()):
        raise QuantizationError("the module is already compressed; compress the original")
    refuse_foreign(root)
    if any(parameter.is_meta for parameter in root.parameters()):
        raise QuantizationError("the module's weights are on the meta device: load them first")
    for name, parameter in root.named_parameters():
        if not torch.isfinite(parameter).all():
            raise QuantizationError(
                f"'{name}': a weight or bias is not finite; the checkpoint is damaged"
            )
    for decision in decisions:
        if decision.is_layer:
            refuse_hooks(root.get_submodule(decision.module), decision.module)
    changed = [decision.module for decision in decisions if decision.weights != Weights.FLOAT32]
    if changed:
        return
    reasons = describe_untouched(root, decisions)
    shown = "".join(f"\n- {reason}" for reason in reasons[:_SHOWN_REASONS])
    if len(reasons) > _SHOWN_REASONS:
        shown += f"\n- … and {len(reasons) - _SHOWN_REASONS} more"
    raise QuantizationError(f"the recipe would change nothing in this module:{shown}")


def round_stored(module: nn.Module, weights: str, done: dict[int, nn.Parameter]) -> None:
    """Round a module's own parameters to the type that a file will store them in.

    Args:
        module: The module, changed in place.
        weights: The type in the file, `float16` or `bfloat16`.
        done: Parameters rounded before, by the original's identity: what modules share stays
            shared.

    Raises:
        QuantizationError: A weight is too large for the type.
    """
    kind = STORED_TYPES[weights]
    for name, parameter in list(module.named_parameters(recurse=False)):
        if id(parameter) not in done:
            values = parameter.to(kind).to(parameter.dtype)
            if not torch.isfinite(values).all():
                largest = parameter.abs().max()
                raise QuantizationError(f"a weight of {largest:g} is too large for {kind}")
            made = nn.Parameter(values, requires_grad=False)
            done[id(parameter)] = done[id(made)] = made
        setattr(module, name, done[id(parameter)])
