"""Conversion of an FP32 module by a recipe, with a record of its layers.

The integer layers are for CPUs. On a GPU the same recipes take the linear layers of `layers.gpu`;
everything else of a recipe, 16-bit floats and weights only stored small, is the same everywhere.

Where a recipe's algorithm is Intel Neural Compressor's (`neural_compressor.torch.quantization`), it
is handed one layer at a time: as a whole model it takes only stacks of transformer blocks.
https://github.com/intel/neural-compressor/blob/master/docs/source/3x/PT_WeightOnlyQuant.md
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tts_compress.artifact import LayerRecord
from tts_compress.errors import MissingExtraError, QuantizationError, TTSCompressWarning
from tts_compress.folders import temporary_folder
from tts_compress.numerics.ranges import Range
from tts_compress.numerics.weights import CODE_LIMIT, PAIR_LIMIT, gptq, round_weight
from tts_compress.progress import Progress, counted
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.recipes.recipe import Recipe
from tts_compress.torch.decisions import (
    LayerDecision,
    count_decisions,
    count_layers,
    decide,
    describe_untouched,
)
from tts_compress.torch.devices import FLOAT8_FROM
from tts_compress.torch.layers.base import (
    CompressedLayer,
    build_layer,
    find_layer,
    finite,
    group_scales,
    layer_state,
    pack_nibbles,
    share_weight,
)
from tts_compress.torch.layers.checkpoint import STORED_TYPES
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.module_surgery import (
    copy_with_state,
    normalize,
    redirect,
    refuse_hooks,
    replace_module,
)
from tts_compress.torch.observe import observe_moments, observe_ranges

_EIGHT_BITS = {Activations.DYNAMIC, Activations.STATIC, Activations.FLOAT8}

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
    """Refuse a module that torch.ao or torchao, or `prepare_qat`, made of the FP32 one."""
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


@torch.inference_mode(mode=False)  # tensors that are made in it are of little use outside
@torch.no_grad()
def convert(
    root: nn.Module,
    recipe: Recipe,
    run: Callable[[nn.Module], None] | None,
    *,
    progress: Progress,
) -> Converted:
    """Return a compressed copy of a module, which shares the values of every other parameter.

    On a GPU, linear layers have arithmetic in eight bits. Convolutions keep FP32, because torch has
    no such kernel for them, and a warning states so.

    Args:
        root: A module in FP32; it is not changed.
        recipe: The format of each layer.
        run: Calls a module with calibration data; None where the recipe needs none.
        progress: Receives every layer.
    """
    on_gpu = runs_on_gpu(root, recipe)
    # Without gradients, as it is read from a file: torch's GRU sums in another order with them.
    copy = normalize(copy_with_state(root, learns=False)).eval()
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
    for decision in counted(changed, progress, "compress", len(changed)):
        name, module = decision.module, copy.get_submodule(decision.module)
        if not decision.is_layer:
            round_stored(module, decision.weights, rounded)
            continue
        settings: Any = {"limits": limits.get(name), "codes": codes.get(name)}
        layer = compressed(module, decision, **settings, device="cuda" if on_gpu else "cpu")
        copy = replace_module(copy, name, layer)
    return finish(copy, decisions)


def compressed(
    module: nn.Module,
    decision: LayerDecision,
    *,
    limits: Range | None = None,
    codes: dict[str, Tensor] | None = None,
    device: str = "cpu",
) -> CompressedLayer:
    """Return the layer that replaces a module.

    Args:
        module: The layer in FP32.
        decision: Its format.
        limits: The range of its input, for static activations.
        codes: Codes and scales that an algorithm chose; by default weights are rounded to nearest.
        device: The type of device the layer runs on.
    """
    chosen = (decision.weights, decision.activations)
    settings: Any = {"group_size": decision.group_size, "limits": limits, "device": device}
    try:
        state = layer_state(module, *chosen, **settings) | (codes or {})
        return build_layer(Geometry.of(module), *chosen, state, device=device)
    except QuantizationError as error:
        raise QuantizationError(f"'{decision.module}': {error}") from error


def finish(root: nn.Module, decisions: Sequence[LayerDecision]) -> Converted:
    """Return a finished module with its records, after counting its layers."""
    redirect(root)
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


def refuse_unfit(root: nn.Module, decisions: Sequence[LayerDecision]) -> None:
    """Refuse a module that cannot be compressed, with reasons."""
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
    if any(decision.weights != Weights.FLOAT32 for decision in decisions):
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
    """
    kind = STORED_TYPES[weights]
    for name, parameter in list(module.named_parameters(recurse=False)):
        if id(parameter) not in done:
            values = finite(parameter, kind).to(parameter.dtype)
            rounded = nn.Parameter(values, requires_grad=False)
            done[id(parameter)] = done[id(rounded)] = rounded
        setattr(module, name, done[id(parameter)])


