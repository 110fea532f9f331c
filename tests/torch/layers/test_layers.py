"""Compressed layers compute what those they stand for compute, to the precision they promise."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import nn

from tests.measures import snr_db
from tts_compress.compression import compress
from tts_compress.errors import ModelError
from tts_compress.torch.layers.base import build_layer, layer_state, pack_nibbles, unpack_nibbles
from tts_compress.torch.layers.geometry import Geometry, operator_of
from tts_compress.torch.layers.int4 import Int4Layer, Int4Linear
from tts_compress.torch.layers.integer import transposed_phases


@dataclass(frozen=True)
class Case:
    """A layer and the shape of its input."""

    name: str
    layer: Any
    shape: tuple[int, ...]


def _cases() -> list[Case]:
    torch.manual_seed(0)
    conv, up = nn.Conv1d, nn.ConvTranspose1d
    return [
        Case("linear", nn.Linear(48, 20), (2, 7, 48)),
        Case("linear without bias", nn.Linear(48, 20, bias=False), (48,)),
        Case("conv", conv(12, 20, 5), (2, 12, 31)),
        Case("one tap", conv(12, 20, 1), (2, 12, 31)),
        Case("one tap of one frame", conv(12, 20, 1, bias=False), (12, 1)),
        Case("strided", conv(12, 20, 5, stride=3, padding=2, dilation=2), (1, 12, 31)),
        Case("grouped", conv(12, 18, 3, groups=3, bias=False), (2, 12, 31)),
        Case("unbatched", conv(12, 20, 3, padding="same"), (12, 31)),
        Case("even same", conv(12, 20, 4, padding="same"), (2, 12, 31)),
        Case("reflected", conv(12, 20, 5, padding=2, padding_mode="reflect"), (2, 12, 31)),
        Case("transposed", up(12, 20, 16, stride=8, padding=4), (2, 12, 9)),
        Case("odd transposed", up(12, 20, 7, stride=3, padding=1, output_padding=2), (2, 12, 9)),
        Case("padded more than taps", up(8, 4, 3, stride=3, output_padding=2), (1, 8, 9)),
        Case("grouped transposed", up(12, 18, 5, stride=2, groups=3, bias=False), (12, 9)),
        Case("short taps", up(8, 8, 2, stride=4), (1, 8, 9)),
    ]


LEAST_SNR = {
    ("int8", "dynamic"): 32.0,
    ("int8", "static"): 32.0,
    ("int8", "none"): 38.0,
    ("float16", "float16"): 60.0,
    ("bfloat16", "bfloat16"): 40.0,
}


@pytest.mark.parametrize("case", _cases(), ids=lambda c: c.name)
@pytest.mark.parametrize("kind", LEAST_SNR, ids="/".join)
def test_a_compressed_layer_is_near_and_survives_its_file(
    case: Case, kind: tuple[str, str]
) -> None:
    chosen = kind
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(1)) + 0.3
    geometry = Geometry.of(case.layer)
    with torch.inference_mode():
        limits = (float(x.min()), float(x.max()))
        state = layer_state(case.layer, *chosen, limits=limits)
        layer = build_layer(geometry, *chosen, state)
        expected, found = case.layer(x), layer(x)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        assert snr_db(expected, found) > LEAST_SNR[kind]
        kept = layer.state()
        assert kept.keys() == state.keys()
        for name in set(state) - {"bias"}:
            assert torch.equal(kept[name], state[name].to(kept[name].dtype)), name
        again = build_layer(geometry, *chosen, kept)
        assert torch.equal(again(x), found)
        assert torch.equal(copy.deepcopy(layer)(x), found)


@pytest.mark.parametrize("engine", ["fbgemm", "onednn"])
def test_linear_layers_multiply_the_codes(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers have no rounding: what comes out is the product of the codes, in the last bits."""
    if engine not in torch.backends.quantized.supported_engines:
        pytest.skip(f"this build of torch has no {engine}")
    monkeypatch.setattr("tts_compress.torch.layers.integer._ENGINES", (engine,))
    linear, x = nn.Linear(24, 10), torch.randn(7, 24, generator=torch.Generator().manual_seed(3))
    chosen = ("int8", "dynamic")
    state = layer_state(linear, *chosen)
    found = build_layer(Geometry.of(linear), *chosen, state)(x)
    weight = state["weight"].double() * state["weight_scale"].double().unsqueeze(1)
    expected = nn.functional.linear(_rounded(x), weight, state["bias"].double())
    assert snr_db(expected, found) > 55  # a value between two codes may fall to either side


def test_convolutions_multiply_the_codes() -> None:
    """Not rounded to the codes of the input, which some kernels of torch do."""
    torch.manual_seed(0)
    layer, x = nn.Conv1d(12, 20, 5), torch.randn(3, 12, 31) * 0.1
    layer.weight.data *= 20  # what comes out is far larger than what goes in
    chosen = ("int8", "dynamic")
    state = layer_state(layer, *chosen)
    found = build_layer(Geometry.of(layer), *chosen, state)(x)
    weight = state["weight"].double() * state["weight_scale"].double().view(-1, 1, 1)
    expected = nn.functional.conv1d(_rounded(x), weight, state["bias"].double())
    assert snr_db(expected, found) > 55


