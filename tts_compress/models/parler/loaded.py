"""What of a Parler-TTS model is in memory, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tts_compress.models.lazy import Lazy
from tts_compress.models.parler.network import build_skeleton, load_root
from tts_compress.models.parler.tables import compute_tables
from tts_compress.models.parler.tokenizers import load_tokenizers
from tts_compress.models.saved import WEIGHTS

if TYPE_CHECKING:
    from torch import nn

    from tts_compress.artifact import Manifest
    from tts_compress.models.parler.source import ParlerSource
    from tts_compress.models.parler.tokenizers import Tokenizers

__all__ = ["Loaded", "load_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory."""

    root: nn.Module
    """The official `ParlerTTSForConditionalGeneration`."""

    tokenizers: Lazy[Tokenizers]
    """Read when a text is, which looking into a model does without."""

    def with_root(self, root: nn.Module) -> Loaded:
        """Return another official object with the same tokenizers."""
        return replace(self, root=root)


def load_source(source: ParlerSource, manifest: Manifest | None) -> Loaded:
    """Read an original, or an artifact whose weights never become larger than they are stored.

    Args:
        source: The files.
        manifest: How it was compressed; None for an original.

    Raises:
        ModelError: The files cannot be read, or do not fit each other.
        ArtifactError: An artifact's weights are not those of its settings.
        MissingExtraError: A package is not installed.
    """
    root = load_root(source) if manifest is None else _restore(source, manifest)
    tokenizers = Lazy(lambda: load_tokenizers(source.directory, source.read_config()))
    return Loaded(root=root, tokenizers=tokenizers)


def _restore(source: ParlerSource, manifest: Manifest) -> nn.Module:
    from tts_compress.torch.layers.checkpoint import TensorFile, restore_root

    path = source.directory / WEIGHTS
    root = compute_tables(build_skeleton(source.directory), TensorFile(path).names)
    restore_root(root, manifest.layers, path)
    return root
