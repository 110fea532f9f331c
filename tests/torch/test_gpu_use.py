"""Memory, clock and activity of a GPU, by stand-ins for torch's CUDA and for NVML."""

# ruff: noqa: D102, N802  the methods have the names of NVML's functions

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tts_compress.environment import describe_environment, describe_gpus
from tts_compress.torch.devices import gpu_activity, gpu_load, start_clock, watched

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


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
