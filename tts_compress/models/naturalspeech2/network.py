"""The official inference object: of a checkpoint's weights, or as a skeleton to be filled."""

from __future__ import annotations

import argparse
import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tts_compress.errors import ModelError, reason
from tts_compress.models.naturalspeech2.weights import fill, read_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from tts_compress.artifact import LayerRecord
    from tts_compress.models.naturalspeech2.package import Official
    from tts_compress.models.naturalspeech2.settings import NS2Settings
    from tts_compress.models.naturalspeech2.source import NS2Source

__all__ = ["load_inference", "restore_inference", "root_of", "with_modules"]

_CODEC = "codec"
_BANDWIDTH = 12.0
"""Kilobits per second of the codec, of which upstream's inference is sure."""


def load_inference(official: Official, source: NS2Source, settings: NS2Settings) -> Any:
    """Return an `NS2Inference` of a checkpoint and EnCodec's weights, in FP32 and `eval` mode.

    Upstream's own script leaves dropout on; what it says then differs with every run.

    Raises:
        ModelError: A file cannot be read, does not fit the others, or holds values that are not
            finite.
    """
    codec_file = source.codec()  # first: the larger file is not read in vain
    model, codec = _skeletons(official, settings, source)
    fill(model, read_weights(source.checkpoint()), source.checkpoint())
    fill(codec, read_weights(codec_file), codec_file)
    if _same_tensors(model.quantizer, codec.quantizer):  # which only a broken training changes
        codec.quantizer = model.quantizer
    return _assemble(official, settings, model, codec)


def restore_inference(
    official: Official,
    source: NS2Source,
    settings: NS2Settings,
    layers: Sequence[LayerRecord],
) -> Any:
    """Return an `NS2Inference` of a saved model; no weight is ever larger than stored.

    Raises:
        ModelError: The settings describe no model.
        ArtifactError: The weights are not those of the model that the settings describe.
    """
    from tts_compress.models.naturalspeech2.tables import compute_tables
    from tts_compress.torch.layers.checkpoint import TensorFile, restore_root

    path = source.checkpoint()
    stored = TensorFile(path).names
    model, codec = _skeletons(official, settings, source)
    if not any(name.startswith(f"{_CODEC}.quantizer.") for name in stored):
        codec.quantizer = model.quantizer
    inference = _assemble(official, settings, model, codec)
    root = compute_tables(root_of(inference), stored)
    restore_root(root, layers, path)
    return with_modules(inference, root)


def root_of(inference: Any) -> nn.Module:
    """Return a module with the parts of the model, and the codec, as children: the live ones."""
    from torch import nn

    parts = {name: part for name, part in inference.model.named_children() if part is not None}
    return nn.ModuleDict(parts | {_CODEC: inference.codec}).eval()


def with_modules(inference: Any, root: nn.Module) -> Any:
    """Return an official object with other modules; the given one stays as it is.

    Args:
        inference: The object to copy; what it holds besides modules is shared.
        root: Holds what `root_of` named.
    """
    model = copy.copy(inference.model)
    # A shallow copy of a module shares the dictionary that its children are in.
    parts = dict(root.named_children())
    model.__dict__["_modules"] = {name: parts.get(name) for name in inference.model._modules}  # noqa: SLF001
    changed = copy.copy(inference)
    changed.model = model.eval()
    changed.codec = parts[_CODEC]
    return changed


def _skeletons(official: Official, settings: NS2Settings, source: NS2Source) -> tuple[Any, Any]:
    """Return model and codec as upstream builds them, with tensors that take no memory."""
    import torch

    try:
        with official.running(), _without_download(official), torch.device("meta"):
            model = official.network.NaturalSpeech2(official.config(settings).model)
            codec = official.encodec.encodec_model_24khz(pretrained=False)
    # Built by code that was written for its authors' own settings.
    except Exception as error:
        raise ModelError(f"'{source.directory}' cannot be built: {reason(error)}") from error
    codec.set_target_bandwidth(_BANDWIDTH)
    return model.eval(), codec.eval()


@contextmanager
def _without_download(official: Official) -> Iterator[None]:
    """Let upstream's constructor have a codec without weights: its own come with the checkpoint."""
    network, encodec = official.network, official.encodec

    class Unfilled:
        @staticmethod
        def encodec_model_24khz() -> Any:
            return encodec.encodec_model_24khz(pretrained=False)

    network.EncodecModel = Unfilled
    try:
        yield
    finally:
        network.EncodecModel = encodec


def _assemble(official: Official, settings: NS2Settings, model: Any, codec: Any) -> Any:
    """Return what upstream's constructor makes, of networks that are built already."""
    built = {"build_model": lambda _: model, "build_codec": lambda _: codec}
    kind = type("NS2Inference", (official.inference.NS2Inference,), built)
    return kind(argparse.Namespace(device="cpu"), official.config(settings))


def _same_tensors(one: nn.Module, other: nn.Module) -> bool:
    others = other.state_dict()
    return all(tensor.equal(others[name]) for name, tensor in one.state_dict().items())
