"""Tracing of a torch module to a checked ONNX graph, and to a file."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from tts_compress.artifact import atomic_file
from tts_compress.errors import ModelError, first_line
from tts_compress.models.interception import intercepted
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors, fold_weight_norm

OPSET = 17
"""The first with layer normalisation as one operator."""


Axes = Mapping[str, Mapping[int, str]]
"""Names of the free axes, by position, of each input or output in order."""


def write_graph(
    module: nn.Module, examples: tuple[torch.Tensor, ...], inputs: Axes, outputs: Axes, path: Path
) -> Path:
    """Write a module as an ONNX graph of opset 17, and return the path.

    The tracing exporter is used: the newer one stops at lengths that depend on data, and names
    operators so that their modules are lost.

    Args:
        module: In `eval` mode and FP32.
        examples: Inputs of the call that is traced, one tensor for each.
        inputs: Names and free axes of the inputs.
        outputs: Names and free axes of the outputs.
        path: The `.onnx` file.
    """
    free, graph = {**inputs, **outputs}, BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about lengths, and of deprecation
        try:
            torch.onnx.export(
                module,
                examples,
                graph,  # type: ignore[arg-type]  # the tracing exporter takes it
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: dict(axes) for name, axes in free.items() if axes},
                dynamo=False,
            )
            onnx.checker.check_model(graph.getvalue())
        # The module's own code can raise anything while it is traced.
        except Exception as error:
            kind = type(module).__name__
            raise ModelError(f"{kind} cannot be exported to ONNX: {first_line(error)}") from error
    with atomic_file(path) as partial:
        partial.write_bytes(graph.getvalue())
    return path


def observed(
    module: nn.Module, method: str, see: Callable[..., None]
) -> AbstractContextManager[None]:
    """Call `see` with the arguments of a module's method before each call in the block.

    Args:
        module: Left as it was.
        method: Such as `forward` or `decode`.
        see: Called with what the method is called with.
    """

    def call(official: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        see(*arguments, **keywords)
        return official(*arguments, **keywords)

    return intercepted(module, method, call)


def copy_shell(module: nn.Module) -> nn.Module:
    """Return a copy in `eval` mode with weight norm folded; all other tensors are shared.

    Args:
        module: Not changed.
    """
    shell = copy_sharing_tensors(module).eval()
    fold_weight_norm(shell)
    return shell
