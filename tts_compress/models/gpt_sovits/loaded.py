"""What of a model is in memory, and how it gets there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tts_compress.models.gpt_sovits.settings import SETTINGS, read_settings, sample_rate_of
from tts_compress.models.gpt_sovits.weights import read_sovits
from tts_compress.models.torch_model import WEIGHTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tts_compress.artifact import LayerRecord
    from tts_compress.models.gpt_sovits.package import Official
    from tts_compress.models.gpt_sovits.settings import GptSovitsSettings
    from tts_compress.models.gpt_sovits.source import GptSovitsSource

__all__ = ["Loaded", "load_source", "peek_sample_rate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in memory."""

    official: Official
    """Upstream's modules."""

    settings: GptSovitsSettings
    root: nn.Module
    tokenizer: Any
    """The text encoder's."""

    def with_root(self, root: nn.Module) -> Loaded:
        """Return the same with other networks."""
        return replace(self, root=root)


def peek_sample_rate(source: GptSovitsSource) -> int:
    """Return how many samples per second a model speaks, Hz; weights are not read.

    Raises:
        ModelError: Its settings cannot be read or state none.
    """
    if source.directory is not None:
        return read_settings(source.directory / SETTINGS).sample_rate
    assert source.stated is not None, "a model that is no artifact is in upstream's files"
    config = read_sovits(source.stated.sovits, mapped=True).config
    return sample_rate_of(source.version, config)


def load_source(source: GptSovitsSource, layers: Sequence[LayerRecord]) -> Loaded:
    """Read an original, or an artifact whose weights never become larger than they are stored.

    Args:
        source: The files.
        layers: What was decided for the model's layers.

    Raises:
        ModelError: No clone is named, or a file cannot be read or does not fit the others.
        ArtifactError: An artifact's weights are not those of its settings.
        MissingExtraError: A package is not installed.
    """
    from tts_compress.models.gpt_sovits.loading import load_networks, load_tokenizer
    from tts_compress.models.gpt_sovits.network import build_skeleton
    from tts_compress.models.gpt_sovits.package import load_official
    from tts_compress.torch.layers.checkpoint import restore_root

    official = load_official()
    if source.directory is None:
        settings, root = load_networks(official, source)
        tokenizer = load_tokenizer(source.bert())
    else:
        settings = read_settings(source.directory / SETTINGS)
        skeleton = build_skeleton(official, settings)
        root = restore_root(skeleton, layers, source.directory / WEIGHTS)
        tokenizer = load_tokenizer(source.directory)
    return Loaded(official=official, settings=settings, root=root, tokenizer=tokenizer)
