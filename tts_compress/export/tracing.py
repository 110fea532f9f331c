"""Tracing of a torch module to a checked ONNX graph, and to a file."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import torch
from torch import nn

from tts_compress.artifact import atomic_file
from tts_compress.errors import ArtifactError, ModelError, first_line
from tts_compress.models.interception import intercepted
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, fold_weight_norm

OPSET = 17
"""The first with layer normalisation as one operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of a graph, in order, with their free axes."""

    inputs: Mapping[str, Mapping[int, str]]
    """Names of the free axes of each input, by position."""

    outputs: Mapping[str, Mapping[int, str]]


def trace(
    module: torch.nn.Module, examples: tuple[torch.Tensor, ...], signature: Signature
) -> onnx.ModelProto:
    """Return a module as an ONNX graph of opset 17.

    The tracing exporter is used: the newer one stops at lengths that depend on data, and names
    operators so that their modules are lost.

    Args:
        module: In `eval` mode and FP32.
        examples: Inputs of the call that is traced, one tensor for each.
        signature: Names of inputs and outputs.

    Raises:
        ModelError: The module cannot be expressed, or the exporter made a graph that is not valid.
    """
    free = {**signature.inputs, **signature.outputs}
    with warnings.catch_warnings(), torch.no_grad(), TemporaryDirectory() as directory:
        file = Path(directory) / "graph.onnx"
        warnings.simplefilter("ignore")  # about lengths, and of deprecation
        try:
            torch.onnx.export(
                module,
                examples,
                file,
                opset_version=OPSET,
                input_names=list(signature.inputs),
                output_names=list(signature.outputs),
                dynamic_axes={name: dict(axes) for name, axes in free.items() if axes},
                dynamo=False,
            )
            onnx.checker.check_model(str(file))
        # The module's own code can raise anything while it is traced.
        except Exception as error:
            kind = type(module).__name__
            raise ModelError(f"{kind} cannot be exported to ONNX: {first_line(error)}") from error
        return onnx.load(file)


@contextmanager
def observed(module: nn.Module, method: str, see: Callable[..., None]) -> Iterator[None]:
    """Call `see` with the arguments of a module's method before each call in the block.

    Args:
        module: Left as it was.
        method: Such as `forward` or `decode`.
        see: Called with what the method is called with.
    """

    def call(official: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        see(*arguments, **keywords)
        return official(*arguments, **keywords)

    with intercepted(module, method, call):
        yield


def write_graph(model: onnx.ModelProto, path: Path) -> Path:
    """Write a graph in one step.

    Raises:
        ArtifactError: The file cannot be written.
    """
    with atomic_file(path) as partial:
        try:
            partial.write_bytes(model.SerializeToString(deterministic=True))
        except ValueError as error:  # more than 2 GiB
            raise ArtifactError(f"cannot write '{path}': {error}") from error
    return path


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode with weight norm folded; all other tensors are shared.

    Args:
        module: Not changed.
    """
    shell = copy_sharing_tensors(module).eval()
    fold_weight_norm(shell)
    return shell


def replace_modules(shell: nn.Module, kind: str, make: Callable[[Any], nn.Module]) -> None:
    """Replace every module whose class has a name, whichever package it is from.

    Args:
        shell: A copy; changed in place.
        kind: The class's name.
        make: Returns the replacement of a module.
    """
    for parent in list(shell.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == kind:
                setattr(parent, name, make(child))
