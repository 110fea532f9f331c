"""Options of a training, its folder, and the packages it needs."""

import os
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any, Literal, get_args

from tts_compress.errors import MissingExtraError, QuantizationError
from tts_compress.models.base import Loss
from tts_compress.options import option
from tts_compress.progress import Progress, default_progress

CHECKPOINT_NAME = "checkpoint.safetensors"
"""Name of the file that a training is resumed from."""

_POSITIVE = (
    *("steps", "batch_size", "accumulation"),
    *("held_out", "held_out_every", "checkpoint_every"),
)
_NOT_NEGATIVE = ("warm_up", "weight_decay", "observe", "patience", "recoveries", "clip")
_MOST = 1 << 53
_NOT_IDENTITY = frozenset({"threads", "checkpoint_every"})
"""Options that a resumed training may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Numbers of a training; the defaults suit a vocoder of a few million weights.

    Raises:
        QuantizationError: A number is out of its range.
    """

    steps: int = option(
        1000, "--steps N", "updates of the weights; of a system in torch, for each component"
    )
    """Updates of the weights."""

    minutes: float | None = option(
        None, "--minutes N", "end after so many, with the best there is by then"
    )
    """Limit of each training in minutes; None for no limit. The learning rate falls with updates or
    time, whichever is further along, so with a limit results depend on the machine's speed."""

    loss: Loss | None = None
    """Loss that compares a torch module's outputs with its original's: `mse` (also for None), `kl`
    for scores of tokens `[…, V]`, `waveform` for samples `[…, T]`. Voices and systems have their
    own."""

    batch_size: int = option(4, "--batch-size N", "examples at a time")
    """Examples at a time, in each process. Where they do not fit into memory they are taken in
    smaller parts, which changes no result but for the order of sums."""

    accumulation: int = option(1, "--accumulation N", "batches that make one update")
    """Batches whose gradients make one update."""

    learning_rate: float | None = option(
        None, "--learning-rate N", "peak rate, for one process (one that suits the bits)"
    )
    """Peak rate of AdamW, for one process; with several it is multiplied by their number. None for
    one that suits the bits of the weights."""

    learned_ranges: bool = option(
        True, "--learned-ranges", "train the ranges of activations, too (yes)"
    )
    """True to train ranges of activations, too; if not, they stay as observed. They are few, and in
    eight bits they matter more than weights do."""

    range_learning_rate: float = option(
        2e-2, "--range-learning-rate N", "the same for trained ranges of activations"
    )
    """Peak rate for trained ranges, whose parameters are logarithms of factors."""

    warm_up: int = 20
    """Updates over which the learning rate rises; then it falls, along a cosine, to a hundredth."""

    weight_decay: float = 0.0
    clip: float = option(1.0, "--clip N", "largest norm of the gradients; 0 for any")
    """Largest norm of all gradients together; 0 for any."""

    averaging: float = 0.9
    """Share of the past in the moving average of weights, which is what is judged and deployed."""

    observe: int = 64
    """Examples that ranges are observed on before they are frozen, where a task asks for it."""

    mixed_precision: Literal["no", "bf16", "fp16"] = option(
        "no", "--mixed-precision", "number format of the student's arithmetic"
    )
    """Arithmetic the student runs in; losses and weights are FP32."""

    matmul_precision: Literal["highest", "high", "medium"] = option(
        "highest",
        "--matmul-precision",
        "precision of FP32 products on hardware that has less: high is TF32, medium bfloat16",
    )
    """Precision of FP32 products, as `torch.set_float32_matmul_precision` takes it: `high` allows
    TF32, `medium` bfloat16. Hardware without such units computes in FP32 all the same."""

    seed: int = option(0, "--seed N", "seed of the noise and the order of examples")
    """Seed of the order of examples."""

    held_out_every: int = 50
    """Updates between two evaluations on held-out examples."""

    held_out: int = 16
    """Number of held-out examples that are used, spread evenly."""

    patience: int = option(
        0,
        "--patience N",
        "evaluations on held-out examples without gain before it ends; 0: never",
    )
    """Evaluations without anything better after which training ends; 0 for never."""

    checkpoint_every: int = 25
    """Updates between two checkpoints."""

    recoveries: int = 3
    """Times that training goes back to its last checkpoint, with half the learning rate, because a
    loss or a gradient was not finite."""

    without_gain: Literal["keep", "fail"] = option(
        "keep",
        "--without-gain",
        "what to do where training is no better than quantization without it",
    )
    """Action if training is no better than post-training quantization: keep the latter, or fail."""

    threads: int | None = option(
        None, "--threads N", "threads of torch on the processor (its own choice)"
    )
    """Threads of torch on the processor; None for its own choice."""

    device: str = option(
        "auto", "--device DEVICE", "to train on: cpu, cuda, cuda:N, or auto, a GPU if any"
    )
    """The device to train on, as of `Execution`."""

    def __post_init__(self) -> None:
        rate, threads, minutes = self.learning_rate, self.threads, self.minutes
        checks = [
            *((name, 1 <= getattr(self, name) <= _MOST, "1 or more") for name in _POSITIVE),
            *((name, getattr(self, name) >= 0, "0 or more") for name in _NOT_NEGATIVE),
            ("minutes", minutes is None or 0 < minutes < inf, "a number above 0"),
            ("learning_rate", rate is None or 0 < rate < inf, "a number above 0"),
            ("range_learning_rate", 0 < self.range_learning_rate < inf, "a number above 0"),
            ("seed", 0 <= self.seed <= _MOST, "0 or more"),
            ("loss", self.loss in (None, *get_args(Loss)), "mse, kl or waveform"),
            ("averaging", 0 <= self.averaging < 1, "0 or more, below 1"),
            ("threads", threads is None or 1 <= threads <= 4096, "1 to 4096, or leave it out"),
        ]
        wrong = [
            f"{n} is {getattr(self, n)}; give {accepted}" for n, ok, accepted in checks if not ok
        ]
        if wrong:
            raise QuantizationError("; ".join(wrong))

    def identity(self) -> dict[str, Any]:
        """Return the options that a resumed training shares with its checkpoint."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_IDENTITY}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training: its options, its folder, and the receiver of its progress."""

    options: TrainingOptions = field(default_factory=TrainingOptions)
    """Options; for a system in torch, of the training of each component."""

    folder: Path | None = None
    """Folder of checkpoints and the log; a training whose checkpoint is there is resumed. None
    keeps nothing."""

    restart: bool = False
    """Drop a checkpoint that is there."""

    progress: Progress = field(default_factory=default_progress)


def is_main_process() -> bool:
    """Return True if this process is the one that writes and prints.

    Launchers such as `torchrun` and `accelerate launch` number processes in `RANK`; without one
    there is only this.
    """
    return os.environ.get("RANK", "0") == "0"


def require_packages() -> None:
    """Check, before minutes of work, that the packages that training needs are installed."""
    for package in ("torch", "safetensors", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtraError(package, "qat")
