"""From a torch module to a checked ONNX graph, and to a file that is never seen half-written."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import onnx
import torch

from tts_compress.errors import ArtifactError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OPSET", "Signature", "trace", "write_graph"]

OPSET = 17
"""The first with layer normalisation as one operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a graph takes and gives, in order, and which axes are free."""

    inputs: Mapping[str, Mapping[int, str]]
    """For each input the names of its free axes, by position."""

    outputs: Mapping[str, Mapping[int, str]]


def trace(
    module: torch.nn.Module, examples: tuple[torch.Tensor, ...], signature: Signature
) -> onnx.ModelProto:
    """Return a module as an ONNX graph of opset 17.

    The exporter is the one that follows a call: the newer one stops at lengths that depend on
    data, and names operators so that their modules are lost.

    Args:
        module: What is called; in `eval` mode and FP32.
        examples: A call to follow, one tensor for each input.
        signature: Names of inputs and outputs.

    Raises:
        ModelError: The module cannot be expressed, or the exporter made a graph that is not valid.
    """
    free = {**signature.inputs, **signature.outputs}
    with warnings.catch_warnings(), torch.no_grad(), TemporaryDirectory() as directory:
        file = Path(directory) / "graph.onnx"
        warnings.simplefilter("ignore")  # of the tracer about lengths, and of deprecation
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
        # Whatever the module's own code raises while it is followed.
        except Exception as error:
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            kind = type(module).__name__
            raise ModelError(f"{kind} cannot be exported to ONNX: {reason}") from error
        return onnx.load(file)


def write_graph(model: onnx.ModelProto, path: Path) -> Path:
    """Write a graph in one step.

    Raises:
        ArtifactError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_bytes(model.SerializeToString(deterministic=True))
        partial.replace(path)
    except (OSError, ValueError) as error:  # more than 2 GiB is a ValueError
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise ArtifactError(f"cannot write '{path}': {error}") from error
    return path
