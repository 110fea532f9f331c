"""A compressed module in a file of its own."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from tts_compress import compress, load_module, save_module
from tts_compress.errors import ArtifactError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

safetensors = pytest.importorskip("safetensors.torch")


def _net() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    return nn.Sequential(nn.Embedding(9, 64), encoder, nn.Linear(64, 5)).eval()


IDS = torch.arange(9).view(1, 9)


@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only", "int4-weight-only"])
def test_what_was_saved_computes_the_same(tmp_path: Path, scheme: str) -> None:
    small = compress(_net(), scheme)
    path = save_module(small, tmp_path / "small.safetensors")
    with torch.inference_mode():
        assert torch.equal(load_module(_net(), path)(IDS), small(IDS))
    with torch.device("meta"):
        skeleton = _net()
    with torch.inference_mode():
        assert torch.equal(load_module(skeleton, path)(IDS), small(IDS))
    assert stat.S_IMODE(path.stat().st_mode) & 0o044
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "layer", [nn.Linear(32, 16), nn.ConvTranspose1d(8, 8, 4, stride=2)], ids=["linear", "conv"]
)
def test_a_layer_alone(tmp_path: Path, layer: nn.Module) -> None:
    x = torch.randn(1, 8, 32)
    small = compress(layer, "int8")
    path = save_module(small, tmp_path / "layer.safetensors")
    with torch.inference_mode():
        assert torch.equal(load_module(layer, path)(x), small(x))


def test_the_same_module_gives_the_same_bytes(tmp_path: Path) -> None:
    """Safetensors keeps metadata in a hash map, which orders two entries by chance."""
    small = compress(nn.Linear(64, 64), "int8-weight-only")
    files = [save_module(small, tmp_path / f"{number}.safetensors") for number in range(8)]
    assert len({file.read_bytes() for file in files}) == 1


def test_what_cannot_be_saved_or_loaded_says_why(tmp_path: Path) -> None:
    path = tmp_path / "small.safetensors"
    with pytest.raises(ModelError, match="no compressed layer"):
        save_module(_net(), path)
    small = compress(_net(), "int8")
    save_module(small, path)
    with pytest.raises(ArtifactError, match="exists"):
        save_module(small, path)
    save_module(small, path, force=True)
    with pytest.raises(ArtifactError, match="the system has no"):
        load_module(nn.Linear(3, 3), path)
    with pytest.raises(ArtifactError, match="cannot write"):
        save_module(small, tmp_path / "none" / "small.safetensors")
    safetensors.save_file({"a": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ArtifactError, match="not written by save_module"):
        load_module(_net(), tmp_path / "other.safetensors")
