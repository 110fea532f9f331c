"""Training: observe, freeze, fine-tune; go back where something broke; keep what was best."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState

from tts_compress.artifact import TrainingRecord
from tts_compress.errors import ArtifactError, QuantizationError, raising
from tts_compress.folders import exclusive_folder
from tts_compress.progress import Progress, report_message, report_status
from tts_compress.qat.fake_quantize import ActivationFakeQuantize, observing
from tts_compress.qat.optimization import (
    Checkpoints,
    NotFiniteError,
    Optimization,
    TrainingState,
    identity_of,
    is_finite,
    listed,
    share_done,
    spread,
)
from tts_compress.qat.options import TrainingOptions, TrainingRun
from tts_compress.qat.task import TrainingTask
from tts_compress.reading import read_text
from tts_compress.torch.devices import Precision, find_device, gpu_load, set_precision

_FORMATS = {
    "highest": "FP32",
    "high": "TF32 or three bfloat16 products",
    "medium": "bfloat16 products",
}


def choose_device(options: TrainingOptions) -> tuple[torch.device | None, bool]:
    """Return the device that is named, None where the launcher chooses, and True for a GPU.

    Raises:
        ModelError: There is no such device here.
        QuantizationError: It has no arithmetic of the precision asked for.
    """
    device = None if options.device == "auto" else find_device(options.device)
    on_gpu = torch.cuda.is_available() if device is None else device.type == "cuda"
    if options.mixed_precision == "fp16" and not on_gpu:
        raise QuantizationError(
            "mixed precision 'fp16' needs a GPU, and none is used here; give 'bf16' or 'no'"
        )
    return device, on_gpu


@contextmanager
def accelerated(options: TrainingOptions) -> Iterator[Accelerator]:
    """Yield an accelerator; threads and random numbers are as before afterwards."""
    device, on_gpu = choose_device(options)
    if on_gpu and device is not None:
        torch.cuda.set_device(device)
    threads = torch.get_num_threads()
    # It keeps its settings for the life of a process, which may train more than once.
    AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001
    parallel = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True,
        find_unused_parameters=True,  # an objective may compare a part of the student only
    )
    accelerator = Accelerator(
        mixed_precision=options.mixed_precision, cpu=not on_gpu, kwargs_handlers=[parallel]
    )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            torch.manual_seed(options.seed)
            yield accelerator
    finally:
        torch.set_num_threads(threads)


@contextmanager
def matmul_precision(wanted: Precision, device: torch.device) -> Iterator[str]:
    """Set the precision of FP32 products for the length of a block; yield what took effect.

    Convolutions on a GPU, which torch computes in TF32 by default, follow it too.
    """
    before = torch.get_float32_matmul_precision()
    convolutions = device.type == "cuda"
    allowed = torch.backends.cudnn.allow_tf32 if convolutions else False
    exact = _product("highest", device)
    differs = not torch.equal(exact, _product(wanted, device))
    set_precision(wanted, device)
    works = differs or wanted == "highest"
    try:
        yield f"{wanted}: {_FORMATS[wanted] if works else 'no effect on this hardware, FP32'}"
    finally:
        torch.set_float32_matmul_precision(before)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = allowed


def _product(precision: str, device: torch.device) -> torch.Tensor:
    """Return a product whose rounding depends on how it is computed."""
    torch.set_float32_matmul_precision(precision)
    source = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 256, 256, generator=source).to(device)
    product: torch.Tensor = left @ right
    return product


LOG_NAME = "log.jsonl"
_BOARD = "tensorboard"


class RunLog:
    """Appends to the log of a training.

    Args:
        folder: Folder of the log; None keeps none.
        first_step: Events of later updates, which a killed run left, are dropped: they are about
            to happen again.
    """

    def __init__(self, folder: Path | None, first_step: int = 0) -> None:
        self._path = None if folder is None else folder / LOG_NAME
        self._board: Any = None
        if folder is None or self._path is None:
            return
        kept = [line for line in read_log(folder) if line.get("step", 0) <= first_step]
        lines = kept if first_step else []
        self._path.write_text("".join(map(_line, lines)), encoding="utf-8")
        with suppress(ImportError):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / _BOARD), purge_step=first_step)

    def add(self, event: str, **values: Any) -> None:
        """Append an event; the numbers of one that has a `step` become curves."""
        if self._path is None:
            return
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line({"event": event, **values}))
        if self._board is None or "step" not in values:
            return
        for name, value in values.items():
            if isinstance(value, float):
                self._board.add_scalar(f"{event}/{name}", value, values["step"])

    def close(self) -> None:
        """Write what is still in memory."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a training, up to the line that a killed run did not finish."""
    path = folder / LOG_NAME
    if not path.is_file():
        return []
    events: list[dict[str, Any]] = []
    with raising(ArtifactError, f"cannot read '{path}'"):
        lines = read_text(path).splitlines()
    with suppress(ValueError):
        for line in lines:
            events.append(json.loads(line))  # noqa: PERF401  those before the broken line count
    return events


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False) + "\n"


