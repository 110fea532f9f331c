"""Preparing every contestant of a network and running them in turns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.contestants import CONTESTANTS, Prepared, prepare_contestant
from benchmarks.gpu.probe import Probe, held_bytes
from benchmarks.networks.network import NETWORKS, Network, failure, snr_db
from benchmarks.timing import speed, take_turns

_VERSIONS = 4096
"""Contestants share the code of their modules, and the layers of a network share theirs."""

_CALLS = 3
"""Before anything is timed: the compiler may start again when a number changes."""

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The contestants that are run, and how often."""

    contestants: tuple[str, ...]
    """Names; the first is what the others are compared with."""

    rounds: int
    warm_ups: int
    mode: str = "default"
    """Mode of torch's compiler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A contestant's figures; none where it failed."""

    name: str
    median_ms: float | None = None
    min_ms: float | None = None
    ratio_median: float | None = None
    """The first contestant's median over this one's; higher is better."""

    ratio_min: float | None = None
    weight_bytes: int | None = None
    """Its parameters and buffers."""

    peak_bytes: int | None = None
    """These and what one run allocates at most."""

    snr_db: float | None = None
    """SNR of its output against the first one's; weights are random, so only to see that it
    computes the same. None where they are equal."""

    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All contestants of a network."""

    network: str
    summary: str
    parameters: int
    contestants: tuple[Measured, ...]


@torch.no_grad()
def bench_network(name: str, choice: Choice, probe: Probe, tell: Tell) -> Result:
    """Build a network and measure every contestant on it.

    Args:
        name: The network's name.
        choice: The contestants and rounds to run.
        probe: The device to run on.
        tell: Called for each contestant that is made and for each round.

    Raises:
        MissingExtraError: The network's package is not installed.
    """
    network = NETWORKS[name]()
    root = network.root().to(probe.device)
    rows: dict[str, Measured] = {}

    def time(made: Prepared) -> float:
        with made.arithmetic():
            return probe.time_ms(made.step)

    with _compiling():
        ready, outputs, failed = _prepare(network, root, choice, tell)
        runs = {key: partial(time, made) for key, made in ready.items()}
        tell_time = partial(tell, f"time {network.name}")
        times = take_turns(runs, rounds=choice.rounds, warm_ups=choice.warm_ups, tell=tell_time)
        first = choice.contestants[0]
        for key, made in ready.items():
            with made.arithmetic():
                working = probe.working_bytes(made.step)
            held = held_bytes(made.root)
            rows[key] = Measured(
                name=key,
                **asdict(speed(times[key], times[first])),
                weight_bytes=held,
                peak_bytes=held + working,
                snr_db=snr_db(outputs[first], outputs[key]),
            )
    rows |= {key: Measured(name=key, error=error) for key, error in failed.items()}
    return Result(
        network=name,
        summary=network.summary,
        parameters=sum(parameter.numel() for parameter in root.parameters()),
        contestants=tuple(rows[key] for key in choice.contestants),
    )


def _prepare(
    network: Network, root: nn.Module, choice: Choice, tell: Tell
) -> tuple[dict[str, Prepared], dict[str, torch.Tensor], dict[str, str]]:
    """Return the contestants that run, their outputs, and the errors of the others."""
    ready: dict[str, Prepared] = {}
    outputs: dict[str, torch.Tensor] = {}
    failed: dict[str, str] = {}
    for done, key in enumerate(choice.contestants):
        tell(f"prepare {network.name}", done, len(choice.contestants))
        try:
            graphs = _compiled_graphs()
            made = prepare_contestant(network, root, CONTESTANTS[key], choice.mode)
            with made.arithmetic():
                for _ in range(_CALLS):
                    outputs[key] = _finite(made.step())
            if made.contestant.compiled and _compiled_graphs() == graphs:
                raise RuntimeError("the compiler translated nothing")
        except Exception as error:  # a compiler or a kernel may fail in any way
            if not ready:
                raise  # without the first there is nothing to compare with
            failed[key] = failure(error)
        else:
            ready[key] = made
    return ready, outputs, failed


def _compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has translated in this process."""
    counters: Any = import_module("torch._dynamo.utils").counters
    return int(counters["stats"]["unique_graphs"])


@contextmanager
def _compiling() -> Iterator[None]:
    """Let many versions of the same code be compiled, and nothing run uncompiled in their name."""
    dynamo: Any = import_module("torch._dynamo.config")
    with dynamo.patch(
        recompile_limit=_VERSIONS,
        accumulated_recompile_limit=_VERSIONS,
        fail_on_recompile_limit_hit=True,
        allow_unspec_int_on_nn_module=True,  # language models count steps in a module
    ):
        yield


def _finite(output: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(output).all():
        raise ValueError("the output is not finite")
    return output.double().cpu()
