"""The official `F5TTS` object: built by upstream's loaders, or as a skeleton to be filled."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from tts_compress.errors import MissingExtraError, ModelError, reason
from tts_compress.models.f5.config import check_vocoder_config
from tts_compress.models.f5.package import SAMPLE_RATE, official, quiet
from tts_compress.models.finite import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

    from tts_compress.artifact import LayerRecord
    from tts_compress.models.f5.config import F5Config
    from tts_compress.models.f5.files import F5Files

__all__ = ["forget_text", "load_official", "restore_official", "root_of", "with_modules"]

_METHOD = "euler"


def load_official(files: F5Files, config: F5Config) -> Any:
    """Return an `f5_tts.api.F5TTS` of upstream's own files, in FP32 and `eval` mode.

    Raises:
        ModelError: A file cannot be read, does not fit the others, or holds values that are not
            finite.
        MissingExtraError: A package is not installed.
    """
    assert files.vocoder_weights is not None, "a saved artifact is restored"
    inference = official("f5_tts.infer.utils_infer")
    check_vocoder_config(files.vocoder_config)
    network = _attempt(
        files.checkpoint,
        lambda: inference.load_model(
            _backbone(config),
            config.arch,
            str(files.checkpoint),
            mel_spec_type="vocos",
            vocab_file=str(files.vocabulary),
            ode_method=_METHOD,
            use_ema=True,
            device="cpu",
        ),
    )
    vocoder = _attempt(files.vocoder_weights, lambda: _load_vocoder(files))
    api = _assemble(network.float().eval(), vocoder.float().eval())
    for path, module in ((files.checkpoint, network), (files.vocoder_weights, vocoder)):
        check_finite(module.named_parameters(), path)
    return api


def restore_official(files: F5Files, config: F5Config, layers: Sequence[LayerRecord]) -> Any:
    """Return an `f5_tts.api.F5TTS` of a saved artifact; no weight is ever larger than stored.

    Args:
        files: Of the artifact.
        config: What its `config.yaml` says.
        layers: What was decided for its layers; empty if it is not compressed.

    Raises:
        ModelError: The settings do not describe a model.
        ArtifactError: The weights are not those of the model that the settings describe.
        MissingExtraError: A package is not installed.
    """
    from tts_compress.torch.layers.checkpoint import restore_root

    check_vocoder_config(files.vocoder_config)
    api = _attempt(files.config, lambda: _skeleton(files, config))
    root = root_of(api)
    restore_root(root, layers, files.checkpoint)
    return with_modules(api, root)


def root_of(api: Any) -> nn.Module:
    """Return a module with the object's transformer and vocoder as children, the live ones."""
    from torch import nn

    forget_text(api)
    return nn.ModuleDict({"transformer": api.ema_model.transformer, "vocoder": api.vocoder}).eval()


def with_modules(api: Any, root: nn.Module) -> Any:
    """Return an official object with other modules; the given one stays as it is.

    Args:
        api: The object to copy; what it holds besides the two modules is shared.
        root: Holds `transformer` and `vocoder`.
    """
    network = copy.copy(api.ema_model)
    # A shallow copy of a module shares the dictionary that its children are in.
    network.__dict__["_modules"] = dict(api.ema_model._modules)  # noqa: SLF001
    network.transformer = root.get_submodule("transformer")
    changed = copy.copy(api)
    changed.ema_model = network
    changed.vocoder = root.get_submodule("vocoder")
    return changed


def forget_text(api: Any) -> None:
    """Drop the text that the transformer keeps per thread, in a form that cannot be copied."""
    api.ema_model.transformer.__dict__.pop("_cache_local", None)


def _assemble(network: Any, vocoder: Any) -> Any:
    """Return what the constructor of `F5TTS` makes, of networks that are loaded."""
    kind = official("f5_tts.api").F5TTS
    api = kind.__new__(kind)
    api.ema_model = network
    api.vocoder = vocoder
    api.mel_spec_type = "vocos"
    api.target_sample_rate = SAMPLE_RATE
    api.ode_method = _METHOD
    api.use_ema = True
    api.device = "cpu"
    return api


def _load_vocoder(files: F5Files) -> Any:
    weights = files.vocoder_weights
    assert weights is not None
    if weights.name == "pytorch_model.bin" and weights.parent == files.vocoder_config.parent:
        load = official("f5_tts.infer.utils_infer").load_vocoder
        return load("vocos", is_local=True, local_path=str(weights.parent), device="cpu")
    vocoder = official("vocos").Vocos.from_hparams(str(files.vocoder_config))
    vocoder.load_state_dict(_read_weights(weights))
    return vocoder


def _read_weights(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return official("safetensors.torch").load_file(path)
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)


def _skeleton(files: F5Files, config: F5Config) -> Any:
    """Build the networks as upstream's loaders do, with parameters that take no memory.

    What upstream computes from the settings (rotations, windows, filters) is real.
    """
    inference = official("f5_tts.infer.utils_infer")
    init_empty_weights = official("accelerate").init_empty_weights
    tokenizer = official("f5_tts.model.utils").get_tokenizer
    vocabulary, size = tokenizer(str(files.vocabulary), "custom")
    with init_empty_weights(include_buffers=False):
        transformer = _backbone(config)(
            **config.arch, text_num_embeds=size, mel_dim=inference.n_mel_channels
        )
        vocoder = official("vocos").Vocos.from_hparams(str(files.vocoder_config))
    network = official("f5_tts.model").CFM(
        transformer=transformer,
        mel_spec_kwargs={
            "n_fft": inference.n_fft,
            "hop_length": inference.hop_length,
            "win_length": inference.win_length,
            "n_mel_channels": inference.n_mel_channels,
            "target_sample_rate": inference.target_sample_rate,
            "mel_spec_type": inference.mel_spec_type,
        },
        odeint_kwargs={"method": _METHOD},
        vocab_char_map=vocabulary,
    )
    return _assemble(network.eval(), vocoder.eval())


def _backbone(config: F5Config) -> Any:
    return getattr(official("f5_tts.model"), config.backbone)


def _attempt(path: Path, load: Callable[[], Any]) -> Any:
    """Call code that was written for its authors' own files."""
    try:
        with quiet():
            return load()
    except MissingExtraError:
        raise
    # Arbitrary bytes and settings make it fail in arbitrary ways.
    except Exception as error:
        raise ModelError(
            f"'{path}' cannot be loaded with the files beside it: {reason(error)}"
        ) from error
