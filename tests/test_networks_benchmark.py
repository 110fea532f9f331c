"""The benchmark of whole networks: systems that are not there, and their upstream form."""

from pathlib import Path
from typing import Any

import pytest

from tts_compress.models.checkout import known_upstreams

torch = pytest.importorskip("torch")

from benchmarks.networks import __main__ as command  # noqa: E402
from benchmarks.networks.contestants import OPENED, make_peer  # noqa: E402
from benchmarks.networks.network import NETWORKS, Network  # noqa: E402


@pytest.fixture(autouse=True)
def _no_clones(monkeypatch: pytest.MonkeyPatch) -> None:
    for upstream in known_upstreams():
        monkeypatch.delenv(upstream.variable, raising=False)


@pytest.mark.parametrize("name", ["t2s-decoder", "sovits-decoder", "ns2-estimator"])
def test_a_network_without_its_clone_is_skipped_unless_it_was_asked_for(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "NETWORKS", {name: NETWORKS[name]})
    output = ["--output", str(tmp_path / "networks.json")]
    assert command.main(output) == 0
    assert f"{name}: skipped: " in capsys.readouterr().out
    assert command.main([*output, "--networks", name]) == 2
    assert "runs from a clone of its repository" in capsys.readouterr().err


def _network(official: float | None) -> Network:
    """A layer whose upstream form outputs a multiple of what it outputs here."""

    def call(root: Any) -> Any:
        return lambda: root.linear(torch.ones(1, 4))

    def as_upstream(root: Any) -> Any:
        return lambda: official * call(root)()

    return Network(
        name="flute",
        family="module",
        summary="a flute",
        make=lambda: torch.nn.ModuleDict({"linear": torch.nn.Linear(4, 4)}),
        call=call,
        official=None if official is None else as_upstream,
    )


@pytest.mark.parametrize("official", [None, 1.0, 1.1])
def test_fp32_is_what_upstream_runs(
    official: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "flute", lambda: _network(official))
    choice = command.Choice(threads=(1,), rounds=1, peers=("fp32", OPENED), schemes=())
    found = command.bench_network("flute", choice)
    assert found.parameters == 20
    if official is None:
        assert [contestant["name"] for contestant in found.contestants] == ["fp32"]
        return
    fp32, opened = found.contestants
    assert (fp32["name"], opened["name"]) == ("fp32", OPENED)
    assert fp32["timings"][0]["ratio_min"] == 1
    # 1.1 against 1 is an error of a tenth of 1.1.
    wanted = None if official == 1 else pytest.approx(20.83, abs=0.01)
    assert opened["snr_db"] == wanted


class _Attention(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A block that notes whether attention is fused."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(64, 64)
        self.fused: list[bool] = []

    def forward(self, values: Any) -> Any:
        self.fused.append(torch.backends.cuda.flash_sdp_enabled())
        return self.project(values)


def _stack() -> Network:
    def make() -> Any:
        heavy = torch.nn.Module()
        heavy.blocks = torch.nn.ModuleList(_Attention() for _ in range(3))
        heavy.heads = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(5))
        return torch.nn.ModuleDict({"transformer": heavy})

    def call(root: Any) -> Any:
        blocks = root["transformer"].blocks
        return lambda: torch.nn.Sequential(*blocks)(torch.ones(1, 64))

    return Network(name="stack", family="f5-tts", summary="a stack", make=make, call=call)


def test_plain_attention_is_without_the_fused_kernel() -> None:
    network = _stack()
    root = network.root()
    blocks = network.blocks_of(root)
    assert blocks == list(root["transformer"].blocks)  # type: ignore[index]
    make_peer(network, root, "fp32 plain attention")()
    make_peer(network, root, "fp32")()
    assert [block.fused for block in blocks] == [[False, True]] * 3
