"""`compress` tells its changes to a module: its record, much FP32, results that are not smaller."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tts_compress import compress, find_recipe, load_module, manifest_of, save_module
from tts_compress.artifact import Manifest
from tts_compress.errors import ModelError, QuantizationError, TTSCompressWarning
from tts_compress.torch.layers.checkpoint import stored_bytes


class Tied(nn.Module):
    """A language model whose head shares its table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(300, 64)
        self.inner = nn.Linear(64, 64)
        self.head = nn.Linear(64, 300)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return torch.as_tensor(self.head(torch.relu(self.inner(self.table(ids)))))


IDS = torch.arange(30).view(2, 15)
SCHEMES = ["int8", "int8-weight-only", "int4-weight-only", "fp16", "bf16"]


@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shared_weight_is_stored_once(tmp_path: Path, scheme: str) -> None:
    """A file held it twice, and was larger than the original's in 16 bits."""
    torch.manual_seed(0)
    net = Tied().eval()
    small = compress(net, scheme)
    path = save_module(small, tmp_path / "small.safetensors")
    loaded = load_module(Tied(), path)
    for module in (small, loaded):
        head, table = module.get_submodule("head"), module.get_submodule("table")
        shared = dict(table.named_buffers())
        assert shared
        assert all(value is head.get_buffer(name) for name, value in shared.items())
    share = {"fp16": 0.52, "bf16": 0.52}.get(scheme, 0.30)
    assert stored_bytes(small) == stored_bytes(loaded) < share * stored_bytes(net)
    assert stored_bytes(small) < path.stat().st_size < stored_bytes(small) + 10_000
    with torch.inference_mode():
        expected, found = net(IDS), small(IDS)
        assert torch.equal(loaded(IDS), found)
    error = (expected - found).square().mean()
    least = {"int4-weight-only": 15, "fp16": 50}.get(scheme, 30)
    assert 10 * torch.log10(expected.square().mean() / error) > least


def test_a_module_carries_its_record(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Embedding(40, 64), nn.Linear(64, 64), nn.LayerNorm(64))
    small = compress(net, "int8")
    manifest = manifest_of(small)
    assert (manifest.family, manifest.scheme) == ("module", "int8")
    assert manifest.counts == {
        "Embedding int8/none": 1,
        "LayerNorm float32/none": 1,
        "Linear int8/dynamic": 1,
    }
    norm = manifest.layers[-1]
    assert (norm.module, norm.parameters) == ("2", 128)
    assert norm.reason == "there is no compressed layer of its kind"
    assert manifest.source.size_bytes == stored_bytes(net)
    assert manifest.size_bytes == stored_bytes(small)
    assert Manifest.from_json(manifest.to_json()) == manifest
    path = save_module(small, tmp_path / "small.safetensors")
    assert manifest_of(load_module(net, path)) == manifest
    with pytest.raises(ModelError, match="this Linear carries no record"):
        manifest_of(nn.Linear(2, 2))


def test_much_float32_is_told_with_its_reasons() -> None:
    """An LSTM beside a linear layer was left out without a word."""
    net = nn.Sequential(nn.Linear(64, 64), nn.Conv3d(8, 8, 3))
    told = (
        r"^30% of the weights stay in FP32; '1' \(Conv3d, 1,736\): there is no compressed layer "
        r"of its kind; `manifest_of\(result\)\.layers` has all$"
    )
    with pytest.warns(TTSCompressWarning, match=told) as caught:
        compress(net, "int8-weight-only")
    assert [warning.filename for warning in caught] == [__file__]


def test_float32_that_the_recipe_states_is_expected() -> None:
    shipped = find_recipe("module", "int8")
    rule = shipped.component[0].model_copy(update={"exclude": ("1",)})
    recipe = shipped.model_copy(update={"component": (rule,)})
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    small = compress(net, "int8", recipe=recipe)  # a warning would be an error here
    assert [layer.reason for layer in manifest_of(small).layers] == ["", "the recipe excludes it"]


def test_what_is_not_smaller_is_refused() -> None:
    with pytest.raises(
        QuantizationError, match=r"'int8' would not make this module smaller: 32 → 36 bytes"
    ):
        compress(nn.Linear(1, 4), "int8", recipe=_every_layer())


def _every_layer() -> Any:
    shipped = find_recipe("module", "int8")
    return shipped.model_copy(update={"component": shipped.component[:1]})


def _gpt2(**settings: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    words = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings, **words)).eval()


_SMALL = {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 500, "n_positions": 64}


@pytest.mark.parametrize("settings", [_SMALL, pytest.param({}, marks=pytest.mark.slow)], ids=len)
def test_gpt2_takes_a_quarter(tmp_path: Path, settings: dict[str, int]) -> None:
    """Its layers, `Conv1D` of transformers, stayed in FP32, and the file got larger."""
    net = _gpt2(**settings)
    small = compress(net, "int8")
    path = save_module(small, tmp_path / "gpt2.safetensors")
    whole = sum(parameter.nbytes for parameter in net.parameters())
    assert path.stat().st_size <= 0.30 * whole
    ids = torch.arange(1, 33).view(1, -1)
    with torch.inference_mode():
        expected, found = net(ids).logits, small(ids).logits
        assert torch.equal(load_module(_gpt2(**settings), path)(ids).logits, found)
    error = (expected - found).square().mean()
    assert 10 * torch.log10(expected.square().mean() / error) >= 25
    layer = small.get_submodule("transformer.h.0.attn.c_attn")
    width = small.config.n_embd
    assert (layer.nf, layer.nx) == (3 * width, width)
    assert (layer.in_features, layer.out_features) == (width, 3 * width)


@pytest.mark.parametrize("scheme", ["int8-static", "int4-weight-only", "bf16"])
@pytest.mark.filterwarnings("ignore:this processor:tts_compress.errors.TTSCompressWarning")
def test_gpt2_in_other_schemes(scheme: str) -> None:
    net = _gpt2(**_SMALL)
    ids = torch.arange(1, 33).view(1, -1)
    small = compress(net, scheme, calibration=[ids] if scheme == "int8-static" else None)
    with torch.inference_mode():
        expected, found = net(ids).logits, small(ids).logits
    error = (expected - found).square().mean()
    least = {"int4-weight-only": 12}.get(scheme, 25)
    assert 10 * torch.log10(expected.square().mean() / error) > least
    assert stored_bytes(small) < 0.52 * stored_bytes(net)
