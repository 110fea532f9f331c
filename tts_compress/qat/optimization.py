"""One update of a student, and everything that the next one depends on."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import cos, pi
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from tts_compress.errors import QuantizationError
from tts_compress.qat.batches import TrainingLoss, batch_places
from tts_compress.qat.fake_quantize import WeightFakeQuantize
from tts_compress.qat.state import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accelerate import Accelerator

    from tts_compress.qat.options import TrainingOptions
    from tts_compress.qat.state import TrainingState
    from tts_compress.qat.task import Example, Task

_RANGE = "log_stretch"
"""The name of the parameters of trained ranges."""

_LAST_SHARE = 0.01
_FOUR_BITS, _EIGHT_BITS = 5e-5, 3e-6
"""Learning rates by the bits of weights: errors of eight bits are so small that steps which make up
for those of four make them worse."""


def rate_share(options: TrainingOptions, step: int) -> float:
    """Return an update's share of the highest learning rate.

    Args:
        options: Options of the training.
        step: Number of the update, from 0.
    """
    if step < options.warm_up:
        return (step + 1) / (options.warm_up + 1)
    done = (step - options.warm_up) / max(options.steps - options.warm_up, 1)
    return _LAST_SHARE + (1 - _LAST_SHARE) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The figures of one update."""

    terms: dict[str, float]
    norm: float
    """Norm of all gradients, before they were clipped."""

    rate: float
    """The learning rate of weights."""

    is_finite: bool
    """True if the update was made; in fp16 the scaler skips a few."""


class Optimization:
    """A student with its optimizer, moving average and best weights.

    Args:
        task: Its student is trained in place.
        options: Options of the training.
        accelerator: Distributes it.
    """

    def __init__(self, task: Task, options: TrainingOptions, accelerator: Accelerator) -> None:
        self.options = options
        self.accelerator = accelerator
        self.student = task.student.to(accelerator.device)
        self.best = _copied(self.student)
        self.batch_part = options.batch_size
        """Examples that are computed at once; halved where they do not fit into memory."""

        self.learning_rate = options.learning_rate or _default_rate(self.student)
        """Peak rate of weights."""

        self._average = _moving_average(self.student, options.averaging)
        self._task = task
        self._examples = task.train
        self._loss = TrainingLoss(task, self.student, accelerator.device)
        self._average_loss = TrainingLoss(task, self._average.module, accelerator.device)
        self._optimizer = _optimizer(self.student, options, self.learning_rate)
        self._model: nn.Module = accelerator.prepare(self._loss)
        self._stepper = accelerator.prepare(self._optimizer)

    def update(self, state: TrainingState) -> Update:
        """Make the update that comes next, unless a gradient is not finite.

        Raises:
            QuantizationError: Not even one example fits into memory.
        """
        terms = self._gradients(self._next(state.step))
        trained = [p for p in self.student.parameters() if p.requires_grad]
        norm = float(self.accelerator.clip_grad_norm_(trained, self.options.clip or float("inf")))
        share = rate_share(self.options, state.step) * state.rate_factor
        share *= self.accelerator.num_processes
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * share
        finite = all(map(_is_finite, terms.values())) and (
            _is_finite(norm) or self.accelerator.scaler is not None
        )
        if finite:
            self._stepper.step()
            self._average.update_parameters(self.student)
        return Update(terms=terms, norm=norm, rate=self.learning_rate * share, is_finite=finite)

    def terms(self, examples: Sequence[Example]) -> dict[str, float]:
        """Return the terms of the student's loss on examples."""
        return self._terms(self._loss, examples, self.batch_part)  # not DDP: it expects gradients

    def judge(self, examples: Sequence[Example], *, averaged: bool = False) -> dict[str, float]:
        """Return the terms of the loss on held-out examples, of the artifact if there will be one.

        Args:
            examples: To compute it on.
            averaged: True to use the moving average in place of the student.
        """
        loss = self._average_loss if averaged else self._loss
        if self._task.converted is None:
            return self._terms(loss, examples, self.batch_part)
        converted = self._task.converted(self._average.module if averaged else self.student)
        # One at a time: the graph of a voice may be made for one text.
        return self._terms(
            TrainingLoss(self._task, converted, self.accelerator.device), examples, 1
        )

    @torch.no_grad()
    def _terms(
        self, loss: TrainingLoss, examples: Sequence[Example], at_once: int
    ) -> dict[str, float]:
        """Return the terms of a loss on examples, which several processes share among them."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        own = examples[rank::world]
        totals: dict[str, Tensor] = {}
        with self.accelerator.autocast():
            for start in range(0, len(own), at_once):
                _add(totals, loss(own[start : start + at_once], len(examples)))
            if world > 1:  # a process may have had none
                for name in loss(examples[:1], 1):
                    totals.setdefault(name, torch.zeros((), device=self.accelerator.device))
        return self._reduced(totals, "sum")

    def adopt_average(self) -> None:
        """Take the moving average for the best weights so far."""
        self.best = _copied(self._average.module)

    def finish(self) -> nn.Module:
        """Return the student with the best weights it had, on the processor."""
        self.student.load_state_dict(self.best, strict=False)
        return self.student.cpu()

    def snapshot(self, state: TrainingState) -> Snapshot:
        """Return everything that training is resumed from; its tensors are those in use."""
        tensors = {f"model/{n}": t for n, t in self.student.state_dict().items()}
        tensors |= {f"average/{n}": t for n, t in self._average.module.named_parameters()}
        tensors |= {f"best/{n}": t for n, t in self.best.items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{number}/{name}": t for name, t in moments.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        device = self.accelerator.device
        if device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(device)
        scaler = self.accelerator.scaler
        known = replace(state, scaler=scaler.state_dict() if scaler else {})
        return Snapshot(state=known, tensors={n: t.detach().cpu() for n, t in tensors.items()})

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot."""
        tensors, device = snapshot.tensors, self.accelerator.device
        self.student.load_state_dict(_below("model/", tensors))
        self._average.module.load_state_dict(_below("average/", tensors), strict=False)
        self._average.n_averaged.fill_(snapshot.state.step + 1)
        for name, value in _below("best/", tensors).items():
            self.best[name].copy_(value)
        state = self._optimizer.state_dict()
        state["state"] = {}
        for name, value in _below("optimizer/", tensors).items():
            number, moment = name.split("/")
            state["state"].setdefault(int(number), {})[moment] = value.clone()
        self._optimizer.load_state_dict(state)
        torch.set_rng_state(tensors["random/cpu"])
        if device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], device)
        if self.accelerator.scaler is not None and snapshot.state.scaler:
            self.accelerator.scaler.load_state_dict(snapshot.state.scaler)

    def _next(self, step: int) -> list[Example]:
        """Return this process's examples of an update."""
        own = self.options.batch_size * self.options.accumulation
        whole = own * self.accelerator.num_processes
        places = batch_places(len(self._examples), whole, step, self.options.seed)
        start = own * self.accelerator.process_index
        return [self._examples[place] for place in places[start : start + own]]

    def _gradients(self, examples: Sequence[Example]) -> dict[str, float]:
        """Compute gradients, in smaller parts if memory does not suffice; return the loss."""
        from accelerate.utils import find_executable_batch_size
        from accelerate.utils.memory import should_reduce_batch_size

        def halve() -> int:
            self.batch_part //= 2
            return self.batch_part

        try:
            found = self._attempt(self.batch_part, examples)
        except RuntimeError as error:
            # Processes that wait for each other cannot choose for themselves.
            if self.accelerator.num_processes > 1 or not should_reduce_batch_size(error):
                raise
            attempt = find_executable_batch_size(
                self._attempt, starting_batch_size=halve(), reduce_batch_size_fn=halve
            )
            try:
                found = attempt(examples)
            except RuntimeError as again:
                if self.batch_part > 0:
                    raise
                raise QuantizationError(
                    "not even one example fits into memory; train on shorter ones"
                ) from again
        return self._reduced(found, "mean")

    def _attempt(self, size: int, examples: Sequence[Example]) -> dict[str, Tensor]:
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        for start in range(0, len(examples), size):
            is_last = start + size >= len(examples)
            with nullcontext() if is_last else self.accelerator.no_sync(self._model):
                terms = self._model(examples[start : start + size], len(examples))
                self.accelerator.backward(torch.stack(list(terms.values())).sum())
            _add(totals, {name: term.detach() for name, term in terms.items()})
        return totals

    def _reduced(self, terms: dict[str, Tensor], how: str) -> dict[str, float]:
        """Return the sum, or mean, of terms over all processes."""
        if self.accelerator.num_processes == 1:
            return {name: float(term) for name, term in terms.items()}
        names = sorted(terms)
        reduced = self.accelerator.reduce(torch.stack([terms[name] for name in names]), how)
        return dict(zip(names, reduced.tolist(), strict=True))