@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_either_layout_of_a_signal_gives_the_same(activations: str) -> None:
    torch.manual_seed(0)
    layer, chosen = nn.Conv1d(12, 20, 5, padding=2), ("int8", activations)
    x = torch.randn(2, 12, 31)
    state = layer_state(layer, *chosen, limits=(-3.0, 3.0))
    small = build_layer(Geometry.of(layer), *chosen, state)
    last = x.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(small(x), small(last))


def test_an_input_that_is_not_finite_is_an_error() -> None:
    layer, chosen = nn.Conv1d(2, 2, 3), ("int8", "dynamic")
    small = build_layer(Geometry.of(layer), *chosen, layer_state(layer, *chosen))
    with pytest.raises(ValueError, match="not finite"):
        small(torch.full((1, 2, 4), float("nan")))


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor after rounding to `uint8` codes; the oracle's own arithmetic, in FP64."""
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    return ((torch.round(x.double() / scale) + zero).clamp(0, 255) - zero) * scale


def test_phases_of_a_transposed_convolution_are_exact() -> None:
    torch.manual_seed(0)
    layer = nn.ConvTranspose1d(6, 4, 7, stride=3, padding=2).double()
    x = torch.randn(1, 6, 11, dtype=torch.float64)
    weight = transposed_phases(layer.weight.detach(), Geometry.of(layer))
    phases = nn.functional.conv1d(x, weight, padding=weight.shape[2] - 1)
    woven = phases.reshape(1, 3, 4, -1).permute(0, 2, 3, 1).flatten(-2)
    length = (11 - 1) * 3 - 4 + 7
    assert layer.bias is not None
    expected = layer(x) - layer.bias.view(-1, 1)
    torch.testing.assert_close(woven[..., 2 : 2 + length], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("outputs", "group"), [(32, 32), (48, 64), (20, 32), (32, 16)])
def test_four_bits_multiply_what_the_codes_stand_for(outputs: int, group: int) -> None:
    """This holds in torch's kernel, which takes some shapes, and without it, for all shapes."""
    torch.manual_seed(0)
    linear, chosen = nn.Linear(128, outputs), ("int4", "none")
    state = layer_state(linear, *chosen, group_size=group)
    layer = build_layer(Geometry.of(linear), *chosen, state)
    assert isinstance(layer, Int4Linear)
    x = torch.randn(2, 5, 128)
    expected = nn.functional.linear(x, layer.real_weight(), linear.bias)
    with torch.inference_mode():
        assert snr_db(expected, layer(x)) > 45  # bfloat16 inputs
        assert snr_db(linear(x), layer(x)) > 15
    kept = layer.state()
    assert all(torch.equal(kept[name], state[name]) for name in state)
    assert kept["weight"].nbytes + kept["weight_scale"].nbytes <= outputs * (64 + 2 * 128 // group)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv1d(16, 12, 4, stride=2, padding=1),
        nn.Conv1d(16, 12, 8, groups=4, bias=False),
        nn.ConvTranspose1d(8, 6, 8, stride=4, padding=2, output_padding=1),
        nn.ConvTranspose1d(16, 6, 2, groups=2, bias=False),
    ],
    ids=["strided", "grouped", "transposed", "grouped transposed"],
)
def test_convolutions_in_four_bits(layer: Any) -> None:
    """A group is 32 neighbours among the weights of one output channel, whatever their layout."""
    chosen, x = ("int4", "none"), torch.randn(2, layer.in_channels, 21)
    state = layer_state(layer, *chosen, group_size=32)
    small = build_layer(Geometry.of(layer), *chosen, state)
    assert isinstance(small, Int4Layer)
    axis = 1 if isinstance(layer, nn.ConvTranspose1d) else 0
    expected = layer.weight.detach().transpose(0, axis).clone(memory_format=torch.contiguous_format)
    for channel in expected:
        for part in channel.reshape(-1).split(32):
            step = (part.abs().max() / 7).bfloat16().float()
            part.copy_((part / step).round().clamp(-8, 7) * step)
    torch.testing.assert_close(small.real_weight(), expected.transpose(0, axis))
    plain = copy.deepcopy(layer)
    plain.weight.data = expected.transpose(0, axis)
    with torch.inference_mode():
        torch.testing.assert_close(small(x), plain(x))
    kept = small.state()
    assert all(torch.equal(kept[name], state[name]) for name in state)
    assert kept["weight"].nbytes * 2 == layer.weight.numel()


