"""Fine-tuned v3 and v4: changes of low rank to a pretrained synthesizer, added to its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.torch_file import ZIP

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from tts_compress.models.gpt_sovits.weights import SovitsWeights

__all__ = ["merge_lora"]

_WRAPPED = "cfm.base_model.model."
"""What `peft`, which training wraps the estimator in, puts before its names."""

_DOWN, _UP = ".lora_A.default.weight", ".lora_B.default.weight"


def merge_lora(changes: SovitsWeights, base: SovitsWeights) -> SovitsWeights:
    """Return a whole synthesizer: W + B A where there are changes A and B to a weight W, in FP32.

    Upstream trains with `lora_alpha` equal to the rank, so nothing is scaled. What training did
    not freeze replaces the base's.

    Args:
        changes: What `read_sovits` returns with a `lora_rank`.
        base: The pretrained synthesizer they were trained on.

    Raises:
        ModelError: A change has no counterpart, or they are changes to another network.
    """
    tensors = dict(base.tensors)
    for name, tensor in changes.tensors.items():
        if name.endswith(_UP):
            _partner(changes, name, _UP, _DOWN)
        elif name.endswith(_DOWN):
            up = _partner(changes, name, _DOWN, _UP)
            target = f"{_unwrapped(name.removesuffix(_DOWN))}.weight"
            old = _existing(tensors, target, (up.shape[0], tensor.shape[1]))
            tensors[target] = old.float() + up.float() @ tensor.float()
        else:
            target = _unwrapped(name).replace(".base_layer.", ".")
            _existing(tensors, target, tuple(tensor.shape))
            tensors[target] = tensor
    return replace(changes, tensors=tensors, header=ZIP, lora_rank=None)


def _partner(changes: SovitsWeights, name: str, end: str, other: str) -> torch.Tensor:
    """Return the other factor of a change."""
    partner = changes.tensors.get(name.removesuffix(end) + other)
    this, rank = changes.tensors[name], changes.lora_rank
    matrices = partner is not None and this.ndim == partner.ndim == 2
    inner = 0 if end == _DOWN else 1
    if partner is None or not matrices or {this.shape[inner], partner.shape[1 - inner]} != {rank}:
        raise ModelError(
            f"the LoRA weight '{name}' has no counterpart '{other}' of rank {rank}; fetch the "
            "file again"
        )
    return partner


def _unwrapped(name: str) -> str:
    return f"cfm.{name.removeprefix(_WRAPPED)}" if name.startswith(_WRAPPED) else name


def _existing(
    tensors: Mapping[str, torch.Tensor], name: str, shape: tuple[int, ...]
) -> torch.Tensor:
    found = tensors.get(name)
    if found is None or tuple(found.shape) != shape:
        has = "none" if found is None else f"one of shape {tuple(found.shape)}"
        raise ModelError(
            f"the LoRA weights change '{name}' of shape {shape}, and the pretrained SoVITS model "
            f"has {has}; they were trained on another one"
        )
    return found
