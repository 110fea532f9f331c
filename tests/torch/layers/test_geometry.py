"""Compressed layers have the attributes of the layers that they replace."""

from typing import Any

import pytest
from torch import nn

from tts_compress.qat.prepare import prepare_qat
from tts_compress.recipes.recipe import find_recipe
from tts_compress.torch.layers.base import CompressedLayer, build_layer, layer_state
from tts_compress.torch.layers.geometry import Geometry

_LAYERS: dict[str, nn.Module] = {
    "linear": nn.Linear(48, 20),
    "embedding": nn.Embedding(30, 48),
    "convolution": nn.Conv1d(12, 18, 5, stride=3, padding=2, dilation=2, groups=3),
    "reflecting": nn.Conv1d(16, 20, 5, padding=2, padding_mode="reflect"),
    "transposed": nn.ConvTranspose1d(24, 36, 8, 4, padding=2, output_padding=1, groups=3),
}
_KINDS = [
    ("int8", "dynamic"),
    ("int8", "static"),
    ("int8", "none"),
    ("int4", "none"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
]
_EVERY = [
    (name, kind)
    for name in _LAYERS
    for kind in _KINDS
    if name != "embedding" or kind == ("int8", "none")
]
_LEFT_OUT = {"training", "transposed", "scale_grad_by_freq", "sparse"}
"""Attributes that do not depend on shapes."""


def _compressed(layer: nn.Module, kind: tuple[str, str]) -> CompressedLayer:
    chosen = kind
    state = layer_state(layer, *chosen, group_size=4, limits=(-1.0, 1.0))
    return build_layer(Geometry.of(layer), *chosen, state)


def _told(layer: nn.Module) -> dict[str, Any]:
    """Return a torch layer's public attributes that are numbers, words or tuples."""
    return {
        name: value
        for name, value in vars(layer).items()
        if isinstance(value, int | str | tuple)
        and not name.startswith("_")
        and name not in _LEFT_OUT
    }


@pytest.mark.parametrize(("name", "kind"), _EVERY, ids=str)
def test_attributes_are_those_of_the_torch_layer(name: str, kind: tuple[str, str]) -> None:
    layer = _LAYERS[name]
    expected = _told(layer)
    assert len(expected) == (9 if isinstance(layer, nn.Conv1d | nn.ConvTranspose1d) else 2)
    small = _compressed(layer, kind)
    assert {attribute: getattr(small, attribute) for attribute in expected} == expected
    for other in _LAYERS.values():  # or upstream code would take one kind for another
        for attribute in set(_told(other)) - set(expected):
            assert not hasattr(small, attribute), attribute


@pytest.mark.parametrize("name", ["linear", "convolution", "transposed"])
def test_a_layer_that_trains_has_them_too(name: str) -> None:
    student = prepare_qat(_LAYERS[name], find_recipe("module", "int8-weight-only")).module
    expected = _told(_LAYERS[name])
    assert {attribute: getattr(student, attribute) for attribute in expected} == expected


@pytest.mark.parametrize("word", ["same", "valid"])
def test_padding_by_a_word_keeps_it(word: str) -> None:
    layer = nn.Conv1d(4, 4, 5, padding=word)
    assert _compressed(layer, ("int8", "none")).padding == word
