"""One update of a student, and everything that the next one hangs on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tts_compress.errors import QuantizationError
from tts_compress.qat.train.averaging import Average, copied, put
from tts_compress.qat.train.batches import batch_places
from tts_compress.qat.train.objective import TrainingObjective
from tts_compress.qat.train.schedule import rate_share, suited_rate
from tts_compress.qat.train.standing import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelerate import Accelerator

    from tts_compress.qat.task import Example, Task
    from tts_compress.qat.train.options import TrainingOptions
    from tts_compress.qat.train.standing import Standing

__all__ = ["Learner", "Update"]

_STRETCH = "log_stretch"
"""How learned ranges and scales are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one update was made of."""

    terms: dict[str, float]
    norm: float
    """Of all gradients, before they were clipped."""

    rate: float
    """The learning rate of weights."""

    is_finite: bool
    """Whether it was made at all; in fp16 the scaler leaves out a few."""

    @property
    def loss(self) -> float:
        """The sum of the terms."""
        return sum(self.terms.values())


class Learner:
    """A student with its optimizer and averages.

    Args:
        task: Its student is trained in place.
        options: Of the training.
        accelerator: Distributes it.
    """

    def __init__(self, task: Task, options: TrainingOptions, accelerator: Accelerator) -> None:
        self.options = options
        self.accelerator = accelerator
        self.student = task.student.to(accelerator.device)
        self.average = Average(self.student, options.averaging)
        self.best = copied(self.student)
        self.part = options.batch_size
        """Examples that are computed at once; halved where they do not fit into memory."""

        self.learning_rate = options.learning_rate or suited_rate(self.student)
        """Of weights, at its highest."""

        self._examples = task.train_examples()
        self._objective = TrainingObjective(task, accelerator.device)
        self._optimizer = _optimizer(self.student, options, self.learning_rate)
        self._model: nn.Module = accelerator.prepare(self._objective)
        self._stepper = accelerator.prepare(self._optimizer)

    def update(self, standing: Standing) -> Update:
        """Make the update that comes next, unless a gradient is not finite.

        Raises:
            QuantizationError: Not even one example fits into memory.
        """
        terms = self._shared(self._gradients(self._next(standing.step)))
        largest = self.options.clip or float("inf")
        norm = float(self.accelerator.clip_grad_norm_(self._trained(), largest))
        share = rate_share(self.options, standing.step) * standing.rate_factor
        share *= self.accelerator.num_processes
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * share
        finite = all(map(_is_finite, terms.values())) and (
            _is_finite(norm) or self.accelerator.scaler is not None
        )
        if finite:
            self._stepper.step()
            self.average.add(self.student, standing.step)
        rate = self.learning_rate * share
        return Update(terms=terms, norm=norm, rate=rate, is_finite=finite)

    @torch.no_grad()
    def terms(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return the terms of the loss on examples, which several processes share among them."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        totals: dict[str, Tensor] = {}
        mine = [examples[place] for place in range(rank, len(examples), world)]
        for start in range(0, len(mine), self.part):
            part = mine[start : start + self.part]
            # Not through DDP, which expects a gradient for each call.
            for name, term in self._objective(part, len(examples)).items():
                totals[name] = totals[name] + term if name in totals else term
        if world == 1:
            return {name: float(term) for name, term in totals.items()}
        names = sorted(self._objective(examples[:1]))  # a process may have had none
        zero = torch.zeros((), device=self.accelerator.device)
        own = torch.stack([totals.get(name, zero) for name in names])
        summed = self.accelerator.reduce(own, "sum")
        return dict(zip(names, summed.tolist(), strict=True))

    def snapshot(self, standing: Standing) -> Snapshot:
        """Return everything that training goes on from; its tensors are those in use."""
        tensors = {f"model/{n}": t for n, t in self.student.state_dict().items()}
        tensors |= {f"average/{n}": t for n, t in self.average.values.items()}
        tensors |= {f"best/{n}": t for n, t in self.best.items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": t for name, t in moments.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        device = self.accelerator.device
        if device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(device)
        scaler = self.accelerator.scaler
        known = replace(standing, scaler=scaler.state_dict() if scaler else {})
        return Snapshot(standing=known, tensors={n: t.detach().cpu() for n, t in tensors.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        tensors, device = snapshot.tensors, self.accelerator.device
        self.student.load_state_dict(_below("model/", tensors))
        for kept, prefix in ((self.average.values, "average/"), (self.best, "best/")):
            for name, value in _below(prefix, tensors).items():
                kept[name].copy_(value)
        state = self._optimizer.state_dict()
        state["state"] = {}
        for name, value in _below("optimizer/", tensors).items():
            number, moment = name.split("/")
            state["state"].setdefault(int(number), {})[moment] = value.clone()
        self._optimizer.load_state_dict(state)
        torch.set_rng_state(tensors["random/cpu"])
        if device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], device)
        if self.accelerator.scaler is not None and snapshot.standing.scaler:
            self.accelerator.scaler.load_state_dict(snapshot.standing.scaler)

    def adopt_best(self) -> nn.Module:
        """Return the student with the best values it had, on the processor."""
        put(self.student, self.best)
        return self.student.cpu()

    def _trained(self) -> list[nn.Parameter]:
        return [p for p in self.student.parameters() if p.requires_grad]

    def _next(self, step: int) -> list[Example]:
        """Return this process's examples of an update."""
        own = self.options.batch_size * self.options.accumulation
        whole = own * self.accelerator.num_processes
        places = batch_places(len(self._examples), whole, step, self.options.seed)
        start = own * self.accelerator.process_index
        return [self._examples[place] for place in places[start : start + own]]

    def _gradients(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """Compute gradients, in smaller parts if memory does not suffice."""
        from accelerate.utils import find_executable_batch_size
        from accelerate.utils.memory import should_reduce_batch_size

        try:
            return self._attempt(self.part, examples)
        except RuntimeError as error:
            # Processes that wait for each other cannot choose for themselves.
            if self.accelerator.num_processes > 1 or not should_reduce_batch_size(error):
                raise

        def halve() -> int:
            self.part //= 2
            return self.part

        attempt = find_executable_batch_size(
            self._attempt, starting_batch_size=halve(), reduce_batch_size_fn=halve
        )
        try:
            found: dict[str, Tensor] = attempt(examples)
        except RuntimeError as error:
            if self.part > 0:
                raise
            raise QuantizationError(
                "not even one example fits into memory; train on shorter ones"
            ) from error
        return found

    def _attempt(self, size: int, examples: Sequence[Example]) -> dict[str, Tensor]:
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            is_last = start + size >= len(examples)
            alone = nullcontext() if is_last else self.accelerator.no_sync(self._model)
            with alone:
                terms = self._model(part, len(examples))
                self.accelerator.backward(torch.stack(list(terms.values())).sum())
            for name, term in terms.items():
                held = term.detach()
                totals[name] = totals[name] + held if name in totals else held
        return totals

    def _shared(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """Return the mean over all processes."""
        names = sorted(terms)
        own = torch.stack([terms[name] for name in names])
        if self.accelerator.num_processes > 1:
            own = self.accelerator.reduce(own, "mean")
        return dict(zip(names, own.tolist(), strict=True))


def _optimizer(student: nn.Module, options: TrainingOptions, rate: float) -> torch.optim.Optimizer:
    named = [(n, p) for n, p in student.named_parameters() if p.requires_grad]
    stretches = [p for n, p in named if n.endswith(_STRETCH)]
    weights = [p for n, p in named if not n.endswith(_STRETCH)]
    groups = [
        {"params": weights, "highest": rate, "weight_decay": options.weight_decay},
        {"params": stretches, "highest": options.range_learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]])


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")
