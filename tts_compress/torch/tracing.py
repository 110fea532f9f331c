"""Torch modules as ONNX graphs, by the tracing exporter."""

import warnings
from collections.abc import Mapping
from io import BytesIO
from typing import Any, TypeAlias

import torch
from torch import nn

Axes: TypeAlias = Mapping[str, Mapping[int, str]]
"""Names of the free axes, by position, of each input or output in order."""


def trace(
    module: nn.Module, examples: tuple[Any, ...], inputs: Axes, outputs: Axes, opset: int
) -> bytes:
    """Return the file of a module's graph.

    The newer exporter stops at lengths that depend on data, and names operators so that their
    modules are lost.

    Args:
        module: In `eval` mode and FP32; its own code can raise anything while it is traced.
        examples: Inputs of the call that is traced.
        inputs: Names and free axes of the inputs.
        outputs: Names and free axes of the outputs.
        opset: Version of the standard operators.
    """
    free, graph = {**inputs, **outputs}, BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about lengths, and of deprecation
        torch.onnx.export(
            module,
            examples,
            graph,  # type: ignore[arg-type]  # the tracing exporter takes it
            opset_version=opset,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_axes={name: dict(axes) for name, axes in free.items() if axes},
            dynamo=False,
        )
    return graph.getvalue()
