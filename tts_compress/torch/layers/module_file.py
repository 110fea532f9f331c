"""A compressed module as one safetensors file that describes its own layers."""

import json
import math
from dataclasses import asdict
from pathlib import Path

from torch import nn

from tts_compress.artifact import LayerRecord, atomic_file
from tts_compress.errors import ArtifactError, ModelError
from tts_compress.torch.layers.base import CompressedLayer, walk_layers
from tts_compress.torch.layers.checkpoint import TensorFile, restore_root, write_root

_KEY = "tts_compress.layers"  # a key of the file format, whatever this package is called


def save_module(module: nn.Module, path: Path | str, *, force: bool = False) -> Path:
    """Write a module that `compress` returned; no pickle, and all or nothing.

    Args:
        module: A compressed module.
        path: The file, usually `.safetensors`.
        force: Replace an existing file.

    Raises:
        ArtifactError: The file exists and `force` is not given, or cannot be written.
        ModelError: The module is not compressed.
        MissingExtraError: safetensors is not installed.
    """
    target = Path(path)
    if target.exists() and not force:
        raise ArtifactError(f"'{target}' exists; give force=True to replace it")
    layers = [
        LayerRecord(
            module=name,
            operator=part.geometry.operator,
            weights=part.weights,
            activations=part.activations,
            parameters=math.prod(part.geometry.shape),
        )
        for name, part in walk_layers(module)
        if isinstance(part, CompressedLayer)
    ]
    if not layers:
        raise ModelError("the module has no compressed layer; give one that `compress` returned")
    stated = json.dumps([asdict(layer) for layer in layers])
    with atomic_file(target) as partial:
        write_root(module, partial, metadata={_KEY: stated})
    return target


def load_module(original: nn.Module, path: Path | str) -> nn.Module:
    """Return the compressed module of a file.

    Args:
        original: The module as its class builds it, with any weights or, to save memory, none
            (`with torch.device("meta")`); it is filled in place.
        path: The file that `save_module` wrote.

    Returns:
        The module, in `eval` mode.

    Raises:
        ArtifactError: The file cannot be read, or holds another module.
    """
    source = Path(path)
    try:
        rows = json.loads(TensorFile(source).metadata[_KEY])
        layers = [LayerRecord(**row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"'{source}' was not written by save_module ({error})") from error
    return restore_root(original, layers, source).eval()
