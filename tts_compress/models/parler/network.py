"""The official Parler-TTS object: read from its files, or built without memory and then filled."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from tts_compress.artifact import LayerRecord
from tts_compress.errors import ModelError, first_line
from tts_compress.models.files import check_finite
from tts_compress.models.parler.package import load_packages, quiet
from tts_compress.models.parler.source import CONFIG, GENERATION, ParlerSource
from tts_compress.models.parler.tokenizers import Tokenizers, load_tokenizers
from tts_compress.models.torch_model import WEIGHTS, Table, restore_weights

_TABLE = "embed_positions.weights"
# What `transformers` notes of the process that read the model: where its files lay, what ran first.
_OF_THE_PROCESS = frozenset({"_name_or_path", "_attn_implementation_autoset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParlerNetworks:
    """A Parler-TTS model in memory."""

    root: nn.Module
    """The official `ParlerTTSForConditionalGeneration`."""

    tokenizers: Callable[[], Tokenizers]
    """Returns them, read at the first call: `inspect` needs none."""

    def with_root(self, root: nn.Module) -> "ParlerNetworks":
        """Return another official object with the same tokenizers."""
        return replace(self, root=root)


def load_networks(source: ParlerSource, layers: Sequence[LayerRecord]) -> ParlerNetworks:
    """Read an original, or an artifact whose weights are never larger than stored."""
    if source.is_artifact:
        skeleton = build_skeleton(source.directory)
        root = restore_weights(skeleton, layers, source.directory / WEIGHTS, find_tables)
    else:
        root = load_root(source)
    tokenizers = cache(lambda: load_tokenizers(source.directory, source.read_config()))
    return ParlerNetworks(root=root, tokenizers=tokenizers)


def find_tables(root: nn.Module) -> Iterator[Table]:
    """Yield the tables of positions, which are sines; in Parler-TTS mini one takes 17 MB."""
    for path, module in root.named_modules():
        if type(module).__name__ == "ParlerTTSSinusoidalPositionalEmbedding":
            table: Any = module
            computed = table.get_embedding(*table.weights.shape)
            yield Table(path=path, module=module, name="weights", computed=computed)


def load_root(source: ParlerSource) -> nn.Module:
    """Return the model as `from_pretrained` loads it, in FP32 and `eval` mode."""
    import torch

    parler, transformers = load_packages()
    source.check()
    source.weights()  # pickled weights are refused, not read
    directory = source.directory
    try:
        with quiet(transformers), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the codec's constructor uses an older weight norm
            root, found = parler.ParlerTTSForConditionalGeneration.from_pretrained(
                directory,
                torch_dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
    # Read and built by code that was written for its authors' own files.
    except Exception as error:
        raise ModelError(f"'{directory}' cannot be loaded: {first_line(error)}") from error
    # A position table that older files lack is computed; weights nobody asked for do no harm.
    missing = [name for name in found["missing_keys"] if not name.endswith(_TABLE)]
    if missing:
        raise ModelError(
            f"'{directory}' lacks {len(missing)} weights that its {CONFIG} speaks of, such as "
            f"{missing[0]!r}; fetch it again"
        )
    check_finite(root.named_parameters(), directory)
    return _checked(root.float().eval(), directory)


def build_skeleton(directory: Path) -> nn.Module:
    """Return the model that an artifact's settings describe, its weights without values.

    Parameters are on torch's `meta` device and take no memory; buffers, which hold what is
    computed from the settings, are real.
    """
    from accelerate import init_empty_weights

    parler, transformers = load_packages()
    try:
        config = parler.ParlerTTSConfig.from_pretrained(directory, local_files_only=True)
        with quiet(transformers), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the codec's constructor uses an older weight norm
            with transformers.modeling_utils.no_init_weights(), init_empty_weights(False):
                root = parler.ParlerTTSForConditionalGeneration(config)
        root.generation_config = transformers.GenerationConfig.from_pretrained(
            directory, GENERATION, local_files_only=True
        )
    # Built by code that was written for its authors' own files.
    except Exception as error:
        raise ModelError(f"'{directory}' cannot be built: {first_line(error)}") from error
    return _checked(root.eval(), directory)


def write_settings(root: Any, directory: Path) -> None:
    """Write `config.json` and `generation_config.json` as the official object does.

    The same model gives the same bytes, wherever it was read from.
    """
    root.config.save_pretrained(directory)
    path = directory / CONFIG
    settings = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_of_the_model)
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    root.generation_config.save_pretrained(directory)


def _of_the_model(settings: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in settings if name not in _OF_THE_PROCESS}


def _checked(root: Any, directory: Path) -> nn.Module:
    """Refuse settings that let speech end at once, or never."""
    settings = root.generation_config
    shortest = 2 * root.decoder.num_codebooks
    longest = settings.max_new_tokens or settings.max_length
    if not isinstance(longest, int) or longest < shortest:
        raise ModelError(
            f"'{directory / GENERATION}' has max_length {longest!r}; "
            f"a model of {root.decoder.num_codebooks} codebooks needs at least {shortest}"
        )
    checked: nn.Module = root
    return checked