def runs_on_gpu(root: nn.Module, recipe: Recipe) -> bool:
    """Return True if a recipe asks for arithmetic in eight bits and the module lies on a GPU."""
    devices = _devices(root)
    asked = {rule.activations for rule in recipe.component} & _EIGHT_BITS
    if Activations.FLOAT8 in asked:
        _check_float8(devices)
    if not asked or all(device.type != "cuda" for device in devices):
        return False
    if Activations.STATIC in asked:
        raise QuantizationError(
            f"'{recipe.scheme}' rounds activations with fixed ranges, which is for CPUs; "
            "on a GPU take 'int8-dynamic'"
        )
    if any(device.type != "cuda" for device in devices):
        shown = ", ".join(sorted(map(str, devices)))
        raise QuantizationError(f"the module lies on {shown}; move all of it to the GPU, or none")
    return True


def fit_to_gpu(root: nn.Module, decisions: Sequence[LayerDecision]) -> tuple[LayerDecision, ...]:
    """Return the decisions, with FP32 and a reason where no kernel of a GPU carries one out."""
    fitted = []
    for decision in decisions:
        geometry, reason = Geometry.of(root.get_submodule(decision.module)), ""
        layer = find_layer(geometry, decision.weights, decision.activations, device="cuda")
        if layer is not None:
            reason = layer.objection(geometry, decision.group_size)
        elif decision.is_layer:
            reason = f"there is no {decision.operator} in integers on a GPU"
        fp32: Any = {"weights": Weights.FLOAT32, "activations": Activations.NONE, "reason": reason}
        fitted.append(replace(decision, **fp32) if reason else decision)
    return tuple(fitted)


def warn_of_kept(decisions: Sequence[LayerDecision], fitted: Sequence[LayerDecision]) -> None:
    """Warn of layers that are compressed on a CPU, but not on a GPU."""
    kept = [new for old, new in zip(decisions, fitted, strict=True) if new is not old]
    if kept:
        warnings.warn(
            f"{len(kept)} layers keep FP32 on a GPU, such as '{kept[0].module}': {kept[0].reason}",
            TTSCompressWarning,
            stacklevel=8,  # the caller of `compress`
        )


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
        version = torch.cuda.get_device_capability(device)
        if version < FLOAT8_FROM:
            shown = ".".join(map(str, version))
            raise QuantizationError(f"{needed}; {device} has {shown}: take 'int8' or 'fp16'")


_Codes: TypeAlias = tuple[Tensor, Tensor]
"""Codes and their scales."""

_DAMPING = 0.01
"""Share of the mean of the moments' diagonal that is added to it; Neural Compressor's default."""


def _gptq_codes(weight: Tensor, moments: Tensor | None, layer: LayerDecision) -> _Codes:
    assert moments is not None
    if layer.weights == Weights.INT4:
        scales = group_scales(weight, layer.group_size)
        return gptq(weight, moments, scales, (-8, 7)), scales
    multiplied = layer.activations != Activations.NONE
    _, scales = round_weight(weight, 0, multiplied=multiplied)
    pair_limit = PAIR_LIMIT if multiplied else None
    limits = (-CODE_LIMIT, CODE_LIMIT)
    return gptq(weight, moments, scales.unsqueeze(1), limits, pair_limit=pair_limit), scales


_OBSERVING = {Algorithm.GPTQ, Algorithm.INC_GPTQ}
"""Algorithms that need the moments."""


def choose_codes(
    root: nn.Module,
    decisions: Sequence[LayerDecision],
    run: Callable[[nn.Module], None],
    *,
    progress: Progress,
) -> dict[str, dict[str, Tensor]]:
    """Return codes and scales of the linear layers whose recipe names another algorithm than `rtn`.

    Every layer is calibrated on its inputs in the FP32 module, so that the codes do not depend
    on how many passes memory takes.

    Args:
        root: The module in FP32, with finite weights; it is not changed.
        decisions: For its layers.
        run: Calls the module with calibration data, the same in every pass.
        progress: Receives every layer; `run` reports the calibration.

    Returns:
        By layer, `weight` and `weight_scale` as a compressed layer's state has them.
    """
    chosen = {
        d.module: d
        for d in decisions
        if d.is_layer and d.operator == "Linear" and d.algorithm != Algorithm.RTN
    }
    observed = [name for name, d in chosen.items() if d.algorithm in _OBSERVING]
    unobserved = tuple(name for name in chosen if name not in observed)
    states: dict[str, dict[str, Tensor]] = {}
    for names, moments in chain([(unobserved, None)], observe_moments(root, observed, run)):
        for name in names:
            progress.advance("round", len(states), len(chosen))
            weight: Tensor = root.get_submodule(name).weight.detach().float()  # type: ignore[operator]
            layer = chosen[name]
            if layer.algorithm == Algorithm.GPTQ:
                codes, scales = _gptq_codes(weight, moments, layer)
            else:
                codes, scales = inc_codes(weight, moments, layer.group_size)
            packed = pack_nibbles(codes) if layer.weights == Weights.INT4 else codes
            states[name] = {"weight": packed, "weight_scale": scales}
    if chosen:
        progress.advance("round", len(chosen), len(chosen))
    return states


