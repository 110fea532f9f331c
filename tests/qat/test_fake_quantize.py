"""Activations in training round as integer layers do, in ranges that calibration would choose."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Affine
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    DynamicFakeQuantize,
    WeightFakeQuantize,
    disable_observer,
    switch_fake_quant,
)
from tts_compress.recipes.formats import Observer
from tts_compress.recipes.recipe import Calibration
from tts_compress.torch.layers.base import activation_codes, from_rows, layer_state, pack_nibbles
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.observe import add_sample, observe_ranges


def _values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.4


def _minmax() -> Calibration:
    return Calibration(observer=Observer.MINMAX)


def _fixed(low: float, high: float, *, learned: bool = False) -> nn.Module:
    """Return a frozen fake quantizer."""
    fake = ActivationFakeQuantize(_minmax(), learned=learned)
    add_sample(fake.seen, torch.tensor([low, high]))
    disable_observer(fake)
    return fake


RANGES = [(-1.1, 2.3), (0.0, 1.7), (-0.9, 0.0), (0.3, 2.0)]


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("signed", [False, True], ids=["uint8", "int8"])
@pytest.mark.parametrize("limits", RANGES)
def test_forward_equals_torchs(limits: tuple[float, float], signed: bool, learned: bool) -> None:
    x = _values(3, 5, 40)
    scale, zero = activation_codes(*limits)
    first = -128 if signed else 0
    last = first + 255
    expected = torch.fake_quantize_per_tensor_affine(x, scale, zero + first, first, last)
    found = _fixed(*limits, learned=learned)(x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_gradients_are_those_of_clipping(learned: bool) -> None:
    """They equal finite differences of the clipping, with rounding taken as the identity."""
    fake = _fixed(-1.0, 1.5, learned=learned).double()
    x = _values(2, 3, 50).requires_grad_()
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (fake(x) * slope).sum().backward()
    low, high = fake.limits()  # type: ignore[operator]
    step = (high - low) / 255
    point, nudge = x.detach().double(), 1e-6
    differences = ((point + nudge).clamp(low, high) - (point - nudge).clamp(low, high)) / 2 / nudge
    # Within half a step of an end, values round to the end's own code, and count as inside.
    near = ((point - low).abs() < step) | ((point - high).abs() < step)
    assert near.float().mean() < 0.05
    assert 0.1 < (differences == 0).float().mean() < 0.5
    assert x.grad is not None
    expected = slope * differences.float()
    torch.testing.assert_close(x.grad[~near], expected[~near], rtol=1e-6, atol=1e-6)


def test_learned_ranges_get_the_gradients_of_the_paper() -> None:
    """An end gets all that is beyond it, and of what is inside each code's share of rounding."""
    fake = _fixed(-1.0, 1.5, learned=True)
    assert isinstance(fake, ActivationFakeQuantize)
    assert fake.log_stretch is not None
    x = _values(2, 3, 50)
    slope = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    (fake(x) * slope).sum().backward()
    low, high = fake.limits()
    scale = (high - low) / 255
    # d/d(scale) of Esser et al. is round(v/s) − v/s; a step in either end moves the scale by 1/255.
    inside = (x >= low) & (x <= high)
    steps = x / scale
    shares = (steps.round() - steps) / 255 * inside
    to_high = (slope * (shares + (x > high))).sum()
    to_low = (slope * (-shares + (x < low))).sum()
    factor = (3 * 50 * 255) ** -0.5
    expected = torch.stack([to_low * -1.0, to_high * 1.5]) * factor  # by the ends' logarithms
    torch.testing.assert_close(fake.log_stretch.grad, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("observer", ["minmax", "percentile", "entropy", "mse"])
def test_ranges_are_those_of_post_training_calibration(observer: str) -> None:
    settings = Calibration(observer=observer, percentile=99.0)  # type: ignore[arg-type]
    batches = [_values(2, 8, 30, seed=seed) * (seed + 1) for seed in range(3)]
    plain = nn.Sequential(nn.Conv1d(8, 4, 3))

    def run(root: nn.Module) -> None:
        for batch in batches:
            root(batch)

    (expected,) = observe_ranges(plain, ["0"], run, settings).values()
    fake = ActivationFakeQuantize(settings)
    run(fake)
    assert (float(fake.low), float(fake.high)) == expected
    disable_observer(fake)
    scale, zero = activation_codes(*fake.limits())
    assert zero == activation_codes(*expected)[1]
    assert scale == pytest.approx(activation_codes(*expected)[0], rel=1e-12)
    found, wanted = Affine.spanning(*fake.limits()), Affine.spanning(*expected)
    assert found.zero == wanted.zero
    assert found.scale == pytest.approx(wanted.scale)


def test_switches() -> None:
    fake = ActivationFakeQuantize(_minmax())
    tree = nn.Sequential(nn.Sequential(fake), nn.ReLU())
    x = _values(2, 30)
    switch_fake_quant(tree, on=False)
    assert fake(x) is x, "observing changes nothing"
    switch_fake_quant(tree, on=True)
    assert not torch.equal(fake(x), x)
    disable_observer(tree)
    frozen = fake.limits()
    fake(x * 10)
    assert fake.limits() == frozen


def test_ranges_that_saw_nothing_cannot_be_frozen() -> None:
    tree = nn.ModuleDict({"seen": _observing(), "unseen": _observing()})
    tree["seen"](_values(2, 3))
    tree["unseen"](torch.empty(2, 0))
    with pytest.raises(QuantizationError, match=r"1 ranges were never observed.*'unseen'"):
        disable_observer(tree)
    tree["seen"](_values(2, 3) * 5)
    assert tree["seen"].limits()[1] > 5  # type: ignore[operator]  # it still observes


def _observing() -> ActivationFakeQuantize:
    return ActivationFakeQuantize(Calibration())


def test_values_that_are_not_finite_are_an_error() -> None:
    fake = _observing()
    with pytest.raises(QuantizationError, match="not finite"):
        fake(torch.tensor([0.0, torch.inf]))


def test_dynamic_ranges_are_those_of_the_very_tensor() -> None:
    fake = DynamicFakeQuantize()
    for factor in (1.0, 100.0):
        x = (_values(2, 3, 40) * factor).requires_grad_()
        scale, zero = activation_codes(*(float(end) for end in x.detach().aminmax()))
        found = fake(x)
        torch.testing.assert_close(
            found, torch.fake_quantize_per_tensor_affine(x.detach(), scale, zero, 0, 255)
        )
        found.sum().backward()
        assert x.grad is not None
        assert (x.grad == 1).all(), "nothing is clipped"
    assert fake(torch.empty(0, 4)).shape == (0, 4)


def test_dynamic_ranges_may_have_a_least_step() -> None:
    fake, x = DynamicFakeQuantize(0.5), torch.tensor([-0.4, 0.2, 0.3, 20.0])
    assert fake(x).tolist() == [-0.5, 0, 0.5, 20]
    assert torch.equal(fake(torch.zeros(3)), torch.zeros(3))
    exact = torch.tensor([0.0, 255.0, 100.0])
    assert torch.equal(fake(exact), exact), "a range that is wide enough is as it was"


@pytest.mark.parametrize("learned", [False, True])
def test_half_precision_stays_what_it_is(learned: bool) -> None:
    x = _values(2, 30).bfloat16().requires_grad_()
    found = _fixed(-1.0, 1.5, learned=learned)(x)
    assert found.dtype == torch.bfloat16
    found.float().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


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
