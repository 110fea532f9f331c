"""The benchmark for GPUs: its arithmetic and its tables, with a made-up clock; no GPU is needed."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import run
from benchmarks.gpu.__main__ import describe_result, file_stem, markdown
from benchmarks.gpu.probe import CudaProbe, held_bytes
from benchmarks.gpu.run import CONTESTANTS, Choice, Measured, bench_network, prepare_contestant
from benchmarks.networks.network import NETWORKS, Network, Result
from tts_compress.errors import EvaluationError, MissingExtraError
from tts_compress.models.gpt_sovits import loading

pytestmark = pytest.mark.usefixtures("one_thread")

_DEVICE = {"name": "NVIDIA X1", "capability": "9.0", "memory": "80 GiB", "cuda": "13.0"}


class Body(nn.Module):
    """Two linear layers; the compiler passes over the forward of torch's own containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `[..., 32]`."""
        found: torch.Tensor = self.last(torch.relu(self.first(x)))
        return found


class FakeProbe(CudaProbe):
    """A CPU whose clock counts how often it was read, whatever runs."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.precisions: list[tuple[str, bool]] = []
        self.waits = True
        self._clock = itertools.count(1)

    def describe(self) -> dict[str, str]:
        """Return a device that does not exist."""
        return _DEVICE

    def time_ms(self, step: Callable[[], torch.Tensor]) -> float:
        """Run, and return 1, 2, 3 and so on."""
        self.precisions.append(
            (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
        )
        step()
        return float(next(self._clock))

    def capture(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Return the run itself, unless it is said to wait for the GPU."""
        if self.waits:
            raise RuntimeError("operation not permitted when stream is capturing")
        return step

    def working_bytes(self, step: Callable[[], torch.Tensor]) -> int:
        """Run, and return a thousand."""
        step()
        return 1000


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """Return a small network, which the benchmark takes for the requested one."""

    def make() -> nn.Module:
        return nn.ModuleDict({"body": Body()})

    inputs = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))

    def call(root: nn.Module) -> Callable[[], torch.Tensor]:
        return lambda: root["body"](inputs)  # type: ignore[index]

    def blocks(root: nn.Module) -> list[nn.Module]:
        return list(root.children())

    found = Network(
        name="toy", family="module", summary="A toy", make=make, call=call, blocks=blocks
    )
    for name in ("toy", "dit"):
        monkeypatch.setitem(NETWORKS, name, partial(replace, found, name=name))
    return found


def _choice(*names: str) -> Choice:
    return Choice(contestants=("fp32", *names), rounds=3, warm_ups=2)


def _bench(name: str, choice: Choice, probe: CudaProbe, tell: Any) -> Result:
    *_, last = bench_network(name, choice, probe, tell)
    return last


def _silent(*_: Any) -> None:
    pass


@pytest.mark.usefixtures("network")
def test_contestants_run_in_turns_and_are_compared_with_the_first() -> None:
    probe = FakeProbe()
    told: list[tuple[str, int, int]] = []
    names = ("fp32 tf32", "bf16 autocast", "fp16", "int8", "fp8")
    result = _bench("toy", _choice(*names), probe, lambda *args: told.append(args))
    by_name = {measured.name: measured for measured in result.contestants}
    assert list(by_name) == ["fp32", *names]
    # Five run; after two rounds the clock shows 11 to 15, 16 to 20 and 21 to 25.
    assert by_name["fp32"].median_ms == 16
    assert by_name["fp32"].min_ms == 11
    assert by_name["int8"].median_ms == 20
    assert by_name["int8"].min_ms == 15
    assert by_name["int8"].ratio_median == pytest.approx(16 / 20)
    assert by_name["int8"].ratio_min == pytest.approx(11 / 15)
    assert by_name["fp32"].ratio_median == 1
    assert by_name["fp32"].snr_db is None
    assert 20 < (by_name["bf16 autocast"].snr_db or 0) < (by_name["fp16"].snr_db or 0) < 90
    assert 30 < (by_name["int8"].snr_db or 0) < 60
    assert by_name["fp8"].error is not None
    assert by_name["fp8"].error.startswith("QuantizationError: 8-bit floats")
    assert by_name["fp8"].median_ms is None
    weights = 4 * (64 * 64 + 64 + 64 * 32 + 32)
    assert result.parameters == weights // 4
    assert by_name["fp32"].weight_bytes == weights
    assert by_name["fp16"].weight_bytes == weights // 2
    assert by_name["fp32"].peak_bytes == weights + 1000
    assert told[0] == ("prepare toy", 0, 6)
    assert told[-1] == ("time toy", 5, 5)


