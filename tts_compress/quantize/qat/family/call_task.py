"""What one component learns from: calls of its original, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError
from tts_compress.models.distillation_losses import kl_divergence, log_mel_loss, mse, waveform_loss
from tts_compress.models.recorded_calls import answering, call_module, compared_outputs
from tts_compress.quantize.qat.listening import Signature
from tts_compress.quantize.qat.module_task import target_variances
from tts_compress.quantize.qat.task import Example

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from tts_compress.models.distillation import Call, Objective

__all__ = ["CallTask", "Repeating", "name_of"]

_FARTHEST = 1e-8
"""How far a repeated answer may be from the recorded one: power of the difference over its own. It
is not zero because torch adds up in another order where noise is chosen, or in inference mode; at
80 dB that is still far from what rounding does."""

_HINT = (
    "it draws noise, or keeps something from call to call: name in the objective's `repeated` what "
    "switches that off"
)


def name_of(objective: Objective) -> str:
    """Return what an objective is called by: its module, and its method if that has a name."""
    is_plain = objective.method == "forward"
    return objective.module if is_plain else f"{objective.module}.{objective.method}"


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
        self._train = [_example(objective, teacher, call, signatures) for call in train]
        self._held_out = [_example(objective, teacher, call, signatures) for call in held_out]
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
        units = zip(pairs, self._variances, strict=True)
        return {"mse": _sum(mse(*pair) / variance for pair, variance in units)}


def _sum(parts: Any) -> Tensor:
    return torch.stack(list(parts)).sum()


@torch.no_grad()
def _example(
    objective: Objective, teacher: nn.Module, call: Call, signatures: list[Signature]
) -> Example:
    """Return a call with the teacher's answer to it, and keep its signature among the others."""
    given = (call.arguments, call.keywords)
    signature = Signature.of([given])
    which = next((i for i, s in enumerate(signatures) if s.equals(signature)), len(signatures))
    if which == len(signatures):
        signatures.append(signature)
    answers = compared_outputs(objective, _repeated(objective, teacher, call), call.keywords)
    recorded = compared_outputs(objective, call.output, call.keywords)
    _check_repeats(objective, answers, recorded)
    return Example(
        inputs=(torch.tensor(which), *signature.tensors(given)),
        targets=tuple(answer.clone() for answer in answers),
    )


def _repeated(objective: Objective, teacher: nn.Module, call: Call) -> Any:
    try:
        return call_module(teacher, objective, call)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise ModelError(
            f"'{name_of(objective)}' fails when a call is repeated ({error}); {_HINT}"
        ) from error


def _check_repeats(
    objective: Objective, answers: Sequence[Tensor], recorded: Sequence[Tensor]
) -> None:
    for again, meant in zip(answers, recorded, strict=True):
        if again.shape != meant.shape or _distance(again, meant) > _FARTHEST:
            raise ModelError(
                f"'{name_of(objective)}' answers otherwise when a call is repeated; {_HINT}"
            )


def _distance(again: Tensor, meant: Tensor) -> float:
    """Return the power of the difference over that of what is meant."""
    if torch.equal(again, meant):
        return 0.0
    # Scores of tokens that are ruled out are infinite on both sides.
    difference = torch.where(again == meant, 0.0, again.double() - meant.double())
    power = torch.where(meant.isfinite(), meant, 0.0).double().square().sum()
    return float(difference.square().sum() / power) if power > 0 else float("inf")
