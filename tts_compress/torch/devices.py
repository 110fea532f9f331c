"""Devices of torch: found by name, what lies on them, and how products in FP32 are computed there.

A model's device is that of its tensors: whatever calls it asks `device_of`, and moves its inputs.
"""

from itertools import chain
from typing import Literal, TypeAlias

import torch
from torch import nn

from tts_compress.errors import ModelError
from tts_compress.torch.layers.base import CompressedLayer, build_layer, find_layer, walk_layers
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, replace_module

Precision: TypeAlias = Literal["highest", "high", "medium"]
"""Precisions of FP32 products: FP32, TF32 or three bfloat16 products, one bfloat16 product."""

CPU = torch.device("cpu")

FLOAT8_FROM = (8, 9)
"""The first compute capability with 8-bit floats."""


def find_device(name: str) -> torch.device:
    """Return the device of a name: `cpu`, `cuda`, `cuda:N`, or `auto`, a GPU where there is one.

    Raises:
        ModelError: There is no such device here.
    """
    kind, _, number = name.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "cpu" or (name == "auto" and not gpus):
        return CPU
    if name not in {"auto", "cuda"} and not (kind == "cuda" and number.isdecimal()):
        raise ModelError(f"no device {name!r:.40}; accepted: cpu, cuda, cuda:N and auto")
    if not gpus:
        raise ModelError(
            f"there is no CUDA device for torch {torch.__version__}, so none is {name!r}; take "
            "'cpu' or 'auto', or install a build of torch for CUDA where there is an NVIDIA GPU"
        )
    index = int(number) if number else torch.cuda.current_device()
    if index >= gpus:
        raise ModelError(f"there is no {name!r}; there are 'cuda:0' to 'cuda:{gpus - 1}'")
    return torch.device("cuda", index)


def has_float8() -> bool:
    """Return True if a GPU of this machine multiplies 8-bit floats."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    capabilities = map(torch.cuda.get_device_capability, range(gpus))
    return torch.version.hip is None and any(each >= FLOAT8_FROM for each in capabilities)


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's tensors, all of which lie on one."""
    tensors = chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), CPU)


def moved(root: nn.Module, device: torch.device) -> nn.Module:
    """Return a copy of a tree of modules on a device, with the compressed layers that run there.

    The given one stays as it is, and shares the tensors that lay there before.

    Raises:
        ModelError: No layer of a format runs there.
    """
    copy = copy_sharing_tensors(root)
    for name, part in list(walk_layers(copy)):
        if not isinstance(part, CompressedLayer):
            continue
        geometry, chosen = part.geometry, (part.weights, part.activations)
        kind = find_layer(geometry, *chosen, device=device.type)
        if kind is None or kind.objection(geometry, 0):
            raise ModelError(
                f"'{name}' is a {geometry.operator} of {chosen[0]} weights and {chosen[1]} "
                f"activations, which nothing computes on {device.type!r}; move the original there "
                "and compress it again, or use int8-weight-only, fp16 or bf16"
            )
        if kind is not type(part):
            state = {key: value.to(device) for key, value in part.state().items()}
            layer = build_layer(geometry, *chosen, state, device=device.type)
            copy = replace_module(copy, name, layer)
    return copy_sharing_tensors(copy, lambda tensor: _on(tensor, device))


def _on(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; a parameter stays one, and what has no values stays there."""
    if tensor.is_meta:
        return tensor
    with torch.no_grad():
        placed = tensor.to(device)
    if not isinstance(tensor, nn.Parameter) or placed is tensor:
        return placed
    return nn.Parameter(placed, requires_grad=tensor.requires_grad)


def set_precision(wanted: Precision, device: torch.device) -> None:
    """Set how this process computes products in FP32.

    Convolutions on a GPU, which torch computes in TF32 by default, follow it.
    """
    torch.set_float32_matmul_precision(wanted)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = wanted != "highest"
