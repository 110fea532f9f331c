"""Modules that torch.ao or torchao changed are named; those with QuantStubs are compressed."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as _quantization
from torch.ao.quantization import quantize_fx as _quantize_fx

from tts_compress import compress, find_recipe
from tts_compress.errors import QuantizationError
from tts_compress.qat.prepare import prepare_qat

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.ao announces its end at every call

quantization: Any = _quantization  # without types
quantize_fx: Any = _quantize_fx

INPUTS = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


class Stubbed(nn.Module):
    """A network as torch's tutorials wrap it."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = quantization.QuantStub()
        self.first, self.act, self.last = nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        """Return as many numbers as it is given."""
        outputs: Tensor = self.dequant(self.last(self.act(self.first(self.quant(x)))))
        return outputs


def _net() -> Any:
    torch.manual_seed(0)
    return Stubbed().eval()


@pytest.mark.parametrize("scheme", ["int8", "int8-static", "int8-weight-only"])
def test_stubs_are_the_identity(scheme: str) -> None:
    net = _net()
    plain = nn.Sequential(net.first, net.act, net.last)
    net.qconfig = quantization.get_default_qconfig("fbgemm")  # as before `prepare`
    given = [INPUTS] if scheme == "int8-static" else None
    small = compress(net, scheme, calibration=given)
    assert torch.equal(small(INPUTS), compress(plain, scheme, calibration=given)(INPUTS))


def _prepared_qat() -> Any:
    net = _net().train()
    net.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(net)


def _prepared() -> Any:
    net = _net()
    net.qconfig = quantization.get_default_qconfig("fbgemm")
    return quantization.prepare(net)


def _converted() -> Any:
    net = _prepared()
    net(INPUTS)
    return quantization.convert(net)


def _fx() -> Any:
    mapping = quantization.get_default_qconfig_mapping("fbgemm")
    return quantize_fx.prepare_fx(_net(), mapping, (INPUTS,))


def _fx_qat() -> Any:
    mapping = quantization.get_default_qat_qconfig_mapping("fbgemm")
    return quantize_fx.prepare_qat_fx(_net().train(), mapping, (INPUTS,))


def _fx_converted() -> Any:
    net = _fx()
    net(INPUTS)
    return quantize_fx.convert_fx(net)


def _dynamic() -> Any:
    return quantization.quantize_dynamic(_net(), {nn.Linear})


def _torchao() -> Any:
    torchao: Any = importlib.import_module("torchao.quantization")
    net = _net()
    torchao.quantize_(net, torchao.Int8WeightOnlyConfig())
    return net


def _ours() -> Any:
    return prepare_qat(_net(), "int8-dynamic").module


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (_prepared_qat, r"prepared for training by torch\.ao \('quant.*QuantStub"),
        (_prepared, r"prepared for calibration by torch\.ao \("),
        (_converted, r"quantized by torch\.ao \('quant' is a Quantize\); give the FP32 module"),
        (_fx, r"prepared for calibration by torch\.ao"),
        (_fx_qat, r"prepared for training by torch\.ao"),
        (_fx_converted, r"quantized by torch\.ao \('first' is a LinearReLU\)"),
        (_dynamic, r"quantized by torch\.ao \('first' is a Linear\)"),
        (_torchao, r"quantized by torchao.* \('first\.weight' is a"),
        (_ours, r"prepared by prepare_qat .*convert_qat"),
    ],
)
def test_what_another_quantizer_left_is_named(make: Callable[[], Any], told: str) -> None:
    net = make()
    with pytest.raises(QuantizationError, match=told) as caught:
        compress(net, "int8-dynamic")
    assert "\n" not in str(caught.value)
    if make is not _ours:
        with pytest.raises(QuantizationError, match=told):
            prepare_qat(net, find_recipe("module", "int8-dynamic"))


def test_fused_layers_are_compressed_as_what_they_hold() -> None:
    """`fuse_modules` is in FP32 still."""
    net = _net()
    fused = quantization.fuse_modules(net, [["first", "act"]])
    assert torch.equal(compress(fused, "int8")(INPUTS), compress(net, "int8")(INPUTS))
