"""A model in upstream's own formats, for upstream's own programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tts_compress.artifact import atomic_directory
from tts_compress.errors import ModelError
from tts_compress.models.gpt_sovits.decoder import official_name
from tts_compress.models.gpt_sovits.network import build_skeleton
from tts_compress.models.gpt_sovits.reference import write_prompt
from tts_compress.models.gpt_sovits.weights import (
    SovitsWeights,
    T2SWeights,
    write_sovits,
    write_t2s,
)
from tts_compress.torch.layers.base import CompressedLayer
from tts_compress.torch.layers.float16 import Float16Layer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from tts_compress.models.base import Prompt
    from tts_compress.models.gpt_sovits.loaded import Loaded
    from tts_compress.models.gpt_sovits.source import GptSovitsSource

__all__ = ["CONFIG", "write_official"]

CONFIG = "tts_infer.yaml"
"""The file that names the others, in the form of upstream's own."""

_T2S, _SOVITS = "t2s.ckpt", "sovits.pth"


def write_official(
    loaded: Loaded, source: GptSovitsSource, prompt: Prompt, directory: Path, *, force: bool
) -> Path:
    """Write the T2S and the SoVITS model as upstream's training does, all or nothing.

    The two encoders are not written: upstream's programs read the published ones, and the
    configuration names those that the model was read from.

    Args:
        loaded: The model.
        source: Its files.
        prompt: The recording to speak by, written beside the configuration.
        directory: Where to.
        force: Replace a folder that was written by this function.

    Raises:
        ArtifactError: The directory exists and `force` is not given, or cannot be written.
        ModelError: The model is compressed in a way that upstream's formats do not have.
    """
    settings, root = loaded.settings, loaded.root
    t2s = {official_name(name): tensor for name, tensor in _plain(root, "t2s").items()}
    names = build_skeleton(loaded.official, settings).get_submodule("vits").state_dict()
    vits = _with_weight_norm(_plain(root, "vits"), names)
    origin = "converted by tts-compress"
    with atomic_directory(directory, marker=CONFIG, force=force) as partial:
        write_t2s(T2SWeights(tensors=t2s, config=settings.t2s, info=origin), partial / _T2S)
        weights = SovitsWeights(
            tensors=vits, config=settings.sovits, version=settings.version, info=origin
        )
        write_sovits(weights, partial / _SOVITS)
        write_prompt(prompt, partial)
        (partial / CONFIG).write_text(_config(source, settings.version), encoding="utf-8")
    return directory


def _plain(root: nn.Module, component: str) -> dict[str, Tensor]:
    """Return a component's tensors by the names it has uncompressed.

    Raises:
        ModelError: A layer's weights are neither FP32 nor FP16.
    """
    module = root.get_submodule(component)
    state: dict[str, Tensor] = module.state_dict()
    for name, part in module.named_modules():
        if not isinstance(part, CompressedLayer):
            continue
        if not isinstance(part, Float16Layer) or part.weights != "float16":
            raise ModelError(
                f"layer '{component}.{name}' has {part.weights} weights; upstream's formats have "
                "FP16 alone: compress by fp16, or save() an artifact"
            )
        state[f"{name}.weight"] = state.pop(f"{name}.values")
    return state


def _with_weight_norm(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return tensors by upstream's names, folded weights as direction and length again."""
    found = {}
    for name in names:
        folded = f"{name[: -len('_g')]}" if name.endswith(("weight_g", "weight_v")) else name
        if name in tensors:
            found[name] = tensors[name]
        elif name.endswith("weight_v"):
            found[name] = tensors[folded]
        elif name.endswith("weight_g"):
            weight = tensors[folded].float()
            found[name] = weight.flatten(1).norm(dim=1).view(-1, *[1] * (weight.dim() - 1))
    return found


def _config(source: GptSovitsSource, version: str) -> str:
    """Return the configuration, in YAML that needs no quoting rules but JSON's."""
    import json

    stated: dict[str, Any] = {
        "bert_base_path": str(source.bert()),
        "cnhuhbert_base_path": str(source.hubert()),
        "device": "cpu",
        "is_half": False,
        "t2s_weights_path": _T2S,
        "version": version,
        "vits_weights_path": _SOVITS,
    }
    lines = [f"  {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in stated.items()]
    return "\n".join(["custom:", *lines, ""])