@pytest.mark.usefixtures("network")
def test_captured_runs_are_compared_with_each_other() -> None:
    probe = FakeProbe()
    probe.waits = False
    fp32, int8 = _bench("toy", _choice("int8"), probe, _silent).contestants
    # Four take turns; after two rounds the clock shows 9 to 12, 13 to 16 and 17 to 20.
    assert (fp32.median_ms, fp32.graph_ms, int8.median_ms, int8.graph_ms) == (13, 14, 15, 16)
    assert int8.ratio_median == pytest.approx(13 / 15)
    assert int8.graph_ratio == pytest.approx(14 / 16)
    assert 30 < (int8.snr_db or 0) < 60


@pytest.fixture
def _medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("network", "_medium")
@pytest.mark.parametrize("allowed", [True, False])
def test_only_the_reference_does_without_tf32_and_settings_come_back(
    monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    probe = FakeProbe()
    _bench("toy", _choice("fp32 tf32", "bf16 autocast"), probe, _silent)
    assert probe.precisions[:3] == [("highest", False), ("high", True), ("high", True)]
    assert torch.get_float32_matmul_precision() == "medium"
    assert torch.backends.cudnn.allow_tf32 is allowed
    assert not torch.is_autocast_enabled("cpu")


def test_contestants_are_eager_and_compiled(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert next(iter(CONTESTANTS)) == "fp32"
    assert [name for name, c in CONTESTANTS.items() if not c.tf32] == ["fp32", "fp32 compiled"]
    eager = [name for name, c in CONTESTANTS.items() if not c.compiled]
    assert [f"{name} compiled" for name in eager] == list(CONTESTANTS)[len(eager) :]
    compiled: list[Any] = []
    monkeypatch.setattr(nn.Module, "compile", lambda m, **options: compiled.append((m, options)))
    root = network.root()
    made = prepare_contestant(network, root, CONTESTANTS["fp32 compiled"])
    assert compiled == [(made.root["body"], {})]  # type: ignore[index]
    assert made.root["body"] is not root["body"]  # type: ignore[index]
    prepare_contestant(network, root, CONTESTANTS["int8"])
    assert len(compiled) == 1


@pytest.mark.usefixtures("network")
def test_what_was_not_compiled_does_not_count_as_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda m, **_: compiled(m, backend=lambda graph, _: graph.forward)
    )
    rows = _bench("toy", _choice("fp16 compiled"), FakeProbe(), _silent).contestants
    assert rows[1].error is None
    monkeypatch.setattr(nn.Module, "compile", lambda _, **__: None)
    rows = _bench("toy", _choice("fp16 compiled"), FakeProbe(), _silent).contestants
    assert rows[1].error == "RuntimeError: the compiler translated nothing"


def test_inputs_are_moved_once(network: Network) -> None:
    """`meta` stands for a device that is not the CPU."""
    root = network.root().to("meta")
    made = prepare_contestant(network, root, CONTESTANTS["fp32"])
    seen: list[torch.Tensor] = []
    made.root["body"].register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # type: ignore[index]
    assert made.step().device.type == "meta"
    made.step()
    assert seen[0] is seen[1]
    assert seen[0].device.type == "meta"


@pytest.mark.usefixtures("network")
def test_what_fails_is_a_row_but_the_reference_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(given: Any, root: nn.Module, contestant: Any) -> Any:
        made = prepare_contestant(given, root, contestant)
        if contestant.name == broken:
            body: Any = made.root["body"]  # type: ignore[index]
            body.register_forward_hook(lambda *_: torch.full((1,), float("nan")))
        return made

    monkeypatch.setattr(run, "prepare_contestant", prepare)
    broken = "fp16"
    rows = _bench("toy", _choice("fp16"), FakeProbe(), _silent).contestants
    assert rows[1].error == "ValueError: the output is not finite"
    broken = "fp32"
    with pytest.raises(ValueError, match="not finite"):
        _bench("toy", _choice("fp16"), FakeProbe(), _silent)


def test_weights_are_counted_as_they_are_held(torchao: Any) -> None:
    root = nn.Sequential(nn.Linear(64, 32), nn.Linear(64, 32))
    root[1].weight = root[0].weight
    assert held_bytes(root) == 4 * (64 * 32 + 32 + 32)
    single = nn.Linear(64, 32, bias=False)
    config = torchao.Int8DynamicActivationInt8WeightConfig(version=2, set_inductor_config=False)
    torchao.quantize_(single, config)
    # Codes, FP32 scales and the zero points that torchao keeps.
    assert held_bytes(single) == 64 * 32 + 32 * 4 + 32


def test_a_run_takes_what_torch_allocates_at_most_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time is that of `start_clock`, which has a test of its own."""
    log, cuda = list[str](), torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    monkeypatch.setattr(cuda, "synchronize", lambda _: log.append("wait"))
    monkeypatch.setattr(cuda, "memory_allocated", lambda _: 700)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda _: log.append("reset"))
    monkeypatch.setattr(cuda, "max_memory_allocated", lambda _: 1000)

    def step() -> torch.Tensor:
        log.append("run")
        return torch.zeros(1)

    assert CudaProbe().working_bytes(step) == 300
    assert log == ["wait", "reset", "run", "wait"]


def _result() -> Result:
    rows = (
        Measured(
            name="fp32",
            median_ms=10.0,
            min_ms=9.5,
            ratio_median=1.0,
            ratio_min=1.0,
            weight_bytes=1_300_000_000,
            peak_bytes=1_500_000_000,
        ),
        Measured(
            name="int8",
            median_ms=4.0,
            min_ms=3.8,
            ratio_median=2.5,
            ratio_min=2.5,
            graph_ms=0.5,
            graph_ratio=4.0,
            weight_bytes=400_000_000,
            peak_bytes=600_000_000,
            snr_db=38.25,
        ),
        Measured(name="fp8", error="RuntimeError: a | b"),
    )
    return Result(network="dit", summary="A DiT", parameters=336_000_000, contestants=rows)


def test_the_report_is_a_table_of_contestants() -> None:
    document = describe_result(_DEVICE, _choice(), _result())
    assert json.loads(json.dumps(document))["network"]["contestants"][1]["snr_db"] == 38.25
    lines = markdown(document, _result())
    assert lines[0] == "# A DiT, on NVIDIA X1"
    assert "Compute capability 9.0, 80 GiB, CUDA 13.0, torch " in lines[2]
    assert "336 M random weights; medians of 3 runs in turns after 2 warm-ups" in lines[2]
    assert lines[6:] == [
        "| contestant | median | speed | captured | speed | weights | peak | SNR |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
        "| fp32 | 10.00 ms | 1.00× |  |  | 1300.00 MB | 1500.00 MB |  |",
        "| int8 | 4.00 ms | 2.50× | 0.50 ms | 4.00× | 400.00 MB | 600.00 MB | 38.2 dB |",
        r"| fp8 | failed: RuntimeError: a \| b |  |  |  |  |  |  |",
    ]


def test_a_report_is_named_for_what_was_measured() -> None:
    assert file_stem("NVIDIA H100 (80GB)", "dit") == "gpu-nvidia-h100-80gb-dit"


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("bench: there is no CUDA device")
    assert "benchmarks.networks" in said
    with pytest.raises(EvaluationError):
        CudaProbe()


def test_the_command_writes_both_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, network: Network
) -> None:
    del network
    monkeypatch.setattr(command, "CudaProbe", FakeProbe)
    options = ["--networks", "dit", "--rounds", "1", "--warm-ups", "1", "--eager"]
    options += ["--contestants", "int8", "int8 compiled", "--output", str(tmp_path)]
    assert command.main(options) == 0
    document = json.loads((tmp_path / "gpu-nvidia-x1-dit.json").read_text())
    rows = document["network"]["contestants"]
    assert [row["name"] for row in rows] == ["fp32", "int8"]
    assert document["device"] == _DEVICE
    assert "| int8 |" in (tmp_path / "gpu-nvidia-x1-dit.md").read_text()


@pytest.mark.usefixtures("network")
def test_what_is_measured_is_written_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "CudaProbe", FakeProbe)
    monkeypatch.setattr(nn.Module, "compile", stop)
    options = ["--networks", "dit", "--rounds", "1", "--warm-ups", "1", "--output", str(tmp_path)]
    with suppress(KeyboardInterrupt, SystemExit):
        command.main([*options, "--contestants", "fp16 compiled", "fp16"])
    rows = json.loads((tmp_path / "gpu-nvidia-x1-dit.json").read_text())["network"]["contestants"]
    assert [row["name"] for row in rows] == ["fp32", "fp16"]


def test_networks_whose_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(*_: Any) -> Any:
        raise MissingExtraError("f5_tts", "f5")

    monkeypatch.setattr(command, "CudaProbe", FakeProbe)
    monkeypatch.setattr(command, "bench_network", missing)
    assert command.main([]) == 2
    assert "no network's package is installed" in capsys.readouterr().err
    assert command.main(["--networks", "dit"]) == 2
    assert "'f5_tts' is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--rounds", "0"])


class Decoder(nn.Module):
    """GPT-SoVITS' language model, as far as it is opened."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        sizes = config["model"]
        width, self.num_head = sizes["hidden_dim"], sizes["head"]
        layer = partial(nn.TransformerEncoderLayer, width, self.num_head, 64, batch_first=True)
        self.h = nn.Module()
        self.h.layers = nn.ModuleList(layer() for _ in range(2))
        self.ar_predict_layer = nn.Linear(width, sizes["vocab_size"])
        self.t2s_transformer = object()


def test_a_network_without_one_entrance_runs_where_its_weights_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPT-SoVITS' language model is called at two places; `meta` stands for another device."""

    def official() -> Any:
        there = SimpleNamespace(Text2SemanticDecoder=Decoder)
        return SimpleNamespace(running=nullcontext, t2s=there)

    monkeypatch.setattr(loading, "Official", official)
    network = NETWORKS["t2s-decoder"]()
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda m, **_: compiled.append(m))
    root = network.root()
    here = prepare_contestant(network, root, CONTESTANTS["fp32 compiled"])
    assert here.step().shape == (1, 1, 1025)
    assert compiled == [*here.root.get_submodule("t2s.t2s_transformer").blocks]  # type: ignore[misc]
    names = ("bf16 autocast", "fp16", "bf16", "int8")
    rows = _bench("t2s-decoder", _choice(*names), FakeProbe(), _silent).contestants
    assert {row.name: row.error for row in rows} == dict.fromkeys(("fp32", *names))
    assert all(15 < row.snr_db < 90 for row in rows[1:])
    vars(root).pop("scripted")
    there = prepare_contestant(network, root.to("meta"), CONTESTANTS["fp32"])
    assert there.step().device.type == "meta"


@pytest.mark.slow
def test_networks_are_listed_without_their_packages() -> None:
    """Each system has an environment with its own package alone."""
    missing = "import sys; sys.modules['pocket_tts'] = None; import benchmarks.networks as n"
    subprocess.run([sys.executable, "-c", missing], check=True)
