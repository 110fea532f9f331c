"""Asking an original again what it was asked while it spoke."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tts_compress.errors import ModelError
from tts_compress.models.distillation import Call
from tts_compress.models.recorded_calls import call_module, compared_outputs
from tts_compress.qat.family.pieces import in_pieces
from tts_compress.qat.listening import Signature
from tts_compress.qat.task import Example

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from tts_compress.models.distillation import Objective

__all__ = ["Asking", "name_of"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Has the teacher answer recorded calls again."""

    objective: Objective
    teacher: nn.Module
    signatures: list[Signature]
    """Those that were met so far; grows."""

    def examples(self, call: Call) -> list[Example]:
        """Return what is learned from a call: itself, or pieces of it where samples are made."""
        given = (call.arguments, call.keywords)
        recorded = compared_outputs(self.objective, call.output, call.keywords)
        answers = self._answers(given)
        _check_repeats(self.objective, answers, recorded)
        if self.objective.loss != "waveform":
            return [self._example(given, answers)]
        return [self._example(piece, self._answers(piece)) for piece in in_pieces(given)]

    @torch.no_grad()
    def _answers(self, given: tuple[Any, Any]) -> list[Tensor]:
        call = Call(arguments=given[0], keywords=given[1], output=None)
        try:
            output = call_module(self.teacher, self.objective, call)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ModelError(
                f"'{name_of(self.objective)}' fails when a call is repeated ({error}); {_HINT}"
            ) from error
        return compared_outputs(self.objective, output, call.keywords)

    def _example(self, given: tuple[Any, Any], answers: list[Tensor]) -> Example:
        signature = Signature.of([given])
        known = (i for i, other in enumerate(self.signatures) if other.equals(signature))
        which = next(known, len(self.signatures))
        if which == len(self.signatures):
            self.signatures.append(signature)
        return Example(
            inputs=(torch.tensor(which), *signature.tensors(given)),
            targets=tuple(answer.clone() for answer in answers),
        )


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
