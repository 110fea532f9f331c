"""Devices by name, and modules that are moved: no GPU is needed."""

from typing import Any

import pytest
import torch
from torch import nn

from tests.measures import snr_db
from tests.pretend import CudaTensor, pretend_gpu
from tts_compress import compress
from tts_compress.errors import ModelError
from tts_compress.torch.devices import device_of, find_device, moved, set_precision

CUDA = torch.device("cuda", 0)


def test_a_device_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [find_device(name).type for name in ("cpu", "auto")] == ["cpu", "cpu"]
    with pytest.raises(ModelError, match=r"no CUDA device for torch .*take 'cpu' or 'auto'"):
        find_device("cuda:1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert [str(find_device(name)) for name in ("auto", "cuda", "cuda:0", "cpu")] == [
        *("cuda:1", "cuda:1", "cuda:0", "cpu")
    ]
    with pytest.raises(ModelError, match="no 'cuda:2'; there are 'cuda:0' to 'cuda:1'"):
        find_device("cuda:2")
    for name in ("gpu", "cuda:", "cuda:x", "cpu:0", ""):
        with pytest.raises(ModelError, match="accepted: cpu, cuda, cuda:N and auto"):
            find_device(name)


@pytest.mark.parametrize(("wanted", "tf32"), [("highest", False), ("high", True)])
def test_convolutions_follow_the_precision_of_products(
    monkeypatch: pytest.MonkeyPatch, wanted: Any, tf32: bool
) -> None:
    before = torch.get_float32_matmul_precision()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not tf32)
    set_precision(wanted, CUDA)
    assert torch.get_float32_matmul_precision() == wanted
    assert torch.backends.cudnn.allow_tf32 is tf32
    torch.set_float32_matmul_precision(before)


class Tied(nn.Module):
    """A table whose weights are used twice, a convolution, and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(32, 64), nn.Linear(64, 32, bias=False)
        self.head.weight = self.table.weight
        self.conv = nn.Conv1d(64, 64, 3, padding=1)
        self.register_buffer("gain", torch.tensor([0.5]), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores `[B, T, 32]`."""
        x = self.conv(self.table(ids).transpose(1, 2)).transpose(1, 2)
        scores: torch.Tensor = self.head(x * self.gain)
        return scores


def test_a_copy_lies_elsewhere_and_shares_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.arange(6)[None]
    with torch.no_grad(), pretend_gpu(monkeypatch):
        there: Any = moved(module, CUDA)
        assert device_of(there) == CUDA
        assert isinstance(there.gain, CudaTensor)
        assert there.head.weight is there.table.weight
        torch.testing.assert_close(there(ids.to(CUDA)).cpu(), module(ids))
        assert device_of(moved(there, torch.device("cpu"))) == device_of(module)
        with pytest.raises(RuntimeError, match="two devices"):
            there(ids)


@pytest.mark.filterwarnings("ignore::tts_compress.errors.TTSCompressWarning")
def test_compressed_layers_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats and small weights go anywhere; integers where something multiplies them."""
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.arange(6)[None]
    for scheme in ("int8-weight-only", "fp16"):
        small = compress(module, scheme)
        with torch.no_grad(), pretend_gpu(monkeypatch):
            scores = moved(small, CUDA)(ids.to(CUDA)).cpu()
            torch.testing.assert_close(scores, small(ids), rtol=1e-3, atol=1e-3)
    small = compress(module, "int8")
    told = "'conv' is a Conv1d of int8 weights and dynamic activations, which nothing computes on"
    with pretend_gpu(monkeypatch), pytest.raises(ModelError, match=told):
        moved(small, CUDA)


def test_integers_on_a_gpu_are_torchaos(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchao", reason="the extra 'gpu' is not installed")
    from tts_compress.torch.layers.torchao_linear import TorchaoInt8Linear

    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(64, 32)).eval(), torch.randn(40, 64)
    small: Any = compress(module, "int8")
    with torch.no_grad(), pretend_gpu(monkeypatch):
        there: Any = moved(small, CUDA)
        assert isinstance(there[0], TorchaoInt8Linear)
        assert there[0].state()["weight"].cpu().equal(small[0].state()["weight"])
        assert snr_db(module(x).numpy(), there(x.to(CUDA)).cpu().numpy()) > 35
