"""Training any module: batches of its inputs, and what its original returns for them."""

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.distillation import Objective
from tts_compress.qat.losses import objective_terms, target_variances
from tts_compress.qat.recorded_calls import compared_outputs
from tts_compress.qat.task import CallSignature, Example
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

_OUTPUT = Objective(component="", module="", loss="mse")
"""Whatever the module returns."""


class ModuleTask:
    """A `Task` made of a module and batches of its inputs.

    Args:
        teacher: In FP32; not modified. It has to return the same for the same inputs: noise is an
            input, or seeded.
        student: The module that `prepare_qat` made of it.
        batches: Inputs of the module, each a tensor, a tuple of arguments or a dictionary
            of them; all of one structure, and at least two.
        objectives: Outputs to compare; by default all of the module's, by squared difference.
            Names of modules are below the teacher, whose own name is empty; each is called once.
        held_out: Share of the batches that is only judged on; at least one is, and one is not.
        seed: Chooses which.

    Raises:
        RecipeError: The batches are too few, or differ in more than their tensors.
        ModelError: The teacher returns something else the second time, or an objective names what
            is not there, is not called once, or returns no real numbers.
    """

    def __init__(
        self,
        teacher: nn.Module,
        student: nn.Module,
        batches: Sequence[Any],
        *,
        objectives: Sequence[Objective] = (),
        held_out: float = 0.1,
        seed: int = 0,
    ) -> None:
        self._objectives = tuple(objectives) or (_OUTPUT,)
        calls = [_as_call(batch) for batch in batches]
        if len(calls) < 2:
            raise RecipeError(f"{len(calls)} batches to train on; give 2 or more: one is held out")
        signature = _common_signature(calls)
        original = _OutputCapture(copy_sharing_tensors(teacher).eval(), signature, self._objectives)
        examples = [_example(original, signature.tensors(call)) for call in calls]
        again = _example(original, examples[0].inputs).targets
        if not all(map(torch.equal, again, examples[0].targets)):
            raise ModelError(
                "the module returns something else for the same inputs, so there is nothing to "
                "imitate; make its noise one of its inputs, or seed it in forward"
            )
        self.student: nn.Module = _OutputCapture(student, signature, self._objectives)
        self._train, self._held_out = _split(examples, held_out, seed)
        self._lengths = original.lengths
        self._variances = target_variances(self._train)

    def train_examples(self) -> Sequence[Example]:
        """Return the examples that the student is trained on."""
        return self._train

    def held_out_examples(self) -> Sequence[Example]:
        """Return the examples that the student is judged on."""
        return self._held_out

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return a term for each module and kind of loss, such as `output/mse` for the whole's."""
        terms: dict[str, Tensor] = {}
        start = 0
        for objective, length in zip(self._objectives, self._lengths, strict=True):
            own = slice(start, start + length)
            found = objective_terms(
                objective, outputs[own], example.targets[own], self._variances[own]
            )
            for kind, term in found.items():
                name = f"{objective.module or 'output'}/{kind}"
                terms[name] = terms[name] + term if name in terms else term
            start += length
        return terms


class _OutputCapture(nn.Module):
    """A module that takes the tensors of a call, and returns those that objectives compare.

    Args:
        module: Teacher or student.
        signature: Signature of the calls.
        objectives: Name modules below it.

    Raises:
        ModelError: There is no module of such a name.
    """

    def __init__(
        self, module: nn.Module, signature: CallSignature, objectives: Sequence[Objective]
    ) -> None:
        super().__init__()
        self.module = module
        self.lengths: tuple[int, ...] = ()
        """Numbers of tensors of each objective in the last call."""

        self._signature = signature
        self._objectives = tuple(objectives)
        for objective in objectives:
            _find(module, objective)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the compared tensors of all objectives, in order.

        Raises:
            ModelError: A module was not called once, or returned no such tensors.
        """
        arguments, keywords = self._signature.call(tensors)
        captured: dict[str, list[Any]] = {objective.module: [] for objective in self._objectives}
        with ExitStack() as hooks:
            for name in captured.keys() - {""}:
                hook = self.module.get_submodule(name).register_forward_hook(
                    lambda _module, _inputs, output, name=name: captured[name].append(output)
                )
                hooks.callback(hook.remove)
            captured[""] = [self.module(*arguments, **keywords)]
        compared = []
        for objective in self._objectives:
            outputs = captured[objective.module]
            if len(outputs) != 1:
                raise ModelError(
                    f"'{objective.module}' was called {len(outputs)} times in one call of the "
                    "whole; name a module that is called once"
                )
            compared.append(compared_outputs(objective, outputs[0]))
        self.lengths = tuple(len(outputs) for outputs in compared)
        return tuple(tensor for outputs in compared for tensor in outputs)


def _find(root: nn.Module, objective: Objective) -> None:
    if objective.method != "forward":
        raise ModelError(
            f"'{objective.module}.{objective.method}' cannot be captured inside of a module; only "
            "what 'forward' returns can"
        )
    try:
        root.get_submodule(objective.module)
    except AttributeError as error:
        raise ModelError(f"the module has no part '{objective.module}': {error}") from error


def _as_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _common_signature(calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> CallSignature:
    """Return the signature of all calls; refuse those that differ in more than their tensors."""
    first = CallSignature.of(calls[0])
    if not first.places:
        raise RecipeError("a batch holds no tensor; give what the module is called with")
    for number, call in enumerate(calls):
        if CallSignature.of(call) != first:
            raise RecipeError(
                f"batch {number} and batch 0 differ in more than the values of their tensors; "
                "give all of one structure, with the same other arguments"
            )
    return first


@torch.no_grad()
def _example(teacher: _OutputCapture, inputs: tuple[Tensor, ...]) -> Example:
    given = tuple(tensor.detach().clone() for tensor in inputs)
    outputs = teacher(*(tensor.clone() for tensor in given))  # it may change its inputs
    return Example(inputs=given, targets=tuple(output.clone() for output in outputs))


def _split(
    examples: list[Example], share_held_out: float, seed: int
) -> tuple[list[Example], list[Example]]:
    count = min(max(round(len(examples) * share_held_out), 1), len(examples) - 1)
    chosen = set(random.Random(seed).sample(range(len(examples)), count))  # noqa: S311  no secret
    train = [example for i, example in enumerate(examples) if i not in chosen]
    return train, [examples[i] for i in sorted(chosen)]
