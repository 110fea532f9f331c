"""What of an F5-TTS model is in memory, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tts_compress.models.f5.network import load_official, restore_official, root_of, with_modules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tts_compress.artifact import LayerRecord
    from tts_compress.models.f5.files import F5Source

__all__ = ["Loaded", "load_source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory."""

    api: Any
    """The official `f5_tts.api.F5TTS`."""

    @property
    def root(self) -> nn.Module:
        """The module that holds `transformer` and `vocoder`."""
        return root_of(self.api)

    def with_root(self, root: nn.Module) -> Loaded:
        """Return an official object with other modules; this one stays as it is."""
        return Loaded(api=with_modules(self.api, root))


def load_source(source: F5Source, layers: Sequence[LayerRecord]) -> Loaded:
    """Read upstream's own files, or a saved model whose weights are never larger than stored.

    Args:
        source: The files.
        layers: What was decided for the model's layers.

    Raises:
        ModelError: The files cannot be read, or do not fit each other.
        ArtifactError: A saved model's weights are not those of its settings.
        MissingExtraError: A package is not installed.
    """
    if source.paths.vocoder_weights is None:
        return Loaded(api=restore_official(source.paths, source.config, layers))
    return Loaded(api=load_official(source.paths, source.config))
