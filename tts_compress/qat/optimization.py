"""Updates of a student: their examples, loss and gradients, and everything the next one needs.

A checkpoint is one safetensors file, replaced whole.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from math import cos, inf, isfinite, pi
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from accelerate import Accelerator
from accelerate.utils.memory import release_memory, should_reduce_batch_size
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from tts_compress.artifact import atomic_file
from tts_compress.errors import ArtifactError, QuantizationError
from tts_compress.qat.fake_quantize import BlockFakeQuantize, WeightFakeQuantize
from tts_compress.qat.options import CHECKPOINT_NAME, TrainingOptions
from tts_compress.qat.task import Example, Outputs, TrainingTask, digest_tensors, joined
from tts_compress.torch.layers.checkpoint import TensorFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Counts and losses of a training."""

    before: dict[str, float]
    """Terms of the loss on held-out examples before the first update: of post-training
    quantization."""

    best: dict[str, float]
    """Terms of the loss for the best average so far."""

    best_step: int = 0
    """Updates that made the best average; 0 where nothing was better than before."""

    step: int = 0
    """Updates so far."""

    seconds: float = 0.0
    """Time that these took, with evaluations."""

    rate_factor: float = 1.0
    """Halved by each recovery."""

    recoveries: int = 0
    stale: int = 0
    """Evaluations on held-out examples since the best one."""

    scaler: dict[str, Any] = field(default_factory=dict)
    """State of the gradient scaler in fp16; empty otherwise."""


Snapshot: TypeAlias = tuple[TrainingState, dict[str, Tensor]]
"""Everything that a training is resumed from: counts, and weights, averages, the best ones, the
optimizer's moments, states of random generators."""


class Checkpoints:
    """Keeps the newest snapshot; a process killed while writing leaves the last one.

    Args:
        folder: Folder of the file; must exist. None keeps the snapshot in memory.
        identity: Identity of the training; a file of another is refused.
        writes: True if this process is the one that writes.
    """

    def __init__(
        self, folder: Path | None, identity: Mapping[str, Any], *, writes: bool = True
    ) -> None:
        self._path = None if folder is None else folder / CHECKPOINT_NAME
        self._identity = json.loads(json.dumps(identity))
        self._writes = writes
        self._last: Snapshot | None = None

    def save(self, snapshot: Snapshot) -> None:
        """Keep a snapshot in the place of the last."""
        # Tensors that share memory are no error of ours: each is written as it is.
        state, tensors = snapshot
        tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        if self._path is None:
            self._last = state, tensors
            return
        if not self._writes:
            return
        stated = {"state": asdict(state), "training": self._identity}
        metadata = {name: json.dumps(value) for name, value in stated.items()}
        with atomic_file(self._path) as partial:
            save_file(tensors, partial, metadata)
            with partial.open("r+b") as file:  # Windows refuses to sync what cannot be written
                os.fsync(file.fileno())

    def drop(self) -> None:
        """Remove the file, if there is one."""
        if self._writes and self._path is not None:
            self._path.unlink(missing_ok=True)

    def load(self) -> Snapshot | None:
        """Return the last snapshot; None if there is none."""
        if self._path is None or not self._path.is_file():
            return self._last
        file = TensorFile(self._path)
        try:
            stated = json.loads(file.metadata["training"])
            state = TrainingState(**json.loads(file.metadata["state"]))
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(
                f"'{self._path}' is no checkpoint of a training ({error}); "
                "remove it, and the training starts anew (`qat --restart` does both)"
            ) from error
        if stated != self._identity:
            raise ArtifactError(
                f"'{self._path}' is of another training: {_differences(stated, self._identity)}; "
                "repeat its options, or start anew with --restart"
            )
        return state, {name: file.read(name) for name in file.names}


