"""A tree of modules, compressed or not, as one safetensors file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tts_compress.errors import ArtifactError, MissingExtraError
from tts_compress.torch.layers.base import CompressedLayer, Geometry, operator_of
from tts_compress.torch.layers.build import build_layer, is_layer
from tts_compress.torch.layers.memory import release_freed
from tts_compress.torch.layers.structure import prepare, replace_module
from tts_compress.torch.layers.tensors_file import TensorsFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tts_compress.artifact import LayerRecord

__all__ = ["restore_root", "stored_bytes", "write_root"]

_STORED = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def write_root(
    root: nn.Module,
    path: Path,
    layers: Sequence[LayerRecord] = (),
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write every tensor of a tree of modules.

    Args:
        root: What to write; tensors that modules share are written once.
        path: The file.
        layers: What was decided for its layers; some only say how a file stores them.
        metadata: One entry of text to write beside the tensors, in place of the format that
            transformers asks for; safetensors writes several in an order of chance.

    Raises:
        ArtifactError: The file cannot be written.
        MissingExtraError: safetensors is not installed.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtraError("safetensors", "torch") from error
    halved = {
        layer.module: _STORED[layer.weights]
        for layer in layers
        if layer.weights in _STORED and not is_layer(layer)
    }
    tensors = {
        f"{module}.{name}" if module else name: _stored(tensor, halved.get(module))
        for module, name, tensor in _tensors(root)
    }
    try:
        save_file(tensors, path, metadata=dict(metadata or {"format": "pt"}))
    except SafetensorError as error:  # a full disk, a folder that is not there
        raise ArtifactError(f"cannot write '{path}': {error}") from error
    path.chmod(0o644)  # the library makes files that only their owner can read


def restore_root(root: nn.Module, layers: Sequence[LayerRecord], path: Path) -> nn.Module:
    """Fill a tree of modules from a file that `write_root` wrote, in place.

    Weights are read one by one, and what is compressed never becomes FP32: the peak of memory is
    the file's size and its largest tensor.

    Args:
        root: The modules as the system builds them, without memory (`meta`) where they can be.
        layers: What was decided for its layers; empty if it is not compressed.
        path: The file.

    Returns:
        The root; another module only if the root itself is a layer that is compressed.

    Raises:
        ArtifactError: The file's tensors are not those of the modules.
    """
    file = TensorsFile(path)
    if layers:
        root = prepare(root)
    used: set[str] = set()
    for layer in layers:
        if not is_layer(layer):
            continue
        prefix = f"{layer.module}." if layer.module else ""
        state = {name: file.read(prefix + name) for name in _STATE if prefix + name in file.names}
        used |= {prefix + name for name in state}
        module = _find(root, layer, path)
        try:
            built = build_layer(Geometry.of(module), layer, state)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ArtifactError(f"'{path}': layer '{layer.module}': {error}") from error
        root = replace_module(root, layer.module, built)
        del state
        release_freed()
    _fill(root, file, used, path)
    return root


def stored_bytes(module: nn.Module) -> int:
    """Return what the tensors of a tree of modules take in memory, packed codes included."""
    return sum(tensor.nbytes for _, _, tensor in _tensors(module))


_STATE = ("weight", "weight_scale", "bias", "input_scale", "input_zero_point")


def _find(root: nn.Module, layer: LayerRecord, path: Path) -> nn.Module:
    try:
        module = root.get_submodule(layer.module)
    except AttributeError:
        module = None
    if module is None or operator_of(module) != layer.operator:
        raise ArtifactError(
            f"'{path}': the system has no {layer.operator} '{layer.module}'; "
            "it was compressed with another version of the system's package"
        )
    return module


def _fill(root: nn.Module, file: TensorsFile, used: set[str], path: Path) -> None:
    """Give every tensor that is not a compressed layer's its values."""
    left = set(file.names) - used
    # One that several modules share is filled once and given to all of them.
    filled: dict[int, Tensor] = {}
    for name, module in root.named_modules():
        if isinstance(module, CompressedLayer):
            continue
        for key, tensor, is_parameter in _own(module):
            if id(tensor) not in filled:
                full = f"{name}.{key}" if name else key
                values = file.read(full).to(tensor.dtype)
                if values.shape != tensor.shape:
                    raise ArtifactError(f"'{path}': tensor {full!r} has another shape")
                left.discard(full)
                made = nn.Parameter(values, requires_grad=False) if is_parameter else values
                filled[id(tensor)] = made
                filled[id(made)] = made
            holder = module._parameters if is_parameter else module._buffers  # noqa: SLF001
            holder[key] = filled[id(tensor)]
    if left:
        raise ArtifactError(f"'{path}' holds tensors the system does not have: {sorted(left)[:3]}")


def _own(module: nn.Module) -> list[tuple[str, Tensor, bool]]:
    """Return a module's own parameters and persistent buffers."""
    hidden = module._non_persistent_buffers_set  # noqa: SLF001
    found = [(k, t, True) for k, t in module._parameters.items() if t is not None]  # noqa: SLF001
    buffers = module._buffers.items()  # noqa: SLF001
    return found + [(k, t, False) for k, t in buffers if t is not None and k not in hidden]


def _tensors(root: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield module, name and tensor of everything a file keeps; shared tensors once."""
    seen: set[int] = set()
    inside: set[str] = set()
    for module_name, module in root.named_modules():
        if module_name.rpartition(".")[0] in inside:
            inside.add(module_name)
            continue  # a part of a compressed layer
        if isinstance(module, CompressedLayer):
            inside.add(module_name)
            for name, tensor in module.state().items():
                yield module_name, name, tensor
            continue
        for name, tensor, _ in _own(module):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield module_name, name, tensor.detach()


def _stored(tensor: Tensor, kind: torch.dtype | None) -> Tensor:
    kept = tensor.to(kind) if kind is not None and tensor.is_floating_point() else tensor
    return kept.cpu().contiguous()
