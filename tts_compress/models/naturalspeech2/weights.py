"""Checkpoints of tensors by name, read without running what is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError, ModelError, first_line
from tts_compress.models.finite import check_finite
from tts_compress.models.naturalspeech2.upstream import AMPHION

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

__all__ = ["fill", "read_weights"]

_SHOWN = 3


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a `.safetensors`, or of what `torch.save` wrote of a `state_dict`.

    Raises:
        ModelError: The file cannot be read, or holds something else.
        MissingExtraError: A package is not installed.
    """
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        raise MissingExtraError(error.name or "torch", AMPHION.extra) from error
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(found, dict) or not found:
            raise TypeError(f"it holds a {type(found).__name__}, not tensors by name")
        for name, value in found.items():
            if not isinstance(name, str) or not isinstance(value, torch.Tensor):
                raise TypeError(f"{name!r:.60} is a {type(value).__name__}, not a tensor")
    # Arbitrary bytes make the readers fail in arbitrary ways.
    except Exception as error:
        raise ModelError(
            f"'{path}' is no checkpoint that is safe to read: {first_line(error)}"
        ) from error
    return dict(found)


def fill(module: nn.Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give a module, which may be without memory (`meta`), the tensors of a checkpoint, in FP32.

    Args:
        module: Its tensors become those of the checkpoint.
        weights: What `read_weights` returned.
        path: Where from, for errors.

    Raises:
        ModelError: They are not the module's, or not finite.
    """
    wanted = module.state_dict()
    missing = sorted(set(wanted) - set(weights))
    unknown = sorted(set(weights) - set(wanted))
    other = [name for name in wanted if name in weights and _differs(weights[name], wanted[name])]
    problems = [
        f"{len(names)} tensors {what}, such as {', '.join(map(repr, names[:_SHOWN]))}"
        for names, what in (
            (missing, "are missing"),
            (unknown, "are not the model's"),
            (other, "have other shapes"),
        )
        if names
    ]
    if problems:
        raise ModelError(f"'{path}' does not fit its settings: {'; '.join(problems)}")
    check_finite(weights.items(), path)
    kept = {
        name: tensor.float() if tensor.is_floating_point() else tensor
        for name, tensor in weights.items()
    }
    module.load_state_dict(kept, assign=True)


def _differs(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or one.is_floating_point() != other.is_floating_point()
