"""Training: observe, freeze, fine-tune; go back where something broke; keep what was best."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import torch

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import QuantizationError
from tts_compress.progress import remark, say
from tts_compress.qat.fake_quantize import (
    ActivationFakeQuantize,
    FakeQuantize,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
)
from tts_compress.qat.train.accelerating import accelerated
from tts_compress.qat.train.averaging import copied
from tts_compress.qat.train.batches import spread
from tts_compress.qat.train.checkpoint import InFolder, InMemory, identity_of
from tts_compress.qat.train.devices import device_load
from tts_compress.qat.train.learner import Learner
from tts_compress.qat.train.log import RunLog
from tts_compress.qat.train.precision import matmul_precision
from tts_compress.qat.train.standing import Standing

if TYPE_CHECKING:
    from pathlib import Path

    from accelerate import Accelerator
    from torch import nn

    from tts_compress.progress import Progress
    from tts_compress.qat.task import Example, Task
    from tts_compress.qat.train.checkpoint import Checkpoints
    from tts_compress.qat.train.options import TrainingOptions

__all__ = ["Trained", "train"]

_STAGE = "train"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A student that has learned what it could."""

    student: nn.Module
    """The task's own, with the best average that was seen, on the processor, ranges frozen."""

    record: TrainingRecord
    gained: bool
    """Whether it is better than post-training quantization; if not, it is that."""


def train(
    task: Task,
    options: TrainingOptions,
    *,
    folder: Path | None = None,
    restart: bool = False,
    progress: Progress,
) -> Trained:
    """Train a task's student in place.

    A training with a folder that holds a checkpoint of the same training goes on from there, with
    the same result as if it had never stopped.

    Args:
        task: Whose student is as it was made, also to go on.
        options: Of the training.
        folder: For checkpoints and the log; made if it is not there. None keeps neither.
        restart: Drop a checkpoint that is there.
        progress: Is told of every update.

    Raises:
        QuantizationError: Nothing is rounded or trainable, losses stay not finite, or nothing
            learned is better than before and the options say that this is an error.
        ArtifactError: The folder holds a checkpoint of another training.
        MissingExtraError: accelerate is not installed.
    """
    _refuse_idle(task)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with accelerated(options) as accelerator:
        checkpoints: InFolder | InMemory = InMemory()
        if folder is not None:
            main = accelerator.is_main_process
            checkpoints = InFolder(folder, identity_of(task, options.identity()), writes=main)
            if restart:
                checkpoints.drop()
                accelerator.wait_for_everyone()
        with matmul_precision(options.matmul_precision, accelerator.device) as effect:
            training = _Training(task, Learner(task, options, accelerator), checkpoints, progress)
            trained = training.run(folder if accelerator.is_main_process else None, effect)
        accelerator.wait_for_everyone()
    return trained


