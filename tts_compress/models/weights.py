"""Files of tensors by name, read without running their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError, first_line
from tts_compress.models.packages import import_package

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from torch import Tensor


def check_finite(weights: Iterable[tuple[str, Tensor]], where: Path | str) -> None:
    """Refuse weights with an infinite value or NaN, as a damaged file has them.

    Args:
        weights: Tensors with their names.
        where: Origin of the weights, for errors.

    Raises:
        ModelError: A value is not finite.
    """
    for name, tensor in weights:
        if not tensor.isfinite().all():
            raise ModelError(f"'{where}': weight '{name}' has values that are not finite")


def read_tensors(path: Path, extra: str) -> dict[str, Tensor]:
    """Return the tensors of a `.safetensors`, or of what `torch.save` wrote of a `state_dict`.

    Args:
        path: The file.
        extra: The extra of this project that installs torch and safetensors.

    Raises:
        ModelError: The file cannot be read, or holds something else.
        MissingExtraError: A package is not installed.
    """
    torch = import_package("torch", extra)
    read = import_package("safetensors.torch", extra).load_file
    try:
        if path.suffix == ".safetensors":
            found: Any = read(path)
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
