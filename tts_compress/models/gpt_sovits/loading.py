"""Upstream's files, read into one tree of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError, reason
from tts_compress.models.gpt_sovits.decoder import official_name
from tts_compress.models.gpt_sovits.network import build_skeleton, fill, leave_out_unheard
from tts_compress.models.gpt_sovits.settings import GptSovitsSettings, v4_vocoder
from tts_compress.models.gpt_sovits.upstream import GPT_SOVITS
from tts_compress.models.packages import import_package
from tts_compress.models.settings_file import read_json
from tts_compress.models.weights import check_finite
from tts_compress.torch.layers.module_surgery import fold_weight_norm

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from tts_compress.models.gpt_sovits.package import Official
    from tts_compress.models.gpt_sovits.source import GptSovitsSource
    from tts_compress.models.gpt_sovits.weights import T2SWeights

__all__ = ["load_networks", "load_tokenizer"]

_NOT_STORED = frozenset({"masked_spec_embed"})
"""Of the speech encoder: what its training hides parts of a recording by."""


def load_networks(
    official: Official, source: GptSovitsSource
) -> tuple[GptSovitsSettings, nn.Module]:
    """Return what upstream's loaders make of a model's files, in FP32 and `eval` mode.

    Weight norm, which upstream's synthesizer computes anew in every call, is folded.

    Raises:
        ModelError: A file cannot be read, does not fit the others, or holds values that are not
            finite.
        MissingExtraError: A package is not installed.
    """
    t2s, sovits = source.read_t2s(), source.read_sovits()
    vocoder = source.vocoder()
    settings = GptSovitsSettings(
        version=source.version,
        t2s=t2s.config,
        sovits=sovits.config,
        bert=_read_config(source.bert()),
        hubert=_read_config(source.hubert()),
        vocoder=_vocoder_settings(vocoder),
    )
    root: Any = build_skeleton(official, settings)
    spec = source.spec
    fill(root.t2s, _opened(root.t2s, t2s, spec), spec)
    fill(root.vits, sovits.tensors, spec)
    if vocoder is not None:
        _fill_vocoder(root.vocoder, vocoder)
    if (speaker := source.speaker()) is not None:
        fill(root.sv, _read_tensors(speaker), str(speaker))
    transformers = import_package("transformers", GPT_SOVITS.extra)
    root.bert = _pretrained(transformers.AutoModelForMaskedLM, source.bert())
    leave_out_unheard(root.bert)
    root.hubert = _pretrained(transformers.HubertModel, source.hubert())
    fold_weight_norm(root)
    return settings, root.eval()


def load_tokenizer(directory: Path) -> Any:
    """Return the text encoder's tokenizer, from its own folder or an artifact's.

    Raises:
        ModelError: It cannot be read.
        MissingExtraError: A package is not installed.
    """
    transformers = import_package("transformers", GPT_SOVITS.extra)
    try:
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    # Read by code that was written for its authors' own files.
    except Exception as error:
        raise ModelError(f"no tokenizer can be read from '{directory}': {reason(error)}") from error


def _opened(decoder: nn.Module, weights: T2SWeights, where: str) -> dict[str, Tensor]:
    """Return a checkpoint's tensors by the names of an opened decoder.

    Raises:
        ModelError: It holds others.
    """
    ours = {official_name(name): name for name in decoder.state_dict()}
    if unknown := sorted(weights.tensors.keys() - ours.keys()):
        raise ModelError(
            f"the T2S model of '{where}' has {len(unknown)} weights that its settings do not "
            f"speak of, such as {unknown[0]!r}; fetch it again"
        )
    return {ours[name]: tensor for name, tensor in weights.tensors.items()}


def _fill_vocoder(vocoder: nn.Module, path: Path) -> None:
    """Give a vocoder its weights, stored with weight norm or without."""
    stored = path / "bigvgan_generator.pt" if path.is_dir() else path
    tensors = _read_tensors(stored, "generator" if path.is_dir() else None)
    if not any(name.endswith("weight_g") for name in tensors):
        fold_weight_norm(vocoder)
    fill(vocoder, tensors, str(stored))


def _read_tensors(path: Path, section: str | None = None) -> Mapping[str, Tensor]:
    """Return the tensors of a file of `torch.save`.

    Raises:
        ModelError: It cannot be read, or holds values that are not finite.
    """
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        tensors: dict[str, Tensor] = content if section is None else content[section]
        broken = [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]
    # Arbitrary bytes make the reader fail in arbitrary ways.
    except Exception as error:
        raise ModelError(f"cannot read '{path}': {reason(error)}") from error
    if broken:
        raise ModelError(f"'{path}': weight '{broken[0]}' has values that are not finite")
    return tensors


def _pretrained(kind: Any, directory: Path) -> nn.Module:
    """Return one of the encoders as upstream loads it.

    Raises:
        ModelError: It cannot be read, lacks weights, or holds values that are not finite.
    """
    import torch

    try:
        module, found = kind.from_pretrained(
            directory, local_files_only=True, torch_dtype=torch.float32, output_loading_info=True
        )
    # Read and built by code that was written for its authors' own files.
    except Exception as error:
        raise ModelError(f"'{directory}' cannot be loaded: {reason(error)}") from error
    if missing := sorted(set(found["missing_keys"]) - _NOT_STORED):
        raise ModelError(
            f"'{directory}' lacks {len(missing)} weights that its config.json speaks of, such as "
            f"{missing[0]!r}; fetch it again"
        )
    check_finite(module.named_parameters(), directory)
    loaded: nn.Module = module
    return loaded


def _vocoder_settings(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    return _read_config(path) if path.is_dir() else v4_vocoder()


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    config = read_json(path)
    if not isinstance(config, dict):
        raise ModelError(f"'{path}' holds a {type(config).__name__}; fetch it again")
    return config
