"""The official objects: read from a voice's files, or built empty and then filled."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.files import check_finite
from tts_compress.models.hub_folder import CONFIG
from tts_compress.models.torch_model import WEIGHTS, restore_weights
from tts_compress.models.transformers import vits
from tts_compress.models.transformers.files import VoiceSource
from tts_compress.models.transformers.quiet import quiet
from tts_compress.models.transformers.system import System
from tts_compress.models.transformers.tokens import read_tokenizer

SYSTEMS: dict[str, System] = {"vits": vits.SYSTEM}
"""Kinds of voices, by the `model_type` in `config.json`."""

# What transformers notes of the process that read the model.
_OF_THE_PROCESS = frozenset({"_name_or_path", "_attn_implementation_autoset"})


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
    directory, system = source.directory, SYSTEMS[source.read_config()["model_type"]]
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(directory, system), layers, directory / WEIGHTS)
    else:
        root = load_root(directory, system)
    return VoiceNetworks(root=root.eval(), tokenizer=cache(lambda: read_tokenizer(directory)))


def load_root(directory: Path, system: System) -> nn.Module:
    """Return the official model as `from_pretrained` loads it, in FP32 and `eval` mode."""
    import torch

    with model_errors(f"'{directory}' cannot be loaded"), quiet():
        root, found = _official(system).from_pretrained(
            directory,
            dtype=torch.float32,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    if missing := sorted(found["missing_keys"]):
        raise ModelError(
            f"'{directory}' lacks {len(missing)} weights that its {CONFIG} speaks of, such as "
            f"{missing[0]!r}; fetch it again"
        )
    check_finite(root.named_parameters(), directory)
    loaded: nn.Module = root.float().eval()
    return loaded


def build_skeleton(directory: Path, system: System) -> nn.Module:
    """Return the model that an artifact's settings describe, its weights without values.

    Parameters are on torch's `meta` device and take no memory; buffers are real.
    """
    from accelerate import init_empty_weights

    with model_errors(f"'{directory}' cannot be built"), quiet():
        official = _official(system)
        from transformers.initialization import no_init_weights

        config = official.config_class.from_pretrained(directory, local_files_only=True)
        with no_init_weights(), init_empty_weights(False):
            root: nn.Module = official(config)
    return root.eval()


def write_settings(root: Any, directory: Path) -> None:
    """Write `config.json` as the official object does; the same model gives the same bytes."""

    def of_the_model(settings: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in settings if name not in _OF_THE_PROCESS}

    root.config.save_pretrained(directory)
    path = directory / CONFIG
    settings = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=of_the_model)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _official(system: System) -> Any:
    """Return the official class, whose import says much on standard error."""
    import transformers

    return getattr(transformers, system.class_name)