_STAGE = "train"


def train(task: TrainingTask, run: TrainingRun) -> TrainingRecord:
    """Train a task's student in place; return how it went.

    The student is left with the best average that was seen, on the processor, ranges frozen. The
    record's steps are 0 where nothing was better than post-training quantization.

    A training with a folder that holds a checkpoint of the same training is resumed, with the same
    result as if it had never stopped.

    Args:
        task: The task, with an untrained student, also to resume.
        run: Its options, the folder of checkpoints and the log, made if it is not there, and the
            progress of every update.
    """
    if not any(parameter.requires_grad for parameter in task.student.parameters()):
        raise QuantizationError("the student has no trainable weight; set requires_grad")
    options = run.options
    if run.folder is not None:
        run.folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        accelerator = stack.enter_context(accelerated(options))
        is_main = accelerator.is_main_process
        if run.folder is not None and is_main:
            stack.enter_context(exclusive_folder(run.folder, "training"))
        identity = {} if run.folder is None else identity_of(task, options.identity())
        checkpoints = Checkpoints(run.folder, identity, writes=is_main)
        if run.restart:
            checkpoints.drop()
            accelerator.wait_for_everyone()
        with matmul_precision(options.matmul_precision, accelerator.device) as effect:
            optimization = Optimization(task, options, accelerator)
            trainer = _Trainer(task, optimization, checkpoints, run.progress)
            record = trainer.run(run.folder if is_main else None, effect)
        accelerator.wait_for_everyone()
    return record


