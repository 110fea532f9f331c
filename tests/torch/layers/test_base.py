"""A compressed layer is one class that registers itself."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from tts_compress.errors import QuantizationError
from tts_compress.progress import Silent
from tts_compress.recipes.formats import Weights
from tts_compress.recipes.recipe import Rule, find_recipe
from tts_compress.torch.convert import convert
from tts_compress.torch.layers import base
from tts_compress.torch.layers.base import CompressedLayer, FloatLayer, register_layer, walk_layers
from tts_compress.torch.layers.checkpoint import restore_root, write_root
from tts_compress.torch.layers.geometry import Geometry


def _register_table() -> None:
    def has_even_rows(geometry: Geometry) -> bool:
        return geometry.shape[1] % 2 == 0

    @register_layer(nn.Embedding, weights=Weights.INT4, only_for=has_even_rows)
    class HalfTable(CompressedLayer):
        kept: ClassVar[Mapping[str, str]] = {"weight": "table"}
        table: torch.Tensor

        @classmethod
        def objection(cls, geometry: Geometry, group_size: int) -> str:
            del group_size
            return "" if geometry.shape[0] < 100 else "it has too many rows"

        @classmethod
        def quantize(cls, layer: FloatLayer) -> dict[str, torch.Tensor]:
            return {"weight": layer.weight.half()}

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table[ids].float()


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    base._import_layers()
    monkeypatch.setattr(base, "_REGISTRY", copy.deepcopy(base._REGISTRY))


def test_a_new_layer_is_decided_built_counted_and_restored(tmp_path: Path) -> None:
    rule = Rule(match="*", weights=Weights.INT4)
    recipe = find_recipe("module", "int4-weight-only").model_copy(update={"component": (rule,)})
    net = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 4))
    before = convert(net, recipe, None, progress=Silent())
    assert before.counts == {"Embedding float32/none": 1, "Linear int4/none": 1}
    _register_table()
    done = convert(net, recipe, None, progress=Silent())
    assert done.counts == {"Embedding int4/none": 1, "Linear int4/none": 1}
    path = tmp_path / "model.safetensors"
    write_root(done.root, path, done.layers)
    with torch.device("meta"):
        skeleton = nn.Sequential(nn.Embedding(9, 64), nn.Linear(64, 4))
    restored = restore_root(skeleton, done.layers, path)
    ids = torch.arange(9)
    assert torch.equal(restored(ids), done.root(ids))
    for table, reason in (
        (nn.Embedding(9, 65), "there is no Embedding with int4 weights"),
        (nn.Embedding(200, 64), "it has too many rows"),
    ):
        with pytest.raises(QuantizationError, match=reason):
            convert(table, recipe, None, progress=Silent())


def test_parts_of_compressed_layers_are_no_layers() -> None:
    up = nn.ConvTranspose1d(16, 16, 4, stride=2)
    net = nn.Sequential(nn.Conv1d(16, 16, 1), up, nn.ReLU())
    small = convert(net, find_recipe("module", "int8"), None, progress=Silent()).root
    assert len(list(small.modules())) > 4
    assert [name for name, _ in walk_layers(small)] == ["", "0", "1", "2"]
    assert [name for name, _ in walk_layers(small.get_submodule("1"))] == [""]
