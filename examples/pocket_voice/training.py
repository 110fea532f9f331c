"""A training: its loop, learning rate, averaged weights, and the state by which it resumes."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_REPORT_EVERY = 50
_AVERAGE = 0.999


@dataclass
class Run:
    """One training: what is trained, by which plan, and where it is stored."""

    path: Path
    module: nn.Module
    steps: int
    rate: float
    warmup: int = 200
    save_every: int = 250
    step: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        """Continue from the file, if there is one."""
        weights = list(self.module.parameters())
        self.optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.98), weight_decay=0.01)
        self.average = {n: p.detach().clone() for n, p in self.module.named_parameters()}
        if self.path.exists():
            self._resume()

    def train(self, loss: Callable[[random.Random], dict[str, Tensor]]) -> None:
        """Reduce the sum of the losses; each step is seeded by its number, so nothing is lost."""
        sums: dict[str, float] = {}
        while self.step < self.steps:
            started = time.monotonic()
            rng = random.Random(self.step)  # noqa: S311 - not cryptography
            torch.manual_seed(self.step)
            losses = loss(rng)
            self._update(torch.stack(list(losses.values())).sum())
            self.step += 1
            self.seconds += time.monotonic() - started
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach()) / _REPORT_EVERY
            if self.step % _REPORT_EVERY == 0:
                shown = "  ".join(f"{name} {value:.4f}" for name, value in sums.items())
                print(f"{self.step}  {self.seconds:.0f} s  {shown}", flush=True)
                sums.clear()
            if self.step % self.save_every == 0 or self.step == self.steps:
                self._save()

    @torch.no_grad()
    def averaged(self) -> None:
        """Replace the weights by their averages."""
        for name, weight in self.module.named_parameters():
            weight.copy_(self.average[name])

    def _update(self, loss: Tensor) -> None:
        cosine = 0.5 * (1 + math.cos(math.pi * self.step / self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (self.step + 1) / self.warmup) * (0.03 + 0.97 * cosine)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if torch.isfinite(nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)):
            self.optimizer.step()
        keep = min(_AVERAGE, (1 + self.step) / (10 + self.step))
        for name, weight in self.module.named_parameters():
            self.average[name].lerp_(weight.detach(), 1 - keep)

    def _save(self) -> None:
        kept = {f"average/{name}": value for name, value in self.average.items()}
        for name, weight in self.module.named_parameters():
            kept[f"weight/{name}"] = weight
            for key, value in self.optimizer.state.get(weight, {}).items():
                kept[f"{key}/{name}"] = value
        tensors.write(self.path, kept, {"step": self.step, "seconds": self.seconds})

    @torch.no_grad()
    def _resume(self) -> None:
        kept, about = tensors.read(self.path)
        self.step, self.seconds = about["step"], about["seconds"]
        for name, weight in self.module.named_parameters():
            weight.copy_(kept[f"weight/{name}"])
            self.average[name].copy_(kept[f"average/{name}"])
            state: dict[str, Any] = {
                key: kept[f"{key}/{name}"].to(weight.device if key != "step" else "cpu")
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"{key}/{name}" in kept
            }
            if state:
                self.optimizer.state[weight] = state
