"""Preparing every contestant of a network and running them in turns."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from benchmarks.gpu.probe import CudaProbe, held_bytes
from benchmarks.networks.contestants import by_torchao, compile_blocks, make_scheme
from benchmarks.networks.network import NETWORKS, Network, Result, Step, failure, result_of, snr_db
from benchmarks.timing import speed, take_turns
from tts_compress.recipes.recipe import schemes_of
from tts_compress.terminal import show
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A way to run a network."""

    name: str
    scheme: str | None = None
    """A scheme of ours, applied by the family's recipe."""

    autocast: torch.dtype | None = None
    """The type that torch itself brings products into, for the whole network."""

    torchao: bool = False
    """Linear layers as torchao makes them for INT8."""

    tf32: bool = True
    """Let products of FP32 lose all but 10 bits of mantissa, as is usual on GPUs."""

    compiled: bool = False


_EAGER = (
    Contestant(name="fp32", tf32=False),
    Contestant(name="fp32 tf32"),
    Contestant(name="fp16 autocast", autocast=torch.float16),
    Contestant(name="bf16 autocast", autocast=torch.bfloat16),
    *(Contestant(name=scheme, scheme=scheme) for scheme in ("fp16", "bf16", "int8", "fp8")),
    Contestant(name="torchao int8", torchao=True),
)

CONTESTANTS = {
    contestant.name: contestant
    for contestant in (
        *_EAGER,
        *(replace(each, name=f"{each.name} compiled", compiled=True) for each in _EAGER),
    )
}
"""Contestants by name; the others are compared with the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A contestant on its device."""

    contestant: Contestant
    root: nn.Module
    step: Step
    """Runs the network once; only inside of `arithmetic`."""

    device: torch.device
    replay: Step | None = None
    """Starts the kernels of a run again, all at once; None where they could not be captured."""

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context that computes as the contestant does."""
        return _arithmetic(self.contestant, self.device)


def prepare_contestant(network: Network, root: nn.Module, contestant: Contestant) -> Prepared:
    """Return a contestant that is ready to run on the root's device; the root is not changed."""
    device, scheme = next(root.parameters()).device, contestant.scheme
    if scheme is None:
        own = by_torchao(root) if contestant.torchao else copy_sharing_tensors(root)
    else:
        family = "" if scheme in schemes_of(network.family) else "module:"
        own = make_scheme(network, root, family + scheme).root
    if contestant.compiled:
        compile_blocks(network, own)
    children = own.named_children()
    placed = nn.ModuleDict({name: _Placed(child, device) for name, child in children})
    with _arithmetic(contestant, device):
        step = network.call(own if network.called else placed)
    return Prepared(contestant=contestant, root=own, step=step, device=device)


@contextmanager
def _arithmetic(contestant: Contestant, device: torch.device) -> Iterator[None]:
    """Compute as a contestant does, and as before afterwards; convolutions have a switch."""
    matrix, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if contestant.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = contestant.tf32
    kind = contestant.autocast
    try:
        # Without its cache, whose weights a captured run would outlive.
        with (
            nullcontext()
            if kind is None
            else torch.autocast(device.type, kind, cache_enabled=False)
        ):
            yield
    finally:
        torch.set_float32_matmul_precision(matrix)
        torch.backends.cudnn.allow_tf32 = convolution


