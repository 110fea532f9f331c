"""Bare ONNX graphs: vocoders and other parts of a system, called with arrays instead of texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_compress.models.base import ModelFiles
from tts_compress.models.feeds import graph_inputs
from tts_compress.models.onnx_components import find_components

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx

    from tts_compress.artifact import Manifest
    from tts_compress.models.base import Component
    from tts_compress.models.graph_file import GraphFile

__all__ = ["FAMILY", "OnnxModel"]

FAMILY = "onnx"


class OnnxModel:
    """An ONNX graph of which nothing is known but its inputs and outputs.

    Args:
        file: The `.onnx` file or the graph.

    Raises:
        ModelError: There is no such file.
    """

    family = FAMILY

    def __init__(self, file: GraphFile) -> None:
        file.check("ONNX graph")
        self._file = file

    @property
    def spec(self) -> str:
        """What the user named the graph by."""
        return self._file.spec

    @property
    def manifest(self) -> Manifest | None:
        """How it was compressed; None for an original."""
        return self._file.manifest

    def graph(self) -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not a readable ONNX file.
        """
        return self._file.read()

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> OnnxModel:
        """Return this model with another graph; nothing is written."""
        return OnnxModel(self._file.holding(graph, manifest))

    def components(self) -> Mapping[str, Component]:
        """Return the components that hold weights, in the order data flows.

        A component is the first part of its modules' names; operators without one are `unnamed`.
        """
        return find_components(self.graph().graph)

    def describe(self) -> Mapping[str, Any]:
        """Return what `inspect` shows beside the components."""
        model = self.graph()
        inputs = ", ".join(str(expected) for expected in graph_inputs(model).values())
        outputs = ", ".join(value.name for value in model.graph.output)
        return {"inputs": inputs, "outputs": outputs}

    def files(self) -> ModelFiles:
        """Return the `.onnx` file.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """
        return ModelFiles(weights=(self._file.location(),))

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write `<name>.onnx` and the manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        return self._file.save(Path(directory), {}, force=force)
