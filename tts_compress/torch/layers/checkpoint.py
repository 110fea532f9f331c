"""A tree of modules, compressed or not, as one safetensors file."""

import ctypes
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.artifact import LayerRecord, Manifest, atomic_file
from tts_compress.errors import ArtifactError, ModelError, needing, raising, reason
from tts_compress.reading import MOST_WEIGHTS_BYTES, check_file, parse_json
from tts_compress.torch.layers.base import CompressedLayer, build_layer, is_layer, walk_layers
from tts_compress.torch.layers.geometry import Geometry, bias_of, operator_of, tied_layers
from tts_compress.torch.layers.module_surgery import normalize, redirect, replace_module

STORED_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
"""Formats that change only how a file stores the weights."""

_MAPPED_BYTES = 1 << 22
"""Bytes to read through one memory map."""


def import_safetensors() -> Any:
    """Return the package `safetensors`, with its module `torch`."""
    with needing("torch"):
        import safetensors.torch
    return safetensors


class TensorFile:
    """A safetensors file whose tensors are copied one by one.

    The library maps the file into memory, and the pages that were read count as the process's own
    until the map is closed: through one map, loading would take twice the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self.metadata: dict[str, str] = self._map.metadata() or {}
        """The texts that were written beside the tensors."""

        self.names = frozenset(self._map.keys())
        """The names of the tensors."""

    def read(self, name: str) -> Tensor:
        """Return a copy of a tensor."""
        if name not in self.names:
            raise ArtifactError(
                f"'{self._path}' holds no tensor {name!r}; compress the model again"
            )
        if self._read_bytes > _MAPPED_BYTES:
            self._open()
        # Types that torch lacks, thousands of axes: errors of several kinds.
        problem = f"'{self._path}': tensor {name!r:.60} cannot be read"
        with raising(ArtifactError, problem, Exception):
            copy: Tensor = self._map.get_tensor(name).clone()
        self._read_bytes += copy.nbytes
        return copy

    def _open(self) -> None:
        package = import_safetensors()
        try:
            check_file(self._path, MOST_WEIGHTS_BYTES)
            self._map = package.safe_open(self._path, framework="pt")
        except (OSError, ValueError, package.SafetensorError) as error:
            raise ArtifactError(
                f"'{self._path}' is not a readable safetensors file ({reason(error)}); "
                "compress the model again"
            ) from error
        self._read_bytes = 0


def write_root(
    root: nn.Module,
    path: Path,
    layers: Sequence[LayerRecord] = (),
    *,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write every tensor of a tree of modules.

    Args:
        root: The modules; tensors that they share are written once.
        path: The file.
        layers: The decisions for its layers; some only concern how a file stores them.
        metadata: One text to write beside the tensors, in place of the format that transformers
            asks for; safetensors would write several in random order.
    """
    package = import_safetensors()
    halved = {
        layer.module: STORED_TYPES[layer.weights]
        for layer in layers
        if layer.weights in STORED_TYPES and not is_layer(layer.weights, layer.activations)
    }
    tensors, memory = {}, set()
    for module, name, tensor in _tensors(root):
        kind = halved.get(module) if tensor.is_floating_point() else None
        values = tensor.to(kind or tensor.dtype).cpu().contiguous()
        start = values.untyped_storage().data_ptr()  # the library refuses to write one twice
        tensors[_join(module, name)] = values.clone() if start in memory else values
        memory.add(start)
    with raising(ArtifactError, f"cannot write '{path}'", package.SafetensorError):
        package.torch.save_file(tensors, path, metadata=dict(metadata or {"format": "pt"}))
    path.chmod(0o644)  # the library makes files that only their owner can read


def restore_root(root: nn.Module, layers: Sequence[LayerRecord], path: Path) -> nn.Module:
    """Fill a tree of modules from a file that `write_root` wrote, in place.

    Weights are read one by one, and compressed ones never become FP32: the peak of memory is
    the file's size and its largest tensor.

    Args:
        root: The modules as the system builds them, without memory (`meta`) where they can be.
        layers: The decisions for its layers; empty if it is not compressed.
        path: The file.

    Returns:
        The root; another module only if the root itself is a layer that is compressed.
    """
    file = TensorFile(path)
    if layers:
        root = normalize(root)
    used: set[str] = set()
    built: dict[str, CompressedLayer] = {}
    tied = tied_layers(root)
    biased = {name for name, m in root.named_modules() if operator_of(m) and bias_of(m) is not None}
    geometries = {name: Geometry.of(m) for name, m in root.named_modules() if operator_of(m)}
    for layer in layers:
        if not is_layer(layer.weights, layer.activations):
            continue
        geometry = geometries.get(layer.module)
        if geometry is None or geometry.operator != layer.operator:
            raise ArtifactError(
                f"'{path}': the system has no {layer.operator} '{layer.module}'; it was made of "
                "another module, or by another version of the system's package"
            )
        names = {name: _join(layer.module, name) for name in _STATE}
        state = {name: file.read(full) for name, full in names.items() if full in file.names}
        used.update(names[name] for name in state)
        if (leader := built.get(tied.get(layer.module, ""))) and "weight" not in state:
            state = {k: v for k, v in leader.state().items() if k != "bias"} | state
        if ("bias" in state) != (layer.module in biased):
            problem = "lacks the" if layer.module in biased else "has a"
            raise ArtifactError(
                f"'{path}' {problem} bias of layer '{layer.module}'; compress the model again"
            )
        problem, causes = f"'{path}': layer '{layer.module}'", (KeyError, RuntimeError, ValueError)
        with raising(ArtifactError, problem, *causes):
            part = build_layer(geometry, layer.weights, layer.activations, state)
        root = replace_module(root, layer.module, part)
        built[layer.module] = part
        del state
        _release_freed_memory()
    redirect(root)
    _fill(root, file, used, path)
    return root


