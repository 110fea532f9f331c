"""What one component learns from: calls of its original, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tts_compress.models.distillation_losses import kl_divergence, log_mel_loss, mse, waveform_loss
from tts_compress.models.recorded_calls import answering, compared_outputs
from tts_compress.qat.family.asking import Asking
from tts_compress.qat.module_task import target_variances

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from tts_compress.models.distillation import Call, Objective
    from tts_compress.qat.listening import Signature
    from tts_compress.qat.task import Example

__all__ = ["CallTask", "Repeating"]

_LEAST_DEVIATION = 1e-3
"""Of a prior that is hardly more than a point: nothing is worth infinitely much."""


class Repeating(nn.Module):
    """A component that answers recorded calls, told by their tensors alone.

    It is always in evaluation: dropout would make the student guess noise that its teacher never
    had.

    Args:
        module: Teacher or student.
        objective: Says how it is called and which of its answers count.
        signatures: Everything else about the calls.
    """

    def __init__(
        self, module: nn.Module, objective: Objective, signatures: Sequence[Signature]
    ) -> None:
        super().__init__()
        self.module = module
        self._objective = objective
        self._signatures = tuple(signatures)
        self.eval()

    def forward(self, which: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the compared tensors of a call.

        Args:
            which: Place of the call's signature, int64, a scalar.
            tensors: Of the call; they stay as they are, whatever the component does to its inputs.
        """
        signature = self._signatures[int(which)]
        arguments, keywords = signature.call([tensor.clone() for tensor in tensors])
        answer = answering(self.module, self._objective)(*arguments, **keywords)
        return tuple(compared_outputs(self._objective, answer, keywords))

    def train(self, mode: bool = True) -> Self:
        """Stay in evaluation."""
        del mode
        return super().train(mode=False)


class CallTask:
    """A `Task` made of one component and calls that its original answered.

    Calls are learned from one by one, because their first axis need not be a batch.

    Args:
        objective: What is compared, and how.
        teacher: The root in FP32 that the objective's names are below; not modified.
        student: The component with fake-quantized layers.
        train: Calls to learn from.
        held_out: Calls that are only judged on.
        sample_rate: Of a component that answers with samples, Hz.

    Raises:
        ModelError: The teacher answers otherwise when a call is repeated.
    """

    def __init__(
        self,
        objective: Objective,
        teacher: nn.Module,
        student: nn.Module,
        *,
        train: Sequence[Call],
        held_out: Sequence[Call],
        sample_rate: int,
    ) -> None:
        self._objective = objective
        self._sample_rate = sample_rate
        signatures: list[Signature] = []
        asking = Asking(objective=objective, teacher=teacher, signatures=signatures)
        self._train = [example for call in train for example in asking.examples(call)]
        self._held_out = [example for call in held_out for example in asking.examples(call)]
        self._variances: list[float] = []
        if objective.loss == "mse":
            self._variances = target_variances(self._train)
        self.student: nn.Module = Repeating(student, objective, signatures)

    def train_examples(self) -> Sequence[Example]:
        """Return what the student is trained on."""
        return self._train

    def held_out_examples(self) -> Sequence[Example]:
        """Return what it is judged on."""
        return self._held_out

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return the terms of the loss: one, or two for samples."""
        pairs = list(zip(outputs, example.targets, strict=True))
        if self._objective.loss == "kl":
            return {"kl": _sum(kl_divergence(*pair) for pair in pairs)}
        if self._objective.loss == "waveform":
            rate = self._sample_rate
            return {
                "waveform": _sum(waveform_loss(*pair) for pair in pairs),
                "log-mel": _sum(log_mel_loss(*pair, sample_rate=rate) for pair in pairs),
            }
        deviation = self._objective.log_deviation
        if deviation is not None:
            return {"mse": _prior_distance(pairs, deviation)}
        units = zip(pairs, self._variances, strict=True)
        return {"mse": _sum(mse(*pair) / variance for pair, variance in units)}


def _sum(parts: Any) -> Tensor:
    return torch.stack(list(parts)).sum()


def _prior_distance(pairs: Sequence[tuple[Tensor, Tensor]], deviation: int) -> Tensor:
    """Return the squared difference of a prior's moments, in units of its own deviation.

    Where the prior is wide its noise covers what is lost of the mean.

    Args:
        pairs: Of the student and the teacher, of each moment.
        deviation: Place of the log deviation, whose differences are relative as they are.
    """
    unit = pairs[deviation][1].exp().clamp_min(_LEAST_DEVIATION)
    means = [pair for place, pair in enumerate(pairs) if place != deviation]
    terms = [mse(found / unit, meant / unit) for found, meant in means]
    return _sum([*terms, mse(*pairs[deviation])])
