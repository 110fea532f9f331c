"""How long, how fast and on what a student is trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

from tts_compress.errors import QuantizationError

__all__ = ["TrainingOptions"]

_POSITIVE = (
    *("steps", "batch_size", "accumulation"),
    *("held_out", "held_out_every", "checkpoint_every"),
)
_NOT_NEGATIVE = ("warm_up", "weight_decay", "observe", "patience", "recoveries", "clip")
_ELSEWHERE = frozenset({"threads", "checkpoint_every"})
"""What does not say which training it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Numbers of a training; the defaults suit a vocoder of a few million weights.

    Raises:
        QuantizationError: A number is out of its range.
    """

    steps: int = 1000
    """Updates of the weights."""

    batch_size: int = 4
    """Examples at a time, in each process. Where they do not fit into memory they are taken in
    smaller parts, which changes no result but for the order of sums."""

    accumulation: int = 1
    """Batches whose gradients make one update."""

    learning_rate: float | None = None
    """Of AdamW at its highest, for one process; with several it is multiplied by their number. None
    for what suits the student (`suited_rate`)."""

    learned_ranges: bool = True
    """Whether ranges of activations are learned, too; if not, they stay as observed. They are few,
    and of eight bits they decide more than weights do."""

    learned_scales: bool = False
    """Whether scales of weights are learned, in torch modules; if not, they follow each channel's
    peak."""

    range_learning_rate: float = 2e-2
    """The same for what is learned of ranges and scales: logarithms of factors."""

    warm_up: int = 20
    """Updates over which the learning rate rises; then it falls, along a cosine, to a hundredth."""

    weight_decay: float = 0.0
    clip: float = 1.0
    """Largest norm of all gradients together; 0 for any."""

    averaging: float = 0.9
    """Share of the past in the moving average of weights, which is what is judged and deployed."""

    observe: int = 64
    """Examples that ranges are observed on before they are frozen, where a task asks for it."""

    mixed_precision: Literal["no", "bf16", "fp16"] = "no"
    """What arithmetic the student runs in; losses and weights are FP32."""

    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of FP32 products, as `torch.set_float32_matmul_precision` has it: `high` allows TF32,
    `medium` bfloat16. Hardware without such units computes FP32 whatever it says."""

    seed: int = 0
    """Of the order of examples."""

    held_out_every: int = 50
    """Updates between two looks at the held-out examples."""

    held_out: int = 16
    """How many of them are looked at, spread evenly."""

    patience: int = 0
    """Looks without anything better after which training ends; 0 for never."""

    checkpoint_every: int = 25
    """Updates between two checkpoints."""

    recoveries: int = 3
    """How often training goes back to its last checkpoint, with half the learning rate, because a
    loss or a gradient was not finite."""

    without_gain: Literal["keep", "fail"] = "keep"
    """What to do where nothing learned is better than post-training quantization: keep that, or
    fail."""

    threads: int | None = None
    """Of torch on the processor; None for what it chooses itself."""

    device: Literal["auto", "cpu"] = "auto"
    """`auto` takes a GPU where there is one."""

    def __post_init__(self) -> None:
        rates = ("learning_rate", "range_learning_rate")
        problems = [f"{n} is {v}; give 1 or more" for n, v in self._of(_POSITIVE) if not v >= 1]
        problems += [
            f"{n} is {v}; give 0 or more" for n, v in self._of(_NOT_NEGATIVE) if not v >= 0
        ]
        problems += [
            f"{n} is {v}; give a number above 0"
            for n, v in self._of(rates)
            if v is not None and not 0 < v < inf
        ]
        if not 0 <= self.averaging < 1:
            problems.append(f"averaging is {self.averaging}; give 0 or more, below 1")
        if self.threads is not None and self.threads < 1:
            problems.append(f"threads is {self.threads}; give 1 or more, or leave it out")
        if problems:
            raise QuantizationError("; ".join(problems))

    def identity(self) -> dict[str, Any]:
        """Return what a checkpoint's training has in common with one that goes on from it."""
        return {name: value for name, value in asdict(self).items() if name not in _ELSEWHERE}

    def _of(self, names: tuple[str, ...]) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in names]
