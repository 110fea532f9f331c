"""A model's ONNX graph: a file, or in memory until it is saved."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data

from tts_compress.artifact import MANIFEST_NAME, Manifest, atomic_directory, with_files
from tts_compress.errors import ModelError
from tts_compress.models.onnx_file import read_graph

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["GraphFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFile:
    """Where a graph is, and how it came to be."""

    path: Path
    """The `.onnx` file; of a graph in memory only the name it will have."""

    spec: str
    """What the user named the model by."""

    manifest: Manifest | None = None
    """How it was compressed, if it was."""

    held: onnx.ModelProto | None = None
    """The graph, where it is in memory only."""

    def holding(self, graph: onnx.ModelProto, manifest: Manifest | None) -> GraphFile:
        """Return the same with another graph; nothing is written."""
        return replace(self, held=graph, manifest=manifest)

    def check(self, what: str) -> None:
        """Refuse a path without a file.

        Raises:
            ModelError: There is none, and the graph is not in memory.
        """
        if self.held is None and not self.path.is_file():
            raise ModelError(f"no file '{self.path}'; give an existing {what} (.onnx)")

    def read(self) -> onnx.ModelProto:
        """Return a copy of the graph.

        Raises:
            ModelError: The file is not a readable ONNX file.
        """
        if self.held is None:
            return read_graph(self.path)
        copy = onnx.ModelProto()
        copy.CopyFrom(self.held)
        return copy

    def location(self) -> Path:
        """Return the file.

        Raises:
            ModelError: The graph is only in memory.
        """
        if self.held is not None:
            raise ModelError(f"the compressed '{self.spec}' has no file yet; call save() first")
        return self.path

    def save(self, directory: Path, beside: Mapping[str, Path], *, force: bool) -> Path:
        """Write the graph, copies of other files, and the manifest if there is one, all or nothing.

        Args:
            directory: What to create.
            beside: Other files of the model, by the name they get.
            force: Replace an artifact that is there.

        Returns:
            The directory.

        Raises:
            ArtifactError: The directory exists and `force` is not given, or cannot be written.
        """
        with atomic_directory(directory, marker=MANIFEST_NAME, force=force) as partial:
            self._write(partial / self.path.name)
            for name, source in beside.items():
                shutil.copyfile(source, partial / name)
            if self.manifest is not None:
                manifest = with_files(self.manifest, partial, self.path.name)
                (partial / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
        return directory

    def _write(self, target: Path) -> None:
        if self.held is None and not _is_split(self.path):
            shutil.copyfile(self.path, target)
        else:
            # Weights that lay in files of their own are in the one file afterwards.
            target.write_bytes(self.read().SerializeToString(deterministic=True))


def _is_split(path: Path) -> bool:
    """Return whether an ONNX file keeps weights in other files."""
    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        return False  # not ONNX; copying loses nothing
    return any(uses_external_data(tensor) for tensor in model.graph.initializer)
