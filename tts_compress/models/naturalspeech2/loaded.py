"""What of a NaturalSpeech2 model is in memory, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tts_compress.models.naturalspeech2.network import (
    load_inference,
    restore_inference,
    root_of,
    with_modules,
)
from tts_compress.models.naturalspeech2.package import Official

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tts_compress.artifact import LayerRecord
    from tts_compress.models.naturalspeech2.settings import NS2Settings
    from tts_compress.models.naturalspeech2.source import NS2Source

__all__ = ["Loaded", "load_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory."""

    official: Official
    """Upstream's modules."""

    settings: NS2Settings

    inference: Any
    """The official `NS2Inference`."""

    @property
    def root(self) -> nn.Module:
        """The module that holds the model's parts and `codec`."""
        return root_of(self.inference)

    def with_root(self, root: nn.Module) -> Loaded:
        """Return an official object with other modules; this one stays as it is."""
        return replace(self, inference=with_modules(self.inference, root))


def load_source(source: NS2Source, layers: Sequence[LayerRecord]) -> Loaded:
    """Read a checkpoint, or a saved model whose weights are never larger than stored.

    Args:
        source: The files.
        layers: What was decided for the model's layers.

    Raises:
        ModelError: No clone is named, or a file cannot be read or does not fit the others.
        ArtifactError: A saved model's weights are not those of its settings.
        MissingExtraError: A package is not installed.
    """
    official = Official()
    settings = source.settings(official.clone)
    if source.is_saved:
        inference = restore_inference(official, source, settings, layers)
    else:
        inference = load_inference(official, source, settings)
    return Loaded(official=official, settings=settings, inference=inference)