def inc_codes(weight: Tensor, moments: Tensor | None, group: int) -> _Codes:
    """Return the codes and scales that Neural Compressor chooses for a linear layer.

    Args:
        weight: `[outputs, inputs]`, FP32, finite; `inputs` is a multiple of `group`.
        moments: Σ x xᵀ of the layer's inputs for its GPTQ; None for its rounding to nearest.
        group: Inputs that share a scale.

    Returns:
        Codes, int8 in [-8, 7], `[outputs, inputs]`; and scales rounded to bfloat16,
        `[outputs, inputs / group]`.
    """
    # It keeps scales in float16, where small ones lose digits; powers of two lose none anywhere.
    _, exponents = torch.frexp(weight.abs().amax(1, keepdim=True))
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    # A copy: it works in place.
    layer.weight = nn.Parameter(torch.ldexp(weight, -exponents), requires_grad=False)
    shell: Any = _Shell({"stack": nn.ModuleList([_Block({"layer": layer})])})
    settings = {"dtype": "int", "bits": 4, "use_sym": True, "group_size": group}
    with _package() as quantization:
        if moments is None:
            shell = quantization.prepare(shell, quantization.RTNConfig(**settings))
        else:
            # `model_path` keeps it from looking for a checkpoint to download.
            config = quantization.GPTQConfig(**settings, percdamp=0.0, model_path=".")
            shell = quantization.prepare(shell, config)
            shell(_inputs_with(moments))
        packed = quantization.convert(shell).stack[0].layer
    codes, scales = _unpack(packed)
    if codes.shape != weight.shape or scales.shape != (len(weight), weight.shape[1] // group):
        raise QuantizationError(
            f"neural_compressor returned codes of shape {tuple(codes.shape)} and scales of shape "
            f"{tuple(scales.shape)} for a weight of shape {tuple(weight.shape)}; use 'gptq'"
        )
    return codes, torch.ldexp(scales, exponents).to(torch.bfloat16)


class _Block(nn.ModuleDict):
    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self["layer"](inputs)
        return outputs


class _Shell(nn.ModuleDict):
    """A layer as the only block of a stack, the structure that its GPTQ looks for."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.get_submodule("stack.0")(inputs)
        return outputs


def _inputs_with(moments: Tensor) -> Tensor:
    """Return as many rows as there are inputs with these moments, all that GPTQ uses of inputs.

    They are damped here, so that no input is always zero: GPTQ would set its weights to 0.
    """
    damped = moments.double()
    mean = damped.diagonal().mean()
    damped = damped / mean if mean > 0 else torch.zeros_like(damped)
    damped.diagonal().add_(_DAMPING)
    rows: Tensor = torch.linalg.cholesky(damped, upper=True)
    return rows.float()


def _unpack(packed: Any) -> _Codes:
    parts = packed.unpack()
    codes = parts["int_weight"].to(torch.int32) - parts["zp"].to(torch.int32).repeat_interleave(
        packed.group_size, 1
    )
    if int(codes.min()) < -8 or int(codes.max()) > 7:
        raise QuantizationError(
            f"neural_compressor returned codes from {int(codes.min())} to {int(codes.max())} in "
            "the place of four bits; use 'gptq'"
        )
    return codes.to(torch.int8), parts["scales"].float()


@contextmanager
def _package() -> Iterator[Any]:
    """Import the package without its log of every layer and the folder it leaves behind."""
    before = logging.root.manager.disable
    # It makes its folder in the current directory, on import and later.
    with temporary_folder() as folder, chdir(folder):
        logging.disable(logging.WARNING)  # its own logger does not exist before the import
        try:
            yield import_module("neural_compressor.torch.quantization")
        except ModuleNotFoundError as error:
            raise MissingExtraError(error.name or "neural_compressor", "inc") from error
        finally:
            logging.disable(before)
