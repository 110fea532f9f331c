"""A compressed module as one safetensors file that says itself what it holds."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tts_compress.artifact import LayerRecord
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.checkpoint import restore_root, write_root
from tts_compress.torch.layers.tensors_file import TensorsFile

if TYPE_CHECKING:
    from torch import nn

__all__ = ["load_module", "save_module"]

_KEY = "tts_compress.layers"  # of the file format, whatever this package is called


def save_module(module: nn.Module, path: Path | str, *, force: bool = False) -> Path:
    """Write what `compress` made of a module; no pickle, and all or nothing.

    Args:
        module: A compressed module.
        path: The file, by custom `.safetensors`.
        force: Replace a file that is there.

    Raises:
        ArtifactError: The file exists and `force` is not given, or cannot be written.
        ModelError: The module is not compressed.
        MissingExtraError: safetensors is not installed.
    """
    target = Path(path)
    if target.exists() and not force:
        raise ArtifactError(f"'{target}' exists; give force=True to replace it")
    layers = _layers(module)
    if not layers:
        raise ModelError("the module has no compressed layer; give one that `compress` returned")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        stated = json.dumps([asdict(layer) for layer in layers])
        write_root(module, partial, metadata={_KEY: stated})
        partial.replace(target)
    except OSError as error:
        raise ArtifactError(f"cannot write '{target}': {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def load_module(original: nn.Module, path: Path | str) -> nn.Module:
    """Return the compressed module of a file.

    Args:
        original: The module as its class builds it, with any weights or, to save memory, none
            (`with torch.device("meta")`); it is filled in place.
        path: What `save_module` wrote.

    Returns:
        The module, in `eval` mode.

    Raises:
        ArtifactError: The file cannot be read, or holds another module.
    """
    source = Path(path)
    try:
        rows = json.loads(TensorsFile(source).metadata[_KEY])
        layers = [LayerRecord(**row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"'{source}' was not written by save_module ({error})") from error
    return restore_root(original, layers, source).eval()


def _layers(module: nn.Module) -> list[LayerRecord]:
    found: list[LayerRecord] = []
    inside: tuple[str, ...] = ()  # what a compressed layer consists of
    for name, part in module.named_modules():
        if isinstance(part, CompressedLayer) and not name.startswith(inside):
            inside = (*inside, f"{name}.")
            record = LayerRecord(
                module=name,
                operator=part.geometry.operator,
                weights=part.weights,
                activations=part.activations,
                parameters=math.prod(part.geometry.shape),
            )
            found.append(record)
            if not name:  # the module is itself a layer
                break
    return found