def save_module(module: nn.Module, path: Path | str, *, force: bool = False) -> Path:
    """Write a module that `compress` returned; no pickle, and all or nothing.

    Args:
        module: A compressed module.
        path: The file, usually `.safetensors`.
        force: Replace an existing file.

    Raises:
        ArtifactError: The file exists and `force` is not given, or cannot be written.
        ModelError: The module is not compressed, or has a state besides its tensors.
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
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ModelError(
                f"'{name}' ({type(part).__name__}) has a state besides its tensors "
                "(get_extra_state), which the file would lose; use torch.save(module, path)"
            )
    content = {"layers": [asdict(layer) for layer in layers]}
    if (manifest := vars(module).get(_MANIFEST)) is not None:
        content["manifest"] = manifest.to_json()
    with atomic_file(target) as partial:
        write_root(module, partial, metadata={_KEY: json.dumps(content)})
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
        ModelError: It is no module, or has buffers without values that no file holds.
    """
    if not isinstance(original, nn.Module):
        raise ModelError(
            f"give a module to fill, such as Net(), and the path; not {original!r:.80}"
        )
    source = Path(path)
    try:
        stated = parse_json(TensorFile(source).metadata[_KEY])
        content = stated if isinstance(stated, dict) else {"layers": stated}  # of older releases
        layers = [LayerRecord(**row) for row in content["layers"]]
        manifest = Manifest.from_json(content["manifest"]) if "manifest" in content else None
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"'{source}' was not written by save_module ({error})") from error
    module = restore_root(original, layers, source).eval()
    if hollow := [name for name, buffer in module.named_buffers() if buffer.is_meta]:
        raise ModelError(
            f"the file holds no values of the buffer '{hollow[0]}' (persistent=False), and there "
            "are none on the meta device; build the module without torch.device('meta')"
        )
    return module if manifest is None else with_manifest(module, manifest)


def with_manifest(module: nn.Module, manifest: Manifest) -> nn.Module:
    """Return a module that carries the record of its compression."""
    vars(module)[_MANIFEST] = manifest
    return module


def manifest_of(module: nn.Module) -> Manifest:
    """Return the record of how a module was compressed: each part's format, or why it is FP32.

    Args:
        module: What `compress` or `load_module` returned, itself, not a part of it.

    Raises:
        ModelError: It carries no record.
    """
    manifest = vars(module).get(_MANIFEST)
    if not isinstance(manifest, Manifest):
        raise ModelError(
            f"this {type(module).__name__} carries no record of a compression; give what "
            "`compress` or `load_module` returned"
        )
    return manifest


def stored_bytes(module: nn.Module) -> int:
    """Return the size of the tensors of a tree of modules in memory, packed codes included."""
    return sum(tensor.nbytes for _, _, tensor in _tensors(module))


_KEY = "tts_compress.layers"  # a key of the file format, whatever this package is called
_MANIFEST = "_tts_compress_manifest"
_STATE = ("weight", "weight_scale", "bias", "input_scale", "input_zero_point")


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def _fill(root: nn.Module, file: TensorFile, used: set[str], path: Path) -> None:
    """Give every tensor outside of compressed layers its values."""
    left = set(file.names) - used
    # One that several modules share is filled once and given to all of them.
    filled: dict[int, Tensor] = {}
    for name, module in walk_layers(root):
        if isinstance(module, CompressedLayer):
            continue
        for key, tensor in _own(module):
            is_parameter = isinstance(tensor, nn.Parameter)
            if id(tensor) not in filled:
                full = _join(name, key)
                values = file.read(full).to(tensor.dtype)
                if values.shape != tensor.shape:
                    raise ArtifactError(f"'{path}': tensor {full!r} has another shape")
                left.discard(full)
                new = nn.Parameter(values, requires_grad=False) if is_parameter else values
                filled[id(tensor)] = filled[id(new)] = new
            holder: dict[str, Any] = module._parameters if is_parameter else module._buffers  # noqa: SLF001
            holder[key] = filled[id(tensor)]
    if left:
        raise ArtifactError(f"'{path}' holds tensors the system does not have: {sorted(left)[:3]}")


def _own(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return a module's own parameters and persistent buffers."""
    hidden = module._non_persistent_buffers_set  # noqa: SLF001
    held: list[tuple[str, Tensor | None]] = list(module._parameters.items())  # noqa: SLF001
    held += [(k, t) for k, t in module._buffers.items() if k not in hidden]  # noqa: SLF001
    return [(key, tensor) for key, tensor in held if tensor is not None]


def _tensors(root: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield module, name and tensor of everything a file keeps; shared tensors once."""
    seen: set[int] = set()
    for module_name, module in walk_layers(root):
        if isinstance(module, CompressedLayer):
            # Only what a layer holds: what is made for this call leaves its id to others.
            held = {id(tensor) for tensor in module.buffers(recurse=False)}
            for name, tensor in module.state().items():
                if id(tensor) not in seen:
                    yield module_name, name, tensor
                seen |= {id(tensor)} & held
            continue
        for name, tensor in _own(module):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield module_name, name, tensor.detach()


def _release_freed_memory() -> None:
    """Return freed memory to the operating system, where the C library keeps it for later.

    Packing a layer needs its codes three times for a moment; glibc keeps the holes that are left,
    and without this a loaded model takes far more than its file.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:  # musl has none, and needs none
            trim(0)