class _Training:
    def __init__(
        self, task: Task, learner: Learner, checkpoints: Checkpoints, progress: Progress
    ) -> None:
        held_out = task.held_out_examples()
        places = spread(len(held_out), learner.options.held_out)
        self._task = task
        self._learner = learner
        self._options = learner.options
        self._judged: list[Example] = [held_out[place] for place in places]
        self._checkpoints = checkpoints
        self._progress = progress
        self._log = RunLog(None)

    def run(self, folder: Path | None, effect: str) -> Trained:
        snapshot = self._checkpoints.load()
        if snapshot is None:
            standing = self._start()
            self._log = RunLog(folder)
            self._log.add("start", **self._circumstances(effect))
            self._log.add("held-out", step=0, **_summed(standing.before))
        else:
            self._learner.restore(snapshot)
            standing = snapshot.standing
            self._log = RunLog(folder, standing.step)
            self._log.add("resume", step=standing.step, **self._circumstances(effect))
            say(self._progress, f"going on after {standing.step} updates")
        try:
            while not self._is_over(standing):
                standing = self._advance(standing)
            return self._finish(standing)
        finally:
            self._log.close()

    def _start(self) -> Standing:
        """Observe, freeze, and judge what post-training quantization makes."""
        student, options = self._learner.student, self._options
        if _observes(student):
            examples = self._task.train_examples()
            places = spread(len(examples), options.observe)
            disable_fake_quant(student)
            for done, place in enumerate(places, start=1):
                self._learner.terms([examples[place]] * self._learner.accelerator.num_processes)
                self._progress.advance("observe", done, len(places))
            disable_observer(student)
            enable_fake_quant(student)
        before = self._learner.terms(self._judged)
        if not _is_finite(before):
            raise QuantizationError(
                f"the loss is {_listed(before)} before anything is learned; are the inputs and the "
                "original's weights finite?"
            )
        standing = Standing(before=before, best=before)
        self._keep(standing)
        return standing

    def _advance(self, standing: Standing) -> Standing:
        """Make an update and what is due after it."""
        part = self._learner.part
        update = self._learner.update(standing)
        if self._learner.part < part:
            smaller = self._learner.part
            self._log.add("memory", step=standing.step, examples_at_once=smaller)
            say(self._progress, f"out of memory: going on with {smaller} examples at a time")
        if not update.is_finite:
            return self._recover(standing, f"loss {_listed(update.terms)}, gradients {update.norm}")
        standing = replace(standing, step=standing.step + 1)
        figures = {"loss": update.loss, "rate": update.rate, "norm": update.norm}
        load = device_load(self._learner.accelerator.device)
        self._log.add("update", step=standing.step, **figures, **update.terms, **load)
        self._progress.advance(_STAGE, standing.step, self._options.steps)
        remark(
            self._progress,
            _STAGE,
            f"loss {update.loss:.4g}, best {sum(standing.best.values()):.4g}",
        )
        is_last = standing.step == self._options.steps
        if is_last or standing.step % self._options.held_out_every == 0:
            terms = self._judge(standing)
            if not _is_finite(terms):
                return self._recover(standing, f"held-out loss {_listed(terms)}")
            standing = self._compared(standing, terms)
        if is_last or standing.step % self._options.checkpoint_every == 0:
            self._keep(standing)
        return standing

    def _judge(self, standing: Standing) -> dict[str, float]:
        with self._learner.average.inside(self._learner.student):
            terms = self._learner.terms(self._judged)
        self._log.add("held-out", step=standing.step, **_summed(terms))
        before = sum(standing.before.values())
        say(
            self._progress,
            f"update {standing.step} of {self._options.steps}: loss on held-out examples "
            f"{sum(terms.values()):.4g}, {before:.4g} before the first",
        )
        return terms

    def _compared(self, standing: Standing, terms: dict[str, float]) -> Standing:
        if sum(terms.values()) >= sum(standing.best.values()):
            return replace(standing, stale=standing.stale + 1)
        with self._learner.average.inside(self._learner.student):
            self._learner.best = copied(self._learner.student)
        return replace(standing, best=terms, best_step=standing.step, stale=0)

    def _recover(self, standing: Standing, problem: str) -> Standing:
        """Go back to the last checkpoint with half the learning rate."""
        snapshot = self._checkpoints.load()
        assert snapshot is not None, "one is kept before the first update"
        used = snapshot.standing.recoveries
        if used >= self._options.recoveries:
            raise QuantizationError(
                f"training broke down at update {standing.step + 1} ({problem}), also after "
                f"{used} times half the learning rate; give a lower one than "
                f"{self._learner.learning_rate:g}, or smaller gradients by --clip"
            )
        self._learner.restore(snapshot)
        changed = replace(
            snapshot.standing,
            recoveries=used + 1,
            rate_factor=snapshot.standing.rate_factor / 2,
        )
        self._log.add("recovery", at=standing.step + 1, back_to=changed.step, problem=problem)
        say(self._progress, f"{problem}: back to update {changed.step} with half the learning rate")
        self._keep(changed)
        return changed

    def _is_over(self, standing: Standing) -> bool:
        patience = self._options.patience
        return standing.step >= self._options.steps or 0 < patience <= standing.stale

    def _finish(self, standing: Standing) -> Trained:
        gained = standing.best_step > 0
        self._keep(standing)
        figures = {"best_step": standing.best_step, "gained": gained}
        self._log.add("end", step=standing.step, **figures, **_summed(standing.best))
        if not gained:
            problem = (
                f"nothing learned in {standing.step} updates is better on held-out examples than "
                f"post-training quantization (loss {sum(standing.before.values()):.4g})"
            )
            if self._options.without_gain == "fail":
                raise QuantizationError(f"{problem}; give more steps or a lower learning rate")
            say(self._progress, f"{problem}, which is kept")
        record = TrainingRecord(
            steps=standing.best_step,
            seed=self._options.seed,
            before=standing.before,
            after=standing.best,
        )
        return Trained(student=self._learner.adopt_best(), record=record, gained=gained)

    def _keep(self, standing: Standing) -> None:
        # Others may still be reading the last one, or about to read this one.
        self._learner.accelerator.wait_for_everyone()
        self._checkpoints.save(self._learner.snapshot(standing))
        self._learner.accelerator.wait_for_everyone()

    def _circumstances(self, effect: str) -> dict[str, object]:
        accelerator: Accelerator = self._learner.accelerator
        return {
            "options": asdict(self._options),
            "learning_rate": self._learner.learning_rate,
            "device": str(accelerator.device),
            "processes": accelerator.num_processes,
            "threads": torch.get_num_threads(),
            "mixed_precision": str(accelerator.mixed_precision),
            "matmul_precision": effect,
        }


def _refuse_idle(task: Task) -> None:
    if not any(isinstance(module, FakeQuantize) for module in task.student.modules()):
        raise QuantizationError(
            "nothing of the student is rounded, so there is nothing to learn; check what the "
            "recipe names"
        )
    if not any(parameter.requires_grad for parameter in task.student.parameters()):
        raise QuantizationError("the student has no trainable weight; set requires_grad")
    if not len(task.train_examples()) or not len(task.held_out_examples()):
        raise QuantizationError("there are no examples to learn from, or none to judge by")


def _observes(student: nn.Module) -> bool:
    return any(
        bool(module.observer_enabled[0])
        for module in student.modules()
        if isinstance(module, ActivationFakeQuantize)
    )


def _is_finite(terms: dict[str, float]) -> bool:
    return all(abs(value) < float("inf") for value in terms.values())


def _summed(terms: dict[str, float]) -> dict[str, float]:
    return {"loss": sum(terms.values()), **terms}


def _listed(terms: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in terms.items())
