"""The official objects: read from a voice's files, or built empty and then filled."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.hooks import RemovableHandle

from tts_compress.artifact import MANIFEST_NAME, LayerRecord
from tts_compress.errors import ModelError, model_errors
from tts_compress.models.files import check_finite
from tts_compress.models.hub_folder import CONFIG, GENERATION
from tts_compress.models.torch_model import WEIGHTS, restore_weights
from tts_compress.models.transformers import bark, fastspeech2, speecht5, vits
from tts_compress.models.transformers.files import VOCODER, VoiceSource
from tts_compress.models.transformers.quiet import quiet
from tts_compress.models.transformers.system import System
from tts_compress.models.transformers.tokens import read_tokenizer

SYSTEMS: dict[str, System] = {
    "bark": bark.SYSTEM,
    "fastspeech2_conformer_with_hifigan": fastspeech2.SYSTEM,
    "speecht5": speecht5.SYSTEM,
    "vits": vits.SYSTEM,
}
"""Kinds of voices, by the `model_type` in `config.json`."""

_MOST_WEIGHTS = 10_000
"""Most weights of a model, each of which may be set twice; Bark's largest has about a thousand."""

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
    directory, system = source.directory, SYSTEMS[source.kind]
    if (directory / MANIFEST_NAME).is_file():
        root = restore_weights(build_skeleton(source, system), layers, directory / WEIGHTS)
    else:
        root = load_official(directory, system.class_name)
        if source.vocoder is not None:
            root.add_module("vocoder", load_official(source.vocoder, system.vocoder))
    return VoiceNetworks(root=root.eval(), tokenizer=cache(lambda: read_tokenizer(directory)))


def load_official(directory: Path, class_name: str) -> nn.Module:
    """Return an official model as `from_pretrained` loads it, in FP32 and `eval` mode."""
    import torch

    with model_errors(f"'{directory}' cannot be loaded"), quiet(), _bounded():
        root, found = _official(class_name).from_pretrained(
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
    """Return the official model of a settings file.

    Parameters are on torch's `meta` device and take no memory; buffers are real.
    """
    from accelerate import init_empty_weights

    with model_errors(f"'{path}' cannot be built"), quiet(), _bounded():
        official = _official(class_name)
        from transformers.initialization import no_init_weights

        config = official.config_class.from_json_file(path)
        with no_init_weights(), init_empty_weights(False):
            built = official(config)
        built.tie_weights()  # what is shared is one tensor, and in the file once
    root: nn.Module = built
    return root


def _bounded() -> RemovableHandle:
    """Return a block in which no model is built whose settings ask for more layers than any has.

    It ends with a `ValueError` otherwise.
    """
    left = iter(range(_MOST_WEIGHTS))

    def count(*_: object) -> None:
        if next(left, None) is None:
            raise ValueError(
                f"its settings make more than {_MOST_WEIGHTS:,} weights; check numbers of layers"
            )

    return register_module_parameter_registration_hook(count)


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


def write_settings(root: Any, path: Path) -> None:
    """Write the settings of an official object as it does; the same model gives the same bytes."""

    def of_the_model(settings: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in settings if name not in _OF_THE_PROCESS}

    text = root.config.to_json_string()
    settings = json.loads(text, object_pairs_hook=of_the_model)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _official(class_name: str) -> Any:
    """Return the official class, whose import says much on standard error."""
    import transformers

    return getattr(transformers, class_name)
