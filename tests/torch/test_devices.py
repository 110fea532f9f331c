"""Devices by name, and modules that are moved: no GPU is needed."""

# ruff: noqa: D102, N802  the methods of the stand-in have the names of NVML's functions

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import nn

from tests.measures import snr_db
from tests.pretend import CudaTensor, pretend_gpu
from tts_compress import compress
from tts_compress.environment import describe_environment, describe_gpus
from tts_compress.errors import ModelError
from tts_compress.qat import trainer
from tts_compress.qat.trainer import matmul_precision
from tts_compress.torch.devices import (
    device_of,
    find_device,
    gpu_activity,
    gpu_load,
    moved,
    set_precision,
    start_clock,
    watched,
)
from tts_compress.torch.layers.gpu import GpuInt8Linear

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


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
        assert device_of(moved(there, CPU)) == device_of(module)
        with pytest.raises(RuntimeError, match="two devices"):
            there(ids)


@pytest.mark.filterwarnings("ignore::tts_compress.errors.TTSCompressWarning")
def test_compressed_layers_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floats and small weights go anywhere; integers where something multiplies them."""
    torch.manual_seed(0)
    module, ids = Tied().eval(), torch.arange(6)[None]
    for scheme in ("int8-weight-only", "int4-weight-only", "fp16"):
        small = compress(module, scheme)
        with torch.no_grad(), pretend_gpu(monkeypatch):
            scores = moved(small, CUDA)(ids.to(CUDA)).cpu()
            torch.testing.assert_close(scores, small(ids), rtol=1e-3, atol=1e-3)
    small = compress(module, "int8")
    told = "'conv' is a Conv1d of int8 weights and dynamic activations, which nothing computes on"
    with pretend_gpu(monkeypatch), pytest.raises(ModelError, match=told):
        moved(small, CUDA)


def test_integers_have_layers_of_their_own_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(64, 32)).eval(), torch.randn(40, 64)
    small: Any = compress(module, "int8")
    with torch.no_grad(), pretend_gpu(monkeypatch):
        there: Any = moved(small, CUDA)
        assert isinstance(there[0], GpuInt8Linear)
        assert there[0].state()["weight"].cpu().equal(small[0].state()["weight"])
        assert snr_db(module(x).numpy(), there(x.to(CUDA)).cpu().numpy()) > 35


class NoCounterError(Exception):
    """An error of NVML."""


class Nvml:
    """A machine with one GPU, whose utilisation rises with every reading."""

    NVMLError = NoCounterError

    def __init__(self) -> None:
        self.opened = self.readings = 0
        self.has_power = True

    def nvmlInit(self) -> None:
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13_020

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.10"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-abc"
        return "gpu 0"

    def nvmlDeviceGetName(self, gpu: str) -> str:
        return f"NVIDIA {gpu}"

    def nvmlDeviceGetUtilizationRates(self, gpu: str) -> Any:
        assert gpu == "gpu 0"
        self.readings += 1
        return SimpleNamespace(gpu=10 * self.readings)

    def nvmlDeviceGetPowerUsage(self, gpu: str) -> int:
        assert gpu == "gpu 0"
        if not self.has_power:
            raise NoCounterError
        return 250_500


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    """Let this machine have a GPU by NVML, and torch one with some memory in use."""
    library = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="abc"))
    stats = {
        "allocated_bytes.all.current": 300,
        "allocated_bytes.all.peak": 700,
        "reserved_bytes.all.current": 1000,
        "inactive_split_bytes.all.current": 250,
    }
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda _: stats)
    yield library
    assert library.opened == 0, "it was left open"


_MEMORY = {"allocated_bytes": 300, "reserved_bytes": 1000, "peak_bytes": 700, "fragmentation": 0.25}


def test_the_environment_names_gpu_driver_and_cuda(nvml: Nvml) -> None:
    assert nvml.opened == 0
    expected = {"name": "NVIDIA gpu 0", "driver": "580.10", "cuda": "13.2"}
    assert describe_environment()["gpus"] == [expected]


@pytest.mark.usefixtures("nvml")
def test_a_log_has_memory_and_activity_of_a_gpu() -> None:
    load = gpu_load(CUDA)
    assert load == {f"gpu_{name}": value for name, value in _MEMORY.items()} | {
        "gpu_utilisation_percent": 10.0,
        "gpu_power_w": 250.5,
    }
    assert gpu_load(CPU) == {}


def test_activity_is_the_mean_over_a_block(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tts_compress.torch.devices._EVERY_S", 0.001)
    with watched(CUDA) as use:
        while nvml.readings < 3:
            pass
    assert use == _MEMORY | {
        "utilisation_percent": pytest.approx(5 * (nvml.readings + 1)),
        "power_w": 250.5,
    }


def test_what_a_driver_lacks_is_left_out(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.has_power = False
    assert gpu_activity(CUDA) == {}
    with watched(CUDA) as use:
        pass
    assert use == _MEMORY
    monkeypatch.setattr(nvml, "nvmlInit", lambda: (_ for _ in ()).throw(NoCounterError()))
    assert describe_gpus() == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert describe_gpus() == []
    assert "gpus" not in describe_environment()


def test_a_gpu_is_timed_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            told.append("record")

        def elapsed_time(self, other: "Event") -> float:
            assert other is not self
            return 1500.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: told.append("wait"))
    seconds = start_clock(CUDA)
    told.append("work")
    assert seconds() == 1.5
    assert told == ["wait", "record", "work", "record", "wait"]
    assert start_clock(CPU)() >= 0


def _units(*formats: str) -> Callable[[str, torch.device], torch.Tensor]:
    """Return a function that multiplies like hardware with such number formats."""

    def multiply(wanted: str, _device: torch.device) -> torch.Tensor:
        return torch.tensor(0.1 if wanted in formats else 0.0)

    return multiply


@pytest.mark.parametrize(
    ("wanted", "formats", "told"),
    [
        ("highest", ("high", "medium"), "highest: FP32"),
        ("high", ("high", "medium"), "high: TF32"),
        ("medium", ("high", "medium"), "medium: bfloat16 products"),
        ("high", ("medium",), "high: no effect on this hardware, FP32"),
        ("medium", (), "medium: no effect on this hardware, FP32"),
    ],
)
def test_effect_is_what_products_show(
    monkeypatch: pytest.MonkeyPatch,
    wanted: Literal["highest", "high", "medium"],
    formats: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setattr(trainer, "_product", _units(*formats))
    with matmul_precision(wanted, CPU) as effect:
        assert effect.startswith(told)


@pytest.mark.parametrize("wanted", ["highest", "high", "medium"])
def test_setting_lasts_for_a_block(wanted: Literal["highest", "high", "medium"]) -> None:
    with matmul_precision(wanted, CPU) as effect:
        assert torch.get_float32_matmul_precision() == wanted
        assert effect.startswith(wanted)
    assert torch.get_float32_matmul_precision() == "highest"
