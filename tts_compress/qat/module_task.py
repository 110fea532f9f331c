"""What any module is trained on: batches of its inputs, and what its original answers to them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.distillation import Objective
from tts_compress.models.distillation_losses import kl_divergence, mse, waveform_loss
from tts_compress.qat.listening import Listening, Signature
from tts_compress.qat.task import Example
from tts_compress.torch.layers.structure import share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.qat.prepare import PreparedModule

__all__ = ["ModuleTask", "target_variances"]

_OUTPUT = Objective(component="", module="", loss="mse")
"""Whatever the module returns."""


class ModuleTask:
    """A `Task` made of a module and batches of its inputs.

    Squared differences are divided by the teacher's variance, so that terms of tensors of any
    magnitude weigh alike.

    Args:
        teacher: In FP32; not modified. It has to answer the same to the same inputs: noise is an
            input, or seeded.
        student: What `prepare_qat` made of it.
        batches: What modules are called with, each a tensor, a tuple of arguments or a dictionary
            of them; all of one structure, and at least two.
        objectives: What is compared; by default all that the module returns, by squared difference.
            Names of modules are below the teacher, whose own name is empty; each is called once.
        held_out: Share of the batches that is only judged on; at least one is, and one is not.
        seed: Chooses which.

    Raises:
        RecipeError: The batches are too few, or differ in more than their tensors.
        ModelError: The teacher answers otherwise the second time, or an objective names what is
            not there, is not called once, or returns no real numbers.
    """

    def __init__(
        self,
        teacher: nn.Module,
        student: PreparedModule,
        batches: Sequence[Any],
        *,
        objectives: Sequence[Objective] = (),
        held_out: float = 0.1,
        seed: int = 0,
    ) -> None:
        self._objectives = tuple(objectives) or (_OUTPUT,)
        calls = [_as_call(batch) for batch in batches]
        if len(calls) < 2:
            raise RecipeError(
                f"{len(calls)} batches to learn from; give 2 or more: one is held out"
            )
        signature = Signature.of(calls)
        original = Listening(share(teacher).eval(), signature, self._objectives)
        examples = [_example(original, signature.tensors(call)) for call in calls]
        _check_repeats(original, examples[0])
        self.student: nn.Module = Listening(student, signature, self._objectives)
        self._train, self._held_out = _split(examples, held_out, seed)
        self._lengths = original.lengths
        self._variances = target_variances(self._train)

    def train_examples(self) -> Sequence[Example]:
        """Return what the student is trained on."""
        return self._train

    def held_out_examples(self) -> Sequence[Example]:
        """Return what it is judged on."""
        return self._held_out

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return a term for each module and kind of loss, such as `output/mse` for the whole's."""
        terms: dict[str, Tensor] = {}
        start = 0
        for objective, length in zip(self._objectives, self._lengths, strict=True):
            these = range(start, start + length)
            parts = [self._distance(objective, outputs, example, place) for place in these]
            name = f"{objective.module or 'output'}/{objective.loss}"
            term = torch.stack(parts).sum()
            terms[name] = terms[name] + term if name in terms else term
            start += length
        return terms

    def _distance(
        self, objective: Objective, outputs: tuple[Tensor, ...], example: Example, place: int
    ) -> Tensor:
        found, meant = outputs[place], example.targets[place]
        if objective.loss == "mse":
            return mse(found, meant) / self._variances[place]
        if objective.loss == "kl":
            return kl_divergence(found, meant)
        return waveform_loss(found, meant)


def _as_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


@torch.no_grad()
def _example(teacher: Listening, inputs: tuple[Tensor, ...]) -> Example:
    given = tuple(tensor.detach().clone() for tensor in inputs)
    answers = teacher(*(tensor.clone() for tensor in given))  # it may change its inputs
    return Example(inputs=given, targets=tuple(answer.clone() for answer in answers))


def _check_repeats(teacher: Listening, example: Example) -> None:
    again = _example(teacher, example.inputs).targets
    if not all(map(torch.equal, again, example.targets)):
        raise ModelError(
            "the module answers otherwise to the same inputs, so there is nothing to learn from "
            "it; make its noise one of its inputs, or seed it in forward"
        )


def _split(
    examples: list[Example], share_held_out: float, seed: int
) -> tuple[list[Example], list[Example]]:
    count = min(max(round(len(examples) * share_held_out), 1), len(examples) - 1)
    chosen = set(random.Random(seed).sample(range(len(examples)), count))  # noqa: S311  no secret
    train = [example for i, example in enumerate(examples) if i not in chosen]
    return train, [examples[i] for i in sorted(chosen)]


def target_variances(examples: Sequence[Example]) -> list[float]:
    """Return the variance of each target over all examples; 1 where it is constant."""
    found = []
    for tensors in zip(*(example.targets for example in examples), strict=True):
        values = torch.cat([tensor.double().flatten() for tensor in tensors])
        variance = float(values.var(correction=0))
        found.append(variance if variance > 0 else 1.0)
    return found
