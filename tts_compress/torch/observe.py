"""Observing the inputs of the layers of a module while it runs.

Ranges serve static activations. Second moments serve the choice of weight codes: the cost of
rounding a weight, at a layer's output, depends on its inputs only through the matrix Σ x xᵀ. It has
inputs² entries however long the calibration is, but there is one per layer: with more layers than
memory holds, calibration runs again for those that are left.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.numerics.ranges import Histogram, Range, choose_range
from tts_compress.recipes.recipe import Calibration
from tts_compress.torch.layers.module_surgery import copy_with_state

MOMENTS_BYTES = 512 * 2**20
"""Memory for the moments of one pass."""

_SAMPLE = 16_384
"""Approximate number of values of a tensor that are counted per call; its extremes are exact."""

_WAITING = 256
"""Rows that wait until they are multiplied: autoregressive models give one at a time."""


def observe_ranges(
    root: nn.Module,
    names: Sequence[str],
    run: Callable[[nn.Module], None],
    settings: Calibration,
) -> dict[str, Range]:
    """Return the range of the input of each named layer, over all calibration calls.

    Args:
        root: The module; what is called is a copy, with whatever it keeps between calls.
        names: Dotted names of layers.
        run: Calls the module with calibration data.
        settings: Settings of the ranges.
    """
    histograms = {name: Histogram() for name in names}

    def observe(name: str, values: Tensor) -> None:
        try:
            add_sample(histograms[name], values)
        except QuantizationError as error:
            raise QuantizationError(f"the input of '{name}': {error}") from error

    run(_observed(root, names, observe))
    _refuse_idle(name for name, seen in histograms.items() if seen.low > seen.high)
    return {name: choose_range(seen, settings) for name, seen in histograms.items()}


def add_sample(histogram: Histogram, values: Tensor) -> None:
    """Count a sample of a tensor's values, any shape but empty."""
    low, high = (float(limit) for limit in torch.aminmax(values))
    step = max(values.numel() // _SAMPLE, 1)
    histogram.add(values.flatten()[::step].float().cpu().numpy(), low, high)


def observe_moments(
    root: nn.Module,
    names: Sequence[str],
    run: Callable[[nn.Module], None],
    *,
    budget_bytes: int = MOMENTS_BYTES,
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the second moments of the inputs of linear layers, with the layers they belong to.

    Layers with the same input in every call, such as the projections of attention, share them.
    The module must stay as it is until the last are yielded.

    Args:
        root: The module; what is called is a copy in each pass.
        names: Dotted names of linear layers.
        run: Calls the module with calibration data, the same in every pass.
        budget_bytes: Memory for the moments of one pass; those of one layer always fit.

    Yields:
        Names, and Σ x xᵀ over all rows x of their input: FP32, `[inputs, inputs]`.
    """
    left, alone = list(names), frozenset[str]()
    while left:
        step = _Pass(alone, budget_bytes)
        run(_observed(root, left, step.observe))
        _refuse_idle(name for name in left if not step.calls[name])
        done: set[str] = set()
        for members, moments in step.finish():
            yield members, moments
            done.update(members)
        left = [name for name in left if name not in done]
        alone |= {name for name in left if step.leaders[name]}


def _observed(
    root: nn.Module, names: Sequence[str], observe: Callable[[str, Tensor], None]
) -> nn.Module:
    """Return a copy that calls `observe` with name and input of each named layer that it runs."""

    def see(name: str, _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        values = inputs[0] if inputs else named["input"]
        if values.numel():
            observe(name, values.detach())

    copy = copy_with_state(root)
    for name in names:
        module = copy.get_submodule(name)
        module.register_forward_pre_hook(partial(see, name), with_kwargs=True)
    return copy


def _refuse_idle(names: Iterable[str]) -> None:
    if idle := list(names):
        raise QuantizationError(
            f"calibration never ran {len(idle)} layers, such as '{idle[0]}'; "
            "give calibration data that reaches them, or exclude them in the recipe"
        )


class _RunningMoments:
    """A running Σ x xᵀ."""

    def __init__(self, inputs: int, device: torch.device) -> None:
        self._sum = torch.zeros(inputs, inputs, device=device)
        self._rows = torch.empty(_WAITING, inputs, device=device)
        self._waiting = 0

    def add(self, rows: Tensor) -> None:
        """Add rows `[rows, inputs]`, FP32."""
        if self._waiting + len(rows) > _WAITING:
            self.total()
        if len(rows) > _WAITING:
            self._sum.addmm_(rows.t(), rows)
        else:
            self._rows[self._waiting : self._waiting + len(rows)] = rows
            self._waiting += len(rows)

    def total(self) -> Tensor:
        """Return the sum over every row so far."""
        rows = self._rows[: self._waiting]
        self._waiting = 0
        return self._sum.addmm_(rows.t(), rows)


class _Pass:
    """One run of the calibration data, with moments for as many layers as memory allows."""

    def __init__(self, alone: frozenset[str], budget_bytes: int) -> None:
        self.calls: Counter[str] = Counter()
        self._alone, self._left_bytes = alone, budget_bytes
        self._moments: dict[str, _RunningMoments] = {}  # by the first layer that saw the input
        self.leaders: dict[str, str | None] = {}  # None where memory was short
        self._strays: set[str] = set()  # layers that began like another, but had other inputs later
        self._last: tuple[str, Tensor] | None = None

    @torch.inference_mode(mode=False)  # a sum that began in it could not go on outside
    @torch.no_grad()
    def observe(self, name: str, values: Tensor) -> None:
        """Add the input of a layer that is about to run."""
        rows = values.reshape(-1, values.shape[-1]).float()
        self.calls[name] += 1
        if name not in self.leaders:
            self.leaders[name] = self._admit(name, rows)
        leader = self.leaders[name]
        if leader == name:
            self._moments[name].add(rows)
            # A copy: operations in place would change it with the original.
            self._last = None if name in self._alone else (name, rows.clone())
        elif leader and not (self._same(rows) == leader and self._in_step(name, leader)):
            self._strays.add(name)

    def finish(self) -> Iterator[tuple[tuple[str, ...], Tensor]]:
        """Yield the moments and free their memory, one after another."""
        self._last = None
        for leader in list(self._moments):
            members = tuple(
                name
                for name, first in self.leaders.items()
                if first == leader and name not in self._strays and self._in_step(name, leader)
            )
            total = self._moments.pop(leader).total()
            if not torch.isfinite(total).all():
                raise QuantizationError(
                    f"the input of '{leader}' is not finite or too large; the calibration data or "
                    "the checkpoint is damaged"
                )
            yield members, total

    def _admit(self, name: str, rows: Tensor) -> str | None:
        """Return the layer whose moments a new one shares, itself, or None without memory."""
        if name not in self._alone and (leader := self._same(rows)):
            return leader
        inputs = rows.shape[1]
        needed = 4 * inputs * (inputs + _WAITING)
        if self._moments and needed > self._left_bytes:
            return None
        self._left_bytes -= needed
        self._moments[name] = _RunningMoments(inputs, rows.device)
        return name

    def _same(self, rows: Tensor) -> str | None:
        """Return the layer whose input just before was the same."""
        name, last = self._last or ("", None)
        return name if last is not None and torch.equal(last, rows) else None

    def _in_step(self, name: str, leader: str) -> bool:
        return self.calls[name] == self.calls[leader]