class _Placed(nn.Module):
    """Calls a module with its tensors on a device; those that come again are moved once.

    Networks are described with inputs on the CPU. What is no tensor is passed on as it is, because
    a module may change it, as it does a cache.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.module, self._device = module, device
        self._moved = WeakTensorKeyDictionary()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's output."""
        moved = {name: self._move(value) for name, value in kwargs.items()}
        return self.module(*map(self._move, args), **moved)

    def _move(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device == self._device:
            return value
        if value not in self._moved:
            self._moved[value] = value.to(self._device)
        return self._moved[value]


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

    graph_ms: float | None = None
    """Median of replays of its captured kernels: what the GPU takes, without starting them."""

    graph_ratio: float | None = None
    """The first contestant's over this one's; None unless both could be captured."""

    error: str | None = None


def bench_network(name: str, choice: Choice, probe: CudaProbe, tell: Tell) -> Iterator[Result]:
    """Build a network and measure contestants on it; yield what is measured so far.

    Those that are not compiled take turns; each of the others, which takes long to compile, takes
    turns with the first alone.
    """
    network = NETWORKS[name]()
    root = network.root().to(probe.device)
    first, *others = choice.contestants
    compiled = [key for key in others if CONTESTANTS[key].compiled]
    eager = [key for key in others if key not in compiled]
    rows: list[Measured] = []
    for group in (eager, *([key] for key in compiled)):
        turns = replace(choice, contestants=(first, *group))
        rows += _bench_together(network, root, turns, probe, tell)[bool(rows) :]
        yield result_of(network, root, rows)


@torch.no_grad()
def _bench_together(
    network: Network, root: nn.Module, choice: Choice, probe: CudaProbe, tell: Tell
) -> list[Measured]:
    """Return the figures of contestants that take turns."""
    rows: dict[str, Measured] = {}

    def time(prepared: Prepared, step: Step) -> float:
        with prepared.arithmetic():
            return probe.time_ms(step)

    with _compiling():
        ready, outputs, failed = _prepare(network, root, choice, probe, tell)
        runs = {
            (key, captured): partial(time, prepared, step)
            for key, prepared in ready.items()
            for captured, step in ((False, prepared.step), (True, prepared.replay))
            if step is not None
        }
        tell_time = partial(tell, f"time {network.name}")
        times = take_turns(runs, rounds=choice.rounds, warm_ups=choice.warm_ups, tell=tell_time)
        first = choice.contestants[0]
        graphs = {key: median(spent) for (key, captured), spent in times.items() if captured}
        for key, prepared in ready.items():
            with prepared.arithmetic():
                working = probe.working_bytes(prepared.step)
            held = held_bytes(prepared.root)
            rows[key] = Measured(
                name=key,
                **asdict(speed(times[key, False], times[first, False])),
                graph_ms=graphs.get(key),
                graph_ratio=graphs[first] / graphs[key] if {first, key} <= set(graphs) else None,
                weight_bytes=held,
                peak_bytes=held + working,
                snr_db=snr_db(outputs[first], outputs[key]),
            )
    rows |= {key: Measured(name=key, error=error) for key, error in failed.items()}
    return [rows[key] for key in choice.contestants]


def _prepare(
    network: Network, root: nn.Module, choice: Choice, probe: CudaProbe, tell: Tell
) -> tuple[dict[str, Prepared], dict[str, torch.Tensor], dict[str, str]]:
    """Return the contestants that run, their outputs, and the errors of the others."""
    ready: dict[str, Prepared] = {}
    outputs: dict[str, torch.Tensor] = {}
    failed: dict[str, str] = {}
    for done, key in enumerate(choice.contestants):
        tell(f"prepare {network.name}", done, len(choice.contestants))
        try:
            graphs = _compiled_graphs()
            prepared = prepare_contestant(network, root, CONTESTANTS[key])
            with prepared.arithmetic():
                for _ in range(_CALLS):
                    outputs[key] = _finite(prepared.step())
            if prepared.contestant.compiled and _compiled_graphs() == graphs:
                raise RuntimeError("the compiler translated nothing")
            prepared, outputs[key] = _captured(prepared, outputs[key], probe)
        except Exception as error:  # a compiler or a kernel may fail in any way
            if not ready:
                raise  # without the first there is nothing to compare with
            failed[key] = failure(error)
        else:
            ready[key] = prepared
    return ready, outputs, failed


def _captured(
    prepared: Prepared, output: torch.Tensor, probe: CudaProbe
) -> tuple[Prepared, torch.Tensor]:
    """Return a contestant with its kernels captured, and what they output; else as it is."""
    try:
        with prepared.arithmetic():
            replay = probe.capture(prepared.step)
            return replace(prepared, replay=replay), _finite(replay())
    except RuntimeError as error:  # it waits for the GPU, or for the CPU
        show(f"{prepared.contestant.name}: not captured: {failure(error)}")
        return prepared, output


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