def test_moving_layers_between_devices() -> None:
    """Weights packed for a CPU stay there: a move is an error; four bits leave its layout first."""
    linear, x = nn.Linear(128, 32), torch.randn(3, 128)
    chosen = ("int4", "none")
    layer = build_layer(Geometry.of(linear), *chosen, layer_state(linear, *chosen))
    with torch.inference_mode():
        expected = layer(x)
    state = layer.state()
    moved = layer.to(torch.float64)  # a cast moves like a change of device
    assert all(torch.equal(moved.state()[k], state[k]) for k in ("weight", "weight_scale"))
    with torch.inference_mode():
        assert torch.equal(moved(x), expected)
    for kind, module in (("int8", linear), ("int8", nn.Conv1d(4, 4, 3))):
        small = (kind, "dynamic")
        packed = build_layer(Geometry.of(module), *small, layer_state(module, *small))
        with pytest.raises(ModelError, match="cannot move to 'meta'"):
            packed.to("meta")
        packed.to("cpu")


def test_nibbles_survive_packing() -> None:
    codes = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 1)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)


def test_a_layer_with_a_forward_of_its_own_is_no_operator() -> None:
    class Twice(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    class Called(nn.Linear):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return torch.as_tensor(super().__call__(x) * 2)

    class Causal(nn.Conv1d):
        def _conv_forward(self, x: torch.Tensor, *parts: Any) -> torch.Tensor:
            return torch.as_tensor(super()._conv_forward(F.pad(x, (2, 0)), *parts))

    patched: Any = nn.Linear(2, 2)
    patched.forward = lambda x: x * 2
    assert operator_of(nn.Linear(2, 2)) == "Linear"
    assert operator_of(Twice(2, 2)) is None
    assert operator_of(Called(2, 2)) is None
    assert operator_of(Causal(2, 2, 3)) is None
    assert operator_of(patched) is None
    assert operator_of(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2)) == "Linear"
    assert operator_of(nn.Conv3d(2, 2, 1)) is None


def test_a_table_can_be_read_directly() -> None:
    """Codebooks are looked up by their weight, and tied heads multiply by it."""
    table, chosen = nn.Embedding(10, 6), ("int8", "none")
    small = build_layer(Geometry.of(table), *chosen, layer_state(table, *chosen))
    ids = torch.tensor([[3, 9, 0]])
    assert torch.equal(nn.functional.embedding(ids, small.weight), small(ids))


def test_weight_tells_type_and_shape_without_memory() -> None:
    """Upstream code converts its input to the type, and makes room for states on the device."""
    linear, chosen = nn.Linear(8, 4), ("int8", "dynamic")
    layer = build_layer(Geometry.of(linear), *chosen, layer_state(linear, *chosen))
    assert layer.weight.shape == (4, 8)
    assert layer.weight.dtype == torch.float32
    assert layer.weight.device.type == "cpu"
    assert layer.weight.untyped_storage().nbytes() == 4
    assert layer.weight.isnan().all(), "who multiplies by it is to notice"


@pytest.mark.parametrize(("scheme", "groups"), [("int8-dynamic", 1), ("int8-static", 2)])
def test_convolutions_take_no_rows(scheme: str, groups: int) -> None:
    """Their kernel does not, and an empty batch has no range; FP32 returns an empty one."""
    net: nn.Module = torch.nn.Conv1d(64, 32, 3, padding=1, padding_mode="reflect")
    batch = torch.randn(2, 64, 9)
    net = torch.nn.Sequential(net, torch.nn.ConvTranspose1d(32, 32, 4, 2, padding=1, groups=groups))
    net.eval()
    small = compress(net, scheme, calibration=[batch] if scheme == "int8-static" else None)
    assert small(batch[:0]).shape == (0, 32, 18)
    assert small(batch).shape == (2, 32, 18)


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
@pytest.mark.parametrize(
    "module",
    [
        nn.Conv1d(24, 40, 7, padding=3),
        nn.Conv1d(24, 40, 3, dilation=4, bias=False),
        nn.Conv1d(24, 40, 6, stride=3, dilation=2, padding=5),
        nn.ConvTranspose1d(24, 16, 10, stride=5, padding=2, output_padding=1),
    ],
    ids=["padded", "dilated", "strided", "transposed"],
)
def test_few_frames_and_many_are_convolved_alike(
    module: Any, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are one product of matrices; both kernels multiply the same integers."""
    chosen = ("int8", scheme)
    state = layer_state(module, *chosen, limits=(-3.0, 3.0))
    layer = build_layer(Geometry.of(module), *chosen, state)
    inputs = torch.randn(2, 24, 90).clamp(-3, 3)
    few = layer(inputs)
    assert snr_db(module(inputs).detach(), few) > 30
    monkeypatch.setattr("tts_compress.torch.layers.integer._MOST_ROWS", 0)
    torch.testing.assert_close(layer(inputs), few, rtol=1e-5, atol=1e-5)
    copied = copy.deepcopy(layer)
    assert torch.equal(copied.state()["weight"], state["weight"])
