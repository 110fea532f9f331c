"""Modules that torch.ao or torchao changed are named; those with QuantStubs are compressed."""

import importlib
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


def _made(how: str) -> Any:
    """Return the network as another quantizer leaves it."""
    is_trained = "training" in how
    net, kind = _net().train(is_trained), "qat_qconfig" if is_trained else "qconfig"
    if how.startswith("fx"):
        mapping = getattr(quantization, f"get_default_{kind}_mapping")("fbgemm")
        prepare = quantize_fx.prepare_qat_fx if is_trained else quantize_fx.prepare_fx
        net, convert = prepare(net, mapping, (INPUTS,)), quantize_fx.convert_fx
    elif how == "dynamic":
        return quantization.quantize_dynamic(net, {nn.Linear})
    elif how == "torchao":
        torchao: Any = importlib.import_module("torchao.quantization")
        torchao.quantize_(net, torchao.Int8WeightOnlyConfig())
        return net
    elif how == "ours":
        return prepare_qat(net, "int8-dynamic").module
    else:
        net.qconfig = getattr(quantization, f"get_default_{kind}")("fbgemm")
        net = (quantization.prepare_qat if is_trained else quantization.prepare)(net)
        convert = quantization.convert
    if not how.endswith("converted"):
        return net
    net(INPUTS)
    return convert(net)


@pytest.mark.usefixtures("torchao")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("training", r"prepared for training by torch\.ao \('quant.*QuantStub"),
        ("prepared", r"prepared for calibration by torch\.ao \("),
        ("converted", r"quantized by torch\.ao \('quant' is a Quantize\); give the FP32 module"),
        ("fx", r"prepared for calibration by torch\.ao"),
        ("fx training", r"prepared for training by torch\.ao"),
        ("fx converted", r"quantized by torch\.ao \('first' is a LinearReLU\)"),
        ("dynamic", r"quantized by torch\.ao \('first' is a Linear\)"),
        ("torchao", r"quantized by torchao.* \('first\.weight' is a"),
        ("ours", r"prepared by prepare_qat .*convert_qat"),
    ],
)
def test_what_another_quantizer_left_is_named(how: str, told: str) -> None:
    net = _made(how)
    with pytest.raises(QuantizationError, match=told) as caught:
        compress(net, "int8-dynamic")
    assert "\n" not in str(caught.value)
    if how != "ours":
        with pytest.raises(QuantizationError, match=told):
            prepare_qat(net, find_recipe("module", "int8-dynamic"))


def test_fused_layers_are_compressed_as_what_they_hold() -> None:
    """`fuse_modules` is in FP32 still."""
    net = _net()
    fused = quantization.fuse_modules(net, [["first", "act"]])
    assert torch.equal(compress(fused, "int8")(INPUTS), compress(net, "int8")(INPUTS))
