"""Weights in training round as `compress` rounds them."""

from typing import Any

import pytest
import torch
from torch import nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.fake_quantize import (
    WeightFakeQuantize,
    disable_observer,
    switch_fake_quant,
)
from tts_compress.torch.layers.base import from_rows, layer_state, pack_nibbles
from tts_compress.torch.layers.geometry import Geometry


def _weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 9), 0), ((6, 4, 5), 0), ((6, 4, 5), 1)],
    ids=["linear", "convolution", "transposed"],
)
def test_forward_and_gradient_equal_torchs(shape: tuple[int, ...], axis: int) -> None:
    weight, same = _weight(*shape), _weight(*shape)
    found = WeightFakeQuantize(axis=axis)(weight)
    others = [d for d in range(len(shape)) if d != axis]
    scales = same.detach().abs().amax(others) / 127
    zeros = torch.zeros(len(scales), dtype=torch.int32)
    expected = torch.fake_quantize_per_channel_affine(same, scales, zeros, axis, -127, 127)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    slope = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    (found * slope).sum().backward()
    (expected * slope).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert same.grad is not None
    torch.testing.assert_close(weight.grad, same.grad)


def _layers() -> dict[str, Any]:
    torch.manual_seed(0)
    conv, up = nn.Conv1d, nn.ConvTranspose1d
    return {
        "linear": nn.Linear(32, 20),
        "conv": conv(16, 12, 5, bias=False),
        "grouped": conv(16, 12, 4, groups=2),
        "transposed": up(16, 12, 16, stride=8, padding=4),
        "odd transposed": up(16, 8, 7, stride=3, padding=1, output_padding=2),
        "grouped transposed": up(12, 18, 5, stride=2, groups=3),
        "short taps": up(8, 8, 2, stride=4),
        "embedding": nn.Embedding(7, 32),
    }


@pytest.mark.parametrize("name", _layers())
@pytest.mark.parametrize("kind", ["dynamic", "none", "int4"])
def test_codes_are_those_of_post_training_quantization(name: str, kind: str) -> None:
    """To the bit, also those of a transposed convolution's phases."""
    layer = _layers()[name]
    geometry = Geometry.of(layer)
    if (name == "embedding" and kind != "none") or (kind == "int4" and "odd" in name):
        pytest.skip("there is no such layer")
    in_integers, group = kind == "dynamic", 8 if kind == "int4" else None
    rows = layer.weight.numel() // geometry.shape[geometry.channel_axis]
    if group and rows % group:
        group = rows
    chosen = ("int4" if group else "int8", "dynamic" if in_integers else "none")
    state = layer_state(layer, *chosen, group_size=group or 64)
    fake = WeightFakeQuantize(
        axis=geometry.channel_axis,
        multiplied=in_integers,
        group=group,
        phases=geometry if in_integers and geometry.operator == "ConvTranspose1d" else None,
    )
    codes, scales = fake.codes(layer.weight)
    stored = codes if group or fake.phases else from_rows(codes, geometry.shape, fake.axis)
    stored = pack_nibbles(stored.flatten(1)) if group else stored
    assert torch.equal(stored.flatten(), state["weight"].flatten())
    assert torch.equal(scales, state["weight_scale"])
    assert scales.dtype == state["weight_scale"].dtype
    again, _ = fake.codes(fake(layer.weight))  # rounds to itself
    assert torch.equal(again, codes)


def test_observers_do_not_matter_and_fake_quant_does() -> None:
    weight = _weight(4, 8)
    fake = WeightFakeQuantize()
    rounded = fake(weight)
    disable_observer(fake)
    assert torch.equal(fake(weight * 2), rounded * 2), "the scale follows the weight"
    switch_fake_quant(fake, on=False)
    assert fake(weight) is weight


def test_a_weight_that_is_not_finite_is_an_error() -> None:
    weight = _weight(4, 8)
    with torch.no_grad():
        weight[1, 1] = torch.nan
    with pytest.raises(QuantizationError, match="not finite"):
        WeightFakeQuantize()(weight)
