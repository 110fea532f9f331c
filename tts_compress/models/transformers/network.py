"""The official objects: read from a voice's files, or built empty and then filled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.errors import model_errors
from tts_compress.models.pretrained import (
    CONFIG,
    GENERATION,
    build_empty,
    load_pretrained,
    quiet,
    write_settings,
)
from tts_compress.models.torch_model import WEIGHTS, restore_weights
from tts_compress.models.transformers.files import VOCODER, VoiceSource
from tts_compress.models.transformers.systems import SYSTEMS, System, read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class VoiceNetworks:
    """A voice in memory."""

    root: nn.Module
    """The official model."""

    tokenizer: Callable[[], Any]
    """Returns the official tokenizer, read at the first call: `inspect` needs none."""

    def with_root(self, root: nn.Module) -> "VoiceNetworks":
        """Return another official model with the same tokenizer."""
        return replace(self, root=root)


def load_networks(source: VoiceSource, layers: Sequence[LayerRecord]) -> VoiceNetworks:
    """Read an original, or an artifact whose weights are never larger than stored."""
    directory, system = source.directory, SYSTEMS[source.kind]
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(source, system), layers, directory / WEIGHTS)
    else:
        root = load_pretrained(_official(system.class_name), directory)
        if source.vocoder is not None:
            vocoder = load_pretrained(_official(system.vocoder), source.vocoder)
            root.add_module("vocoder", vocoder)
    return VoiceNetworks(root=root.eval(), tokenizer=cache(lambda: read_tokenizer(directory)))


def build_skeleton(source: VoiceSource, system: System) -> nn.Module:
    """Return the model that an artifact's settings describe, its weights without values."""
    root = _build(source.directory / CONFIG, system.class_name)
    if (path := source.directory / GENERATION).is_file():
        with model_errors(f"'{path}' cannot be read"), quiet():
            read = _official("GenerationConfig").from_pretrained
            settings = read(source.directory, local_files_only=True)
        vars(root)["generation_config"] = settings
    if system.vocoder:
        root.add_module("vocoder", _build(source.vocoder_config, system.vocoder))
    return root.eval()


def _build(path: Path, class_name: str) -> nn.Module:
    official = _official(class_name)
    root: nn.Module = build_empty(
        path, lambda: official.config_class.from_json_file(path), official
    )
    return root


def write_official(root: nn.Module, directory: Path) -> None:
    """Write a model and its vocoder, which is a child of it, as `save_pretrained` writes both."""
    from tts_compress.torch.layers.checkpoint import write_root
    from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

    own, vocoder = copy_sharing_tensors(root), root.get_submodule("vocoder")
    del own.vocoder
    for part, place in ((own, directory), (vocoder, directory / VOCODER)):
        place.mkdir(exist_ok=True)
        write_root(part, place / WEIGHTS)
        write_settings(part, place / CONFIG)


def _official(class_name: str) -> Any:
    """Return the official class; its import says much on standard error."""
    import transformers

    with quiet():
        return getattr(transformers, class_name)
