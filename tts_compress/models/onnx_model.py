"""Bare ONNX graphs: vocoders and other parts of a system, called with arrays instead of texts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from tts_compress.artifact import MANIFEST_NAME, atomic_directory, with_files
from tts_compress.errors import ModelError
from tts_compress.models.feeds import graph_inputs
from tts_compress.models.onnx_components import find_components
from tts_compress.models.onnx_file import read_graph

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tts_compress.artifact import Manifest
    from tts_compress.models.base import Component

__all__ = ["FAMILY", "OnnxModel"]

FAMILY = "onnx"


class OnnxModel:
    """An ONNX graph of which nothing is known but its inputs and outputs.

    Args:
        path: The `.onnx` file; where `graph` is given only its name is used.
        spec: What the user named it by.
        manifest: How it was compressed, if it was.
        graph: The graph, of a model that is in memory only.

    Raises:
        ModelError: There is no such file.
    """

    family = FAMILY

    def __init__(
        self,
        path: Path,
        *,
        spec: str,
        manifest: Manifest | None = None,
        graph: onnx.ModelProto | None = None,
    ) -> None:
        if graph is None and not path.is_file():
            raise ModelError(f"no file '{path}'; give an existing ONNX graph (.onnx)")
        self._path = path
        self._graph = graph
        self.spec = spec
        self.manifest = manifest

    def graph(self) -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not a readable ONNX file.
        """
        if self._graph is None:
            return read_graph(self._path)
        copy = onnx.ModelProto()
        copy.CopyFrom(self._graph)
        return copy

    def with_graph(self, graph: onnx.ModelProto, manifest: Manifest) -> OnnxModel:
        """Return this model with another graph; nothing is written."""
        return OnnxModel(self._path, spec=self.spec, manifest=manifest, graph=graph)

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

    def model_file(self) -> Path:
        """Return the `.onnx` file.

        Raises:
            ModelError: The model was compressed in memory and not saved yet.
        """
        if self._graph is not None:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self._path

    def save(self, directory: Path | str, *, force: bool = False) -> Path:
        """Write `<name>.onnx` and the manifest, all or nothing.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        target, file_name = Path(directory), self._path.name
        with atomic_directory(target, marker=MANIFEST_NAME, force=force) as partial:
            if self._graph is None:
                shutil.copyfile(self._path, partial / file_name)
            else:
                content = self._graph.SerializeToString(deterministic=True)
                (partial / file_name).write_bytes(content)
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, file_name)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return target