def identity_of(task: TrainingTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties that identify a training: student, examples, options."""
    examples = (task.train[0], task.train[-1], task.held_out[0])
    return {
        "model": digest_tensors(task.student.state_dict().values()),
        "examples": digest_tensors(t for e in examples for t in (*e.inputs, *e.targets)),
        "count": len(task.train),
        **options,
    }


def _differences(stated: Any, wanted: dict[str, Any]) -> str:
    if not isinstance(stated, dict):
        return "it does not state which"
    return ", ".join(
        f"other {name}"
        if name in {"model", "examples"}
        else f"{name} {stated.get(name)} there, {wanted.get(name)} here"
        for name in stated | wanted
        if stated.get(name) != wanted.get(name)
    )


T = TypeVar("T")

_RANGE = "log_stretch"
"""The name of the parameters of trained ranges."""

_MOMENTS = "optimizer/"
"""Prefix of the names of the optimizer's tensors."""

_LAST_SHARE = 0.01
_FOUR_BITS, _EIGHT_BITS = 5e-5, 3e-6
"""Learning rates by the bits of weights: errors of eight bits are so small that steps which make up
for those of four make them worse."""


class NotFiniteError(Exception):
    """A loss or a gradient is not finite; the message lists them."""


def share_done(options: TrainingOptions, step: int, seconds: float = 0.0) -> float:
    """Return the share of a training that is done, of its updates or, if more, of its time."""
    timed = 0.0 if options.minutes is None else seconds / (60.0 * options.minutes)
    return max(step / options.steps, timed)


def rate_share(options: TrainingOptions, step: int, seconds: float = 0.0) -> float:
    """Return an update's share of the highest learning rate."""
    if step < options.warm_up:
        return (step + 1) / (options.warm_up + 1)
    done = (step - options.warm_up) / max(options.steps - options.warm_up, 1)
    done = min(1.0, max(done, share_done(options, 0, seconds)))
    return _LAST_SHARE + (1 - _LAST_SHARE) * (1 + cos(pi * done)) / 2


def batch_indices(count: int, size: int, step: int, seed: int) -> list[int]:
    """Return the indices of the examples of one update.

    Every example is met once before any is met again, in an order that differs each time.
    """
    orders: list[int] = []
    first, last = step * size // count, ((step + 1) * size - 1) // count
    for turn in range(first, last + 1):
        source = torch.Generator().manual_seed(seed * 1_000_003 + turn)
        orders += torch.randperm(count, generator=source).tolist()
    start = step * size - first * count
    return orders[start : start + size]


def spread(examples: Sequence[T], wanted: int) -> list[T]:
    """Return at most `wanted` of the examples, evenly spread."""
    count, taken = len(examples), min(len(examples), wanted)
    return [examples[(2 * i + 1) * count // (2 * taken)] for i in range(taken)]


class TrainingLoss(nn.Module):
    """The loss of a task; one call of it is one call for DDP, however many batches it takes."""

    def __init__(
        self, task: TrainingTask, student: Callable[..., Outputs], device: torch.device
    ) -> None:
        super().__init__()
        self.student = student
        self._task = task
        self._device = device

    def forward(self, examples: Sequence[Example], count: int) -> dict[str, Tensor]:
        """Return the terms of the loss, FP32, each the sum over examples divided by `count`.

        Args:
            examples: Those of equal shapes are computed at once.
            count: Number of all examples, where these are a part of them.
        """
        totals: dict[str, Tensor] = {}
        for batch, size in joined(examples):
            moved = batch.each(lambda tensor: tensor.to(self._device))
            outputs = self.student(*moved.inputs)
            # Whatever the student computes in, differences are taken in FP32.
            with torch.autocast(self._device.type, enabled=False):
                exact = tuple(o.float() if o.is_floating_point() else o for o in outputs)
                terms = self._task.loss(exact, moved)
            _add(totals, {name: term * (size / count) for name, term in terms.items()})
        return totals


class Optimization:
    """A student with its optimizer, moving average and best weights."""

    def __init__(
        self, task: TrainingTask, options: TrainingOptions, accelerator: Accelerator
    ) -> None:
        self.options = options
        self.accelerator = accelerator
        self.student = task.student.to(accelerator.device)
        self.batch_part = options.batch_size
        """Examples that are computed at once; halved where they do not fit into memory."""

        weights = [p for p in self.student.modules() if isinstance(p, WeightFakeQuantize)]
        coarse = any(isinstance(part, BlockFakeQuantize) or part.group for part in weights)
        self.learning_rate = options.learning_rate or (_FOUR_BITS if coarse else _EIGHT_BITS)
        """Peak rate of weights."""

        self._task = task
        self._best = _copied(self.student)
        self._average = _moving_average(self.student, options.averaging)
        self._optimizer = _optimizer(self.student, options, self.learning_rate)
        loss = TrainingLoss(task, self.student, accelerator.device)
        self._model: nn.Module = accelerator.prepare(loss)
        self._stepper = accelerator.prepare(self._optimizer)

    def update(self, state: TrainingState) -> dict[str, float]:
        """Make the update that comes next, and return its loss, rate, gradients' norm and terms."""
        terms = self._gradients(self._next(state.step))
        trained = [p for p in self.student.parameters() if p.requires_grad]
        norm = float(self.accelerator.clip_grad_norm_(trained, self.options.clip or inf))
        share = rate_share(self.options, state.step, state.seconds) * state.rate_factor
        share *= self.accelerator.num_processes
        for group in self._optimizer.param_groups:
            group["lr"] = group["highest"] * share
        # In fp16 the scaler skips a few updates.
        judged = terms if self.accelerator.scaler is not None else terms | {"norm": norm}
        if not is_finite(judged):
            raise NotFiniteError(f"loss {listed(terms)}, gradients {norm}")
        self._stepper.step()
        self._average.update_parameters(self.student)
        figures = {"loss": sum(terms.values()), "rate": self.learning_rate * share, "norm": norm}
        return figures | terms

    def judge(self, examples: Sequence[Example], *, averaged: bool = False) -> dict[str, float]:
        """Return the terms of the loss on held-out examples, of the artifact if there will be one.

        Args:
            examples: To compute it on.
            averaged: True to use the moving average in place of the student.
        """
        student = self._average.module if averaged else self.student
        if self._task.converted is None:
            return self.terms(student, examples, self.batch_part)
        # One at a time: the graph of a voice may be made for one text.
        return self.terms(self._task.converted(student), examples, 1)

    @torch.no_grad()
    def terms(
        self, student: Callable[..., Outputs], examples: Sequence[Example], at_once: int
    ) -> dict[str, float]:
        """Return the terms of a loss on examples, which several processes share among them."""
        loss = TrainingLoss(self._task, student, self.accelerator.device)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        shard = examples[rank::world]
        totals: dict[str, Tensor] = {}
        with self.accelerator.autocast():
            for start in range(0, len(shard), at_once):
                _add(totals, loss(shard[start : start + at_once], len(examples)))
            if world > 1:  # a process may have had none
                for name in loss(examples[:1], 1):
                    totals.setdefault(name, torch.zeros((), device=self.accelerator.device))
        return self._reduced(totals, "sum")

    def agreed(self, value: float) -> float:
        """Return the mean of a number over all processes, which do the same by it."""
        tensor = torch.tensor(value, dtype=torch.float64, device=self.accelerator.device)
        return self._reduced({"mean": tensor}, "mean")["mean"]

    def adopt_average(self) -> None:
        """Take the moving average for the best weights so far."""
        self._best = _copied(self._average.module)

    def finish(self) -> None:
        """Give the student the best weights it had, on the processor."""
        self.student.load_state_dict(self._best, strict=False)
        self.student.cpu()

    def snapshot(self, state: TrainingState) -> tuple[TrainingState, dict[str, Tensor]]:
        """Return everything that training is resumed from; its tensors are those in use."""
        tensors = self._weights()
        for number, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"{_MOMENTS}{number}/{name}": t for name, t in moments.items()}
        tensors["random/cpu"] = torch.get_rng_state()
        device, scaler = self.accelerator.device, self.accelerator.scaler
        if device.type == "cuda":
            tensors["random/cuda"] = torch.cuda.get_rng_state(device)
        state = replace(state, scaler=scaler.state_dict() if scaler else {})
        return state, {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    def restore(self, state: TrainingState, tensors: dict[str, Tensor]) -> None:
        """Go back to a snapshot."""
        with torch.no_grad():
            for name, tensor in self._weights().items():
                tensor.copy_(tensors[name])
        self._average.n_averaged.fill_(state.step + 1)
        optimizer = self._optimizer.state_dict()
        optimizer["state"] = {}
        for key in (key for key in tensors if key.startswith(_MOMENTS)):
            number, moment = key.removeprefix(_MOMENTS).split("/")
            optimizer["state"].setdefault(int(number), {})[moment] = tensors[key].clone()
        self._optimizer.load_state_dict(optimizer)
        torch.set_rng_state(tensors["random/cpu"])
        device, scaler = self.accelerator.device, self.accelerator.scaler
        if device.type == "cuda" and "random/cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random/cuda"], device)
        if scaler is not None and state.scaler:
            scaler.load_state_dict(state.scaler)

    def _weights(self) -> dict[str, Tensor]:
        """Return the tensors of the student, its average and the best one, by names in files."""
        parts = {
            "model": self.student.state_dict(),
            "average": dict(self._average.module.named_parameters()),
            "best": self._best,
        }
        return {f"{part}/{name}": t for part, named in parts.items() for name, t in named.items()}

    def _next(self, step: int) -> list[Example]:
        """Return this process's examples of an update."""
        examples, size = self._task.train, self.options.batch_size * self.options.accumulation
        whole, start = size * self.accelerator.num_processes, size * self.accelerator.process_index
        indices = batch_indices(len(examples), whole, step, self.options.seed)
        return [examples[index] for index in indices[start : start + size]]

    def _gradients(self, examples: Sequence[Example]) -> dict[str, float]:
        """Compute gradients, in smaller parts if memory does not suffice; return the loss."""
        while True:
            try:
                return self._reduced(self._attempt(examples), "mean")
            except RuntimeError as error:
                # Processes that wait for each other cannot choose for themselves.
                if self.accelerator.num_processes > 1 or not should_reduce_batch_size(error):
                    raise
                if self.batch_part == 1:
                    raise QuantizationError(
                        "not even one example fits into memory; train on shorter ones"
                    ) from error
            self.batch_part //= 2
            release_memory()

    def _attempt(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        self._optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        for start in range(0, len(examples), self.batch_part):
            is_last = start + self.batch_part >= len(examples)
            with nullcontext() if is_last else self.accelerator.no_sync(self._model):
                terms = self._model(examples[start : start + self.batch_part], len(examples))
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


def is_finite(terms: dict[str, float]) -> bool:
    """Return True if every term is a number."""
    return all(map(isfinite, terms.values()))


def listed(terms: dict[str, float]) -> str:
    """Return terms as a message shows them."""
    return ", ".join(f"{name} {value:.4g}" for name, value in terms.items())


def _moving_average(student: nn.Module, share: float) -> AveragedModel:
    """Return an exponential moving average of a student's parameters.

    Its memory is short at first, so that the beginning is soon forgotten.
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
