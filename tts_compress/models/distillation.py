"""Objectives for training compressed components: recorded calls of the original, and a loss.

Each component is trained alone. Its original is called as it is in speech, the calls are recorded,
and the compressed one, given the same inputs, is trained towards the same outputs. No recordings
and no transcripts are needed: the original is the teacher.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Loss: TypeAlias = Literal["kl", "mse", "waveform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One component of a model, the call that is compared, and how."""

    module: str
    """Dotted name, below `root()`, of the module whose calls are recorded."""

    loss: Loss
    """Loss that compares the outputs.

    `kl`: scores of tokens, shape `[…, V]`, as probabilities. They are recorded while the model
    reads a whole utterance (`LanguageModel.logits`), not step by step while it speaks.
    `mse`: any tensors, by their squared difference.
    `waveform`: samples, shape `[…, T]`, by absolute difference and by spectrum; the inputs are
    tensors `[batch, channels, frames]`.
    """

    method: str = "forward"
    """The method of the module that is called; some systems call others than `forward`."""

    outputs: tuple[int, ...] = ()
    """Positions of the outputs to compare, among its floating-point tensors; () for all."""

    repeated: tuple[tuple[str, Any], ...] = ()
    """Keywords that get another value when a recorded call is repeated, such as that of a cache,
    which no longer holds the earlier calls."""

    log_deviation: int | None = None
    """Position, among the compared tensors, of the logarithm of a prior's deviation: squared
    differences of the others count in units of the deviation. None compares each by itself."""

    steps_of: str | None = None
    """A keyword of the call whose tensor has a column for each step of speech. As many scores
    count, from the end: those before them belong to the text. None where all count."""

    encodes: Literal["text", "description"] = "text"
    """Kind of text the module encodes. A description of how to speak is the same for every text, so
    the calls of its encoder are recorded with each text in the description's place, too."""

    @property
    def name(self) -> str:
        """The module, and the method if that has a name of its own."""
        return self.module if self.method == "forward" else f"{self.module}.{self.method}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """The inputs and the output of one call of a module.

    Tensors are detached copies on the processor, in their own dtypes. Gradients can flow through
    them, also where the module ran in inference mode.
    """

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    output: Any
