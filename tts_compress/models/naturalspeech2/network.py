"""The official inference object: of a checkpoint's weights, or built empty and then filled."""

import argparse
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tts_compress.artifact import LayerRecord
from tts_compress.errors import ModelError, model_errors, reason
from tts_compress.models.checkout import find_checkout
from tts_compress.models.files import check_finite, read_tensors
from tts_compress.models.interception import intercepted
from tts_compress.models.naturalspeech2 import AMPHION
from tts_compress.models.naturalspeech2.files import NS2Settings, NS2Source
from tts_compress.models.shims.stand_ins import offer_torchaudio
from tts_compress.models.torch_model import Table, restore_weights

_CODEC = "codec"
_SUMS = ("embed_avg", "cluster_size")
"""Running sums from which training makes a codec's tables; as large as these."""


class Amphion:
    """The clone, and the modules of upstream's inference, imported from it.

    Raises:
        ModelError: No clone is named, or another system's was imported into this process.
        MissingExtraError: A package that upstream imports is not installed.
    """

    def __init__(self) -> None:
        checkout = find_checkout(AMPHION)
        offer_torchaudio()
        from encodec import EncodecModel

        self.clone, self.running = checkout.root, checkout.running
        self.encodec: Any = EncodecModel
        self.inference: Any = checkout.load("models.tts.naturalspeech2.ns2_inference")
        self.network: Any = checkout.load("models.tts.naturalspeech2.ns2")
        self.util: Any = checkout.load("utils.util")


@dataclass(frozen=True, slots=True, kw_only=True)
class NS2Networks:
    """A NaturalSpeech2 model in memory."""

    amphion: Amphion
    settings: NS2Settings

    inference: Any
    """The official `NS2Inference`."""

    @property
    def root(self) -> nn.Module:
        """A module with the parts of the model, and the codec, as children: the live ones."""
        children = self.inference.model.named_children()
        parts = {name: part for name, part in children if part is not None}
        return nn.ModuleDict(parts | {_CODEC: self.inference.codec}).eval()

    def with_root(self, root: nn.Module) -> "NS2Networks":
        """Return an official object with other modules; what else it holds is shared."""
        parts = dict(root.named_children())
        model = copy.copy(self.inference.model)
        # A shallow copy of a module shares the dictionary that its children are in.
        model.__dict__["_modules"] = {name: parts.get(name) for name in model._modules}  # noqa: SLF001
        inference = copy.copy(self.inference)
        inference.model = model.eval()
        inference.codec = parts[_CODEC]
        return replace(self, inference=inference)


def load_networks(source: NS2Source, layers: Sequence[LayerRecord]) -> NS2Networks:
    """Read a checkpoint and EnCodec's weights in FP32, or a saved model as it is stored.

    Upstream's own script leaves dropout on, so that its output differs with every run; here all
    modules are in `eval` mode. No weight of a saved model is ever larger than stored.
    """
    amphion = Amphion()
    settings = source.settings(amphion.clone)
    if source.is_saved:
        return _restore(_build(amphion, settings, source), source.checkpoint(), layers)
    codec_file = source.codec()  # first: the larger file is not read in vain
    networks = _build(amphion, settings, source)
    model, codec = networks.inference.model, networks.inference.codec
    fill(model, source.checkpoint())
    fill(codec, codec_file)
    others = codec.quantizer.state_dict()
    if all(tensor.equal(others[name]) for name, tensor in model.quantizer.state_dict().items()):
        codec.quantizer = model.quantizer  # which only a broken training changes
    return networks


def fill(module: nn.Module, path: Path) -> None:
    """Give a module, which may be without memory (`meta`), the tensors of a file, in FP32."""
    given = read_tensors(path)
    check_finite(given.items(), path)
    wanted = module.state_dict()
    try:
        for name, tensor in given.items():
            if name in wanted and tensor.is_floating_point() != wanted[name].is_floating_point():
                raise TypeError(f"{name!r} is of type {tensor.dtype}")
        full = {n: t.float() if t.is_floating_point() else t for n, t in given.items()}
        module.load_state_dict(full, assign=True)
    except (RuntimeError, TypeError) as error:
        raise ModelError(f"'{path}' does not fit its settings: {reason(error)}") from error


def find_tables(root: nn.Module) -> Iterator[Table]:
    """Yield what is computed from the settings, or read in training only; equal ones share memory.

    Tables of positions that are not what upstream computes stay in a file.
    """
    import torch

    positions: dict[tuple[int, int], Tensor] = {}
    for path, module in root.named_modules():
        kind: Any = type(module)
        if kind.__name__ == "EuclideanCodebook":
            for name in _SUMS:
                # An expanded tensor of any size takes the memory of one number.
                zeros = torch.zeros(1).expand(module.get_buffer(name).shape)
                yield Table(path=path, module=module, name=name, computed=zeros, is_used=False)
        elif kind.__name__ == "PositionalEncoding":
            length, _, width = module.get_buffer("pe").shape
            if (length, width) not in positions:
                positions[length, width] = kind(width, 0.0, length).pe
            yield Table(path=path, module=module, name="pe", computed=positions[length, width])


def _restore(networks: NS2Networks, path: Path, layers: Sequence[LayerRecord]) -> NS2Networks:
    from tts_compress.torch.layers.checkpoint import TensorFile

    inference = networks.inference
    if not any(name.startswith(f"{_CODEC}.quantizer.") for name in TensorFile(path).names):
        inference.codec.quantizer = inference.model.quantizer
    return networks.with_root(restore_weights(networks.root, layers, path, find_tables))


def _build(amphion: Amphion, settings: NS2Settings, source: NS2Source) -> NS2Networks:
    """Return networks made by upstream's constructor, with tensors that take no memory."""
    import torch

    config = amphion.util.JsonHParams(
        model=settings.model, preprocess={"lexicon_path": settings.lexicon}
    )
    encodec = amphion.encodec
    # The codec's weights come with the checkpoint; upstream would download them.
    untrained = intercepted(encodec, "encodec_model_24khz", lambda make: make(pretrained=False))
    errors = model_errors(f"'{source.directory}' cannot be built")
    with errors, amphion.running(), untrained, torch.device("meta"):
        model = amphion.network.NaturalSpeech2(config.model)
        codec = encodec.encodec_model_24khz()
    codec.set_target_bandwidth(12.0)  # kbit/s, as upstream's own
    loaders = {"build_model": lambda _: model.eval(), "build_codec": lambda _: codec.eval()}
    kind = type("NS2Inference", (amphion.inference.NS2Inference,), loaders)
    inference = kind(argparse.Namespace(device="cpu"), config)
    return NS2Networks(amphion=amphion, settings=settings, inference=inference)