@dataclass
class _Trainer:
    task: TrainingTask
    optimization: Optimization
    checkpoints: Checkpoints
    progress: Progress

    def __post_init__(self) -> None:
        self.options = self.optimization.options
        self.held_out = spread(self.task.held_out, self.options.held_out)

    def run(self, folder: Path | None, effect: str) -> TrainingRecord:
        snapshot = self.checkpoints.load()
        if snapshot is None:
            state = self._start()
            self._log = RunLog(folder)
            self._log.add("start", **self._circumstances(effect))
            self._log.add("held-out", step=0, **_with_sum(state.before))
        else:
            self.optimization.restore(*snapshot)
            state = snapshot[0]
            self._log = RunLog(folder, state.step)
            self._log.add("resume", step=state.step, **self._circumstances(effect))
            report_message(self.progress, f"resuming after {state.step} updates")
        self._clock = monotonic()
        try:
            patience = self.options.patience or inf
            while not self._is_over(state) and state.stale < patience:
                try:
                    state = self._advance(state)
                except NotFiniteError as problem:
                    state = self._recover(state, str(problem))
            return self._finish(state)
        finally:
            self._log.close()

    def _start(self) -> TrainingState:
        """Observe, freeze, and judge the result of post-training quantization."""
        optimization = self.optimization
        student, processes = optimization.student, optimization.accelerator.num_processes
        quantizers = [m for m in student.modules() if isinstance(m, ActivationFakeQuantize)]
        if any(module.observer_enabled[0] for module in quantizers):
            examples = spread(self.task.train, self.options.observe)
            with observing(student):
                for done, example in enumerate(examples, start=1):
                    optimization.terms(student, [example] * processes, processes)
                    self.progress.advance("observe", done, len(examples))
        before = optimization.judge(self.held_out)
        if not is_finite(before):
            raise QuantizationError(
                f"the loss is {listed(before)} before training; are the inputs and the "
                "original's weights finite?"
            )
        state = TrainingState(before=before, best=before)
        self._keep(state)
        return state

    def _advance(self, state: TrainingState) -> TrainingState:
        """Make an update, and the evaluation and checkpoint that are due after it."""
        optimization = self.optimization
        part = optimization.batch_part
        figures = optimization.update(state)
        if optimization.batch_part < part:
            self._log.add("memory", step=state.step, examples_at_once=optimization.batch_part)
            report_message(
                self.progress,
                f"out of memory: continuing with {optimization.batch_part} examples at a time",
            )
        begun, self._clock = self._clock, monotonic()
        spent = optimization.agreed(self._clock - begun)
        state = replace(state, step=state.step + 1, seconds=state.seconds + spent)
        examples = self.options.batch_size * self.options.accumulation
        pace = {"seconds": spent, "examples_per_second": examples / max(spent, 1e-9)}
        load = gpu_load(optimization.accelerator.device)
        self._log.add("update", step=state.step, **figures, **pace, **load)
        self.progress.advance(_STAGE, state.step, self.options.steps)
        best = sum(state.best.values())
        report_status(self.progress, _STAGE, f"loss {figures['loss']:.4g}, best {best:.4g}")
        is_last = self._is_over(state)
        if is_last or state.step % self.options.held_out_every == 0:
            terms = _with_sum(optimization.judge(self.held_out, averaged=True))
            self._log.add("held-out", step=state.step, **terms)
            loss, first = terms.pop("loss"), sum(state.before.values())
            report_message(
                self.progress,
                f"update {state.step} of {self.options.steps}: loss on held-out examples "
                f"{loss:.4g}, {first:.4g} before the first",
            )
            if not is_finite(terms):
                raise NotFiniteError(f"held-out loss {listed(terms)}")
            if loss < best:
                optimization.adopt_average()
                state = replace(state, best=terms, best_step=state.step, stale=0)
            else:
                state = replace(state, stale=state.stale + 1)
        if is_last or state.step % self.options.checkpoint_every == 0:
            self._keep(state)
        return state

    def _is_over(self, state: TrainingState) -> bool:
        return share_done(self.options, state.step, state.seconds) >= 1.0

    def _recover(self, state: TrainingState, problem: str) -> TrainingState:
        """Go back to the last checkpoint with half the learning rate."""
        snapshot = self.checkpoints.load()
        assert snapshot is not None, "one is kept before the first update"
        kept, _ = snapshot
        if kept.recoveries >= self.options.recoveries:
            raise QuantizationError(
                f"training broke down at update {state.step + 1} ({problem}), also after "
                f"{kept.recoveries} times half the learning rate; give a lower one than "
                f"{self.optimization.learning_rate:g}, or smaller gradients by --clip"
            )
        self.optimization.restore(*snapshot)
        changed = replace(
            kept,
            recoveries=kept.recoveries + 1,
            rate_factor=kept.rate_factor / 2,
            seconds=state.seconds,
        )
        self._log.add("recovery", at=state.step + 1, back_to=changed.step, problem=problem)
        report_message(
            self.progress, f"{problem}: back to update {changed.step} with half the learning rate"
        )
        self._keep(changed)
        return changed

    def _finish(self, state: TrainingState) -> TrainingRecord:
        gained = state.best_step > 0
        self._keep(state)
        figures = {"best_step": state.best_step, "gained": gained}
        self._log.add("end", step=state.step, **figures, **_with_sum(state.best))
        if not gained:
            problem = (
                f"none of {state.step} updates is better on held-out examples than "
                f"post-training quantization (loss {sum(state.before.values()):.4g})"
            )
            if self.options.without_gain == "fail":
                raise QuantizationError(f"{problem}; give more steps or a lower learning rate")
            report_message(self.progress, f"{problem}, which is kept")
        self.optimization.finish()
        return TrainingRecord(
            steps=state.best_step,
            seed=self.options.seed,
            before=state.before,
            after=state.best,
        )

    def _keep(self, state: TrainingState) -> None:
        # Others may still be reading the last one, or about to read this one.
        self.optimization.accelerator.wait_for_everyone()
        self.checkpoints.save(self.optimization.snapshot(state))
        self.optimization.accelerator.wait_for_everyone()

    def _circumstances(self, effect: str) -> dict[str, object]:
        accelerator = self.optimization.accelerator
        return {
            "options": asdict(self.options),
            "learning_rate": self.optimization.learning_rate,
            "device": str(accelerator.device),
            "processes": accelerator.num_processes,
            "threads": torch.get_num_threads(),
            "mixed_precision": str(accelerator.mixed_precision),
            "matmul_precision": effect,
        }


def _with_sum(terms: dict[str, float]) -> dict[str, float]:
    return {"loss": sum(terms.values()), **terms}
