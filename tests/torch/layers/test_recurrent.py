"""Recurrent layers stayed in FP32 without a word, half of many a speech network's weights."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from tests.measures import snr_db
from tts_compress import compress, load_module, save_module
from tts_compress.torch.layers.base import CompressedLayer, build_layer, find_layer, layer_state
from tts_compress.torch.layers.geometry import Geometry
from tts_compress.torch.layers.integer import IntegerLayer

LEAST_SNR = {("int8", "none"): 35.0, ("int8", "dynamic"): 30.0}
_LAYERS = {
    "lstm": nn.LSTM(24, 32),
    "deep": nn.LSTM(24, 32, 2, bidirectional=True, batch_first=True),
    "bare": nn.LSTM(24, 32, bias=False, batch_first=True),
    "projected": nn.LSTM(24, 32, 2, proj_size=8, bidirectional=True),
    "gru": nn.GRU(24, 32, batch_first=True),
    "deep gru": nn.GRU(24, 32, 2, bidirectional=True),
    "bare gru": nn.GRU(24, 32, bias=False),
}
_SEQUENCES = [torch.randn(n, 24, generator=torch.Generator().manual_seed(n)) for n in (5, 9, 3)]
_INPUTS = {
    "batch": torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(0)),
    "single": torch.randn(6, 24, generator=torch.Generator().manual_seed(0)),
    "packed": pack_sequence(_SEQUENCES, enforce_sorted=False),
}


@pytest.fixture(autouse=True)
def plain_kernels() -> Iterator[None]:
    """Have torch's own kernels compute FP32: oneDNN's LSTM is far off on an emulated Haswell."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def _tensors(results: tuple[Any, Any]) -> list[Tensor]:
    """Return outputs and states of a call."""
    outputs, states = results
    values = outputs.data if isinstance(outputs, PackedSequence) else outputs
    return [values, *(states if isinstance(states, tuple) else [states])]


def _compressed(layer: nn.Module, kind: tuple[str, str]) -> CompressedLayer:
    return build_layer(Geometry.of(layer), *kind, layer_state(layer, *kind))


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", _LAYERS)
@pytest.mark.parametrize("kind", LEAST_SNR, ids="/".join)
def test_outputs_and_states_are_near_for_every_kind_of_input(
    name: str, kind: tuple[str, str]
) -> None:
    layer = _LAYERS[name].eval()
    form = find_layer(Geometry.of(layer), *kind)
    assert form is not None
    if name == "projected" and issubclass(form, IntegerLayer):
        assert form.objection(Geometry.of(layer), 64) == "no integer kernel projects states"
        return
    small: Any = _compressed(layer, kind)
    for inputs in _INPUTS.values():
        with torch.inference_mode():
            first = layer(inputs)
            # The second call goes on from the states of the first.
            calls = [(first, small(inputs)), (layer(inputs, first[1]), small(inputs, first[1]))]
        for expected, found in calls:
            for wanted, got in zip(_tensors(expected), _tensors(found), strict=True):
                assert wanted.shape == got.shape
                assert wanted.dtype == got.dtype
                assert snr_db(wanted, got) > LEAST_SNR[kind]
    assert small.hidden_size == 32  # what upstream code reads
    assert small.batch_first == layer.batch_first


@pytest.mark.parametrize("kind", LEAST_SNR, ids="/".join)
def test_the_state_of_a_layer_makes_it_again(kind: tuple[str, str]) -> None:
    small: Any = _compressed(_LAYERS["deep"], kind)
    again: Any = build_layer(small.geometry, *kind, small.state())
    for inputs in _INPUTS.values():
        with torch.inference_mode():
            pairs = zip(_tensors(small(inputs)), _tensors(again(inputs)), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)


def test_neighbours_stay_below_what_processors_without_vnni_add() -> None:
    codes = _compressed(_LAYERS["deep"], ("int8", "dynamic")).state()["weight"].short()
    shapes, start = Geometry.of(_LAYERS["deep"]).matrices, 0
    for rows, columns in shapes:
        part = codes[start : start + rows * columns].view(rows, columns)
        assert (part[:, :-1:2] + part[:, 1::2]).abs().max() <= 128
        start += rows * columns
    assert start == len(codes)


class Net(nn.Module):
    """A network of recurrent layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.last = nn.Linear(width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `[batch, time, width]`."""
        return torch.as_tensor(self.last(self.gru(self.lstm(inputs)[0])[0]))


@pytest.mark.parametrize("scheme", ["int8", "int8-weight-only"])
@pytest.mark.parametrize("width", [128, pytest.param(512, marks=pytest.mark.slow)])
def test_a_recurrent_network_takes_a_quarter(tmp_path: Any, scheme: str, width: int) -> None:
    """Its file was as large as in FP32."""
    torch.manual_seed(0)
    net = Net(width).eval()
    small = compress(net, scheme)
    path = save_module(small, tmp_path / "net.safetensors")
    whole = sum(parameter.nbytes for parameter in net.parameters())
    assert path.stat().st_size <= 0.30 * whole
    x = torch.randn(2, 30, width)
    with torch.inference_mode():
        expected, found = net(x), small(x)
        assert torch.equal(load_module(Net(width), path)(x), found)
    assert snr_db(expected, found) > 25
