"""Codes of weights that are chosen by an algorithm other than rounding each to nearest.

Intel Neural Compressor (`neural_compressor.torch.quantization`) is handed one layer at a time: as a
whole model it takes only stacks of transformer blocks.
https://github.com/intel/neural-compressor/blob/master/docs/source/3x/PT_WeightOnlyQuant.md
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from importlib import import_module
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tts_compress.errors import MissingExtraError, QuantizationError
from tts_compress.folders import temporary_folder
from tts_compress.numerics.weights import CODE_LIMIT, PAIR_LIMIT, gptq, round_weight
from tts_compress.progress import Progress
from tts_compress.recipes.formats import Activations, Algorithm, Weights
from tts_compress.torch.decisions import LayerDecision
from tts_compress.torch.layers.codes import group_scales, pack_nibbles
from tts_compress.torch.observe import observe_moments

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