def _default_rate(student: nn.Module) -> float:
    parts = student.modules()
    coarse = any(isinstance(p, WeightFakeQuantize) and p.group is not None for p in parts)
    return _FOUR_BITS if coarse else _EIGHT_BITS


def _moving_average(student: nn.Module, share: float) -> AveragedModel:
    """Return an exponential moving average of a student's parameters.

    Its memory is short at first, so that the beginning is soon forgotten.

    Args:
        student: The student, whose present parameters are the first values.
        share: Share of the past, in the long run.
    """

    def mean(average: Tensor, value: Tensor, count: Any) -> Tensor:
        past = min(share, int(count) / (int(count) + 9))
        return average.lerp(value, 1 - past) if value.is_floating_point() else value

    averaged = AveragedModel(student, avg_fn=mean)
    averaged.n_averaged.fill_(1)  # the values before the first update count, too
    return averaged


def _optimizer(student: nn.Module, options: TrainingOptions, rate: float) -> torch.optim.Optimizer:
    named = [(n, p) for n, p in student.named_parameters() if p.requires_grad]
    ranges = [p for n, p in named if n.endswith(_RANGE)]
    weights = [p for n, p in named if not n.endswith(_RANGE)]
    groups = [
        {"params": weights, "highest": rate, "weight_decay": options.weight_decay},
        {"params": ranges, "highest": options.range_learning_rate, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]])


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def _add(totals: dict[str, Tensor], terms: dict[str, Tensor]) -> None:
    for name, term in terms.items():
        totals[name] = totals[name] + term if name in totals else term


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _is_finite(value: float) -> bool:
    return abs(value) < float("inf")
