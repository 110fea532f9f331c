"""What every saved model of a system in torch has: a file of weights, and a manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tts_compress.artifact import MANIFEST_NAME, read_manifest
from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from tts_compress.artifact import LayerRecord, Manifest

__all__ = ["WEIGHTS", "find_manifest", "layers_of"]

WEIGHTS = "model.safetensors"
"""The file with the weights of all components."""


def find_manifest(directory: Path, family: str) -> Manifest | None:
    """Return what the manifest in a folder says; None for a folder without one.

    Raises:
        ModelError: It is of another family.
        ArtifactError: It cannot be read, or a file that it names was altered.
    """
    if not (directory / MANIFEST_NAME).is_file():
        return None
    manifest = read_manifest(directory)
    if manifest.family != family:
        raise ModelError(f"'{directory}' is an artifact of family {manifest.family!r}")
    return manifest


def layers_of(manifest: Manifest | None) -> tuple[LayerRecord, ...]:
    """Return what was decided for a model's layers; nothing for an original's."""
    return () if manifest is None else manifest.layers
