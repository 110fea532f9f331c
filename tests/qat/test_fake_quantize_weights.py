"""Weights in training round as `compress` rounds them, with the gradients that are published."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.neighbours import PAIR_LIMIT, neighbour_sums
from tts_compress.qat.fake_quantize import (
    WeightFakeQuantize,
    disable_fake_quant,
    disable_observer,
)
from tts_compress.qat.weight_format import WeightFormat
from tts_compress.torch.layers.base import Geometry
from tts_compress.torch.layers.build import layer_state
from tts_compress.torch.layers.codes import pack_nibbles


@dataclass(frozen=True)
class Chosen:
    """A decision."""

    weights: str
    activations: str


def _weight(*shape: int, seed: int = 0) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((6, 9), 0), ((6, 4, 5), 0), ((6, 4, 5), 1)],
    ids=["linear", "convolution", "transposed"],
)
def test_forward_and_gradient_equal_torchs(shape: tuple[int, ...], axis: int) -> None:
    weight, same = _weight(*shape), _weight(*shape)
    found = WeightFakeQuantize(WeightFormat(axis=axis), weight)(weight)
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
@pytest.mark.parametrize("learned", [False, True], ids=["following", "learned"])
def test_codes_are_those_of_post_training_quantization(name: str, kind: str, learned: bool) -> None:
    """To the bit, also those of a transposed convolution's phases; learned scales begin there."""
    layer = _layers()[name]
    geometry = Geometry.of(layer)
    if (name == "embedding" and kind != "none") or (kind == "int4" and "odd" in name):
        pytest.skip("there is no such layer")
    in_integers, group = kind == "dynamic", 8 if kind == "int4" else None
    rows = layer.weight.numel() // geometry.shape[geometry.channel_axis]
    if group and rows % group:
        group = rows
    chosen = Chosen("int4" if group else "int8", "dynamic" if in_integers else "none")
    state = layer_state(layer, chosen, group=group or 64)
    form = WeightFormat(
        axis=geometry.channel_axis,
        multiplied=in_integers,
        group=group,
        phases=geometry if in_integers and geometry.operator == "ConvTranspose1d" else None,
    )
    fake = WeightFakeQuantize(form, layer.weight, learned=learned)
    codes, scales = fake.codes(layer.weight)
    assert torch.equal(pack_nibbles(codes) if group else codes, state["weight"])
    assert torch.equal(scales, state["weight_scale"])
    assert scales.dtype == state["weight_scale"].dtype
    again, _ = fake.codes(fake(layer.weight))  # what it stands for rounds to itself
    assert torch.equal(again, codes)


def _paper(weight: torch.Tensor, scale: torch.Tensor, limits: tuple[int, int]) -> torch.Tensor:
    """Return the derivative of rounded weights by their scale, as Esser et al. write it."""
    steps = weight / scale
    inside = steps.round() - steps
    outside = torch.where(steps < 0, float(limits[0]), float(limits[1]))
    return torch.where((steps > limits[0]) & (steps < limits[1]), inside, outside)


@pytest.mark.parametrize("group", [None, 10], ids=["8 bits", "4 bits"])
def test_learned_scales_get_the_gradients_of_the_paper(group: int | None) -> None:
    weight = _weight(6, 20)
    fake = WeightFakeQuantize(WeightFormat(group=group), weight, learned=True)
    assert fake.log_stretch is not None
    assert fake.first_scales is not None
    with torch.no_grad():
        fake.log_stretch.fill_(-0.5)  # so that some weights are clipped
    rounded = fake(weight)
    limits = (-127, 127) if group is None else (-8, 7)
    per_scale = group or 20
    scales = fake.first_scales * torch.tensor(-0.5).exp()
    stored = scales if group is None else scales.bfloat16().float()
    rows = weight.detach().view(*scales.shape, per_scale)
    steps = rows / stored.unsqueeze(-1)
    expected = (steps.round().clamp(*limits) * stored.unsqueeze(-1)).view(6, 20)
    torch.testing.assert_close(rounded, expected)
    slope = torch.randn(6, 20, generator=torch.Generator().manual_seed(1))
    (rounded * slope).sum().backward()
    clipped = ((steps < limits[0]) | (steps > limits[1])).view(6, 20)
    assert 0 < clipped.sum() < clipped.numel() / 2
    torch.testing.assert_close(weight.grad, slope.masked_fill(clipped, 0))
    by_scale = _paper(rows, stored.unsqueeze(-1), limits) * slope.view(rows.shape)
    factor = (per_scale * limits[1]) ** -0.5
    # By the logarithm of the scale: times the scale.
    torch.testing.assert_close(fake.log_stretch.grad, by_scale.sum(-1) * factor * scales)


def test_learned_codes_are_those_that_were_trained() -> None:
    weight = _weight(6, 20)
    fake = WeightFakeQuantize(WeightFormat(), weight, learned=True)
    assert fake.log_stretch is not None
    with torch.no_grad():
        fake.log_stretch.copy_(torch.linspace(-0.5, 0.5, 6))
    codes, scales = fake.codes(weight)
    assert torch.equal(codes * scales.unsqueeze(1), fake(weight).detach())


@pytest.mark.parametrize("shape", [(6, 20), (6, 5, 3)])
def test_learned_scales_stay_large_enough_for_every_processor(shape: tuple[int, ...]) -> None:
    """A scale that would let two neighbours overflow 16 bits is not taken; clipping is."""
    weight = _weight(*shape)
    fake = WeightFakeQuantize(WeightFormat(multiplied=True), weight, learned=True)
    assert fake.log_stretch is not None
    with torch.no_grad():
        fake.log_stretch.fill_(-2)
    codes, scales = fake.codes(weight)
    assert int(neighbour_sums(codes.int()).abs().max()) <= PAIR_LIMIT
    assert int(codes.abs().max()) == 127
    stood_for = codes * scales.view(-1, *[1] * (len(shape) - 1))
    assert torch.equal(stood_for, fake(weight).detach())


def test_observers_do_not_matter_and_fake_quant_does() -> None:
    weight = _weight(4, 8)
    fake = WeightFakeQuantize(WeightFormat(), weight)
    rounded = fake(weight)
    disable_observer(fake)
    assert torch.equal(fake(weight * 2), rounded * 2), "the scale follows the weight"
    disable_fake_quant(fake)
    assert fake(weight) is weight


@pytest.mark.parametrize("learned", [False, True])
def test_a_weight_that_is_not_finite_is_an_error(learned: bool) -> None:
    weight = _weight(4, 8)
    fake = WeightFakeQuantize(WeightFormat(), weight, learned=learned)
    with torch.no_grad():
        weight[1, 1] = torch.nan
    with pytest.raises(QuantizationError, match="not finite"):
        fake.codes(weight)


def test_a_group_that_divides_no_channel_is_an_error() -> None:
    with pytest.raises(QuantizationError, match="20 inputs are no multiple of the group 16"):
        WeightFakeQuantize(WeightFormat(group=16), _weight(6, 20), learned=True)


def test_what_is_learned_is_copied_and_saved() -> None:
    weight = _weight(6, 20)
    fake = WeightFakeQuantize(WeightFormat(), weight, learned=True)
    assert fake.log_stretch is not None
    with torch.no_grad():
        fake.log_stretch.fill_(0.25)
    other = WeightFakeQuantize(WeightFormat(), _weight(6, 20, seed=5), learned=True)
    other.load_state_dict(fake.state_dict())
    for same in (other, copy.deepcopy(fake)):
        assert torch.equal(same(weight), fake(weight))
