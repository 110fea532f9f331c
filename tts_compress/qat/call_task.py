"""Training a module on calls of its original: a system's component, or any module by batches."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from tts_compress.errors import ModelError, RecipeError
from tts_compress.models.distillation import Call, Loss, Objective
from tts_compress.qat.losses import objective_terms, target_variances
from tts_compress.qat.recorded_calls import RecordedCalls, compared_outputs, repeatable
from tts_compress.qat.task import Example, Outputs, Task
from tts_compress.torch.layers.module_surgery import copy_sharing_tensors

_MAX_ERROR = 1e-8
"""Largest error of a repeated output: power of its difference from the recorded one, over the
power of that. It is not zero because torch adds up in another order where noise is chosen, or in
inference mode; at 80 dB it is still far below the effect of rounding."""

_HINT = (
    "if it draws noise, make that one of its inputs, or seed it in forward; if it keeps something "
    "from call to call, name in the objective's `repeated` what switches that off"
)

_CHUNK_FRAMES = 128
"""One to three seconds: gradients of a whole sentence of samples need too much memory."""

_FRAME_AXES = 3
"""Batch, channels, frames."""


def module_task(
    teacher: nn.Module,
    student: nn.Module,
    batches: Sequence[Any],
    *,
    loss: Loss = "mse",
    held_out: float = 0.1,
    seed: int = 0,
) -> Task:
    """Return the task of training a module on batches of its inputs.

    Args:
        teacher: In FP32; not modified. It has to return the same for the same inputs: noise is an
            input, or seeded.
        student: The module that `prepare_qat` made of it.
        batches: Inputs of the module, each a tensor, a tuple of arguments or a dictionary
            of them; all of one structure, and at least two.
        loss: Loss that compares all its outputs, as in an `Objective`.
        held_out: Share of the batches that is only judged on; at least one is, and one is not.
        seed: Chooses which.

    Raises:
        RecipeError: The batches are too few, or differ in more than their tensors.
        ModelError: The teacher returns something else the second time, or no real numbers.
    """
    if len(batches) < 2:
        raise RecipeError(f"{len(batches)} batches to train on; give 2 or more: one is held out")
    given = [tree_map(_own, _as_call(batch)) for batch in batches]
    first, tensors = _take_apart(given[0])
    if not tensors:
        raise RecipeError("a batch holds no tensor; give what the module is called with")
    for number, batch in enumerate(given):
        if _take_apart(batch)[0] != first:
            raise RecipeError(
                f"batch {number} and batch 0 differ in more than the values of their tensors; "
                "give all of one structure, with the same other arguments"
            )
    original = copy_sharing_tensors(teacher).eval()
    calls = []
    for arguments, keywords in given:
        own = tree_map(_own, (arguments, keywords))  # it may change its inputs
        with torch.no_grad():
            output = original(*own[0], **own[1])
        calls.append(Call(arguments=arguments, keywords=keywords, output=output))
    count = min(max(round(len(calls) * held_out), 1), len(calls) - 1)
    chosen = set(random.Random(seed).sample(range(len(calls)), count))  # noqa: S311  no secret
    recorded = RecordedCalls(
        objective=Objective(module="", loss=loss),
        train=[call for i, call in enumerate(calls) if i not in chosen],
        held_out=[calls[i] for i in sorted(chosen)],
    )
    return call_task(recorded, original, student)


def call_task(
    recorded: RecordedCalls,
    teacher: nn.Module,
    student: nn.Module,
    *,
    sample_rate: int | None = None,
) -> Task:
    """Return the task of training a module on calls that were recorded of its original.

    Args:
        recorded: The calls.
        teacher: The root in FP32 that the objective's names are below; not modified.
        student: The module with fake-quantized layers.
        sample_rate: Sample rate of a system, Hz. Calls of its components are examples one by one,
            because their first axis need not be a batch, and those that return samples are cut into
            chunks. None for a module that is called with batches.

    Raises:
        ModelError: The teacher returns something else when a call is repeated.
    """
    objective = recorded.objective
    is_module = sample_rate is None
    signatures: list[_Signature] = []
    original = _Replayed(teacher.get_submodule(objective.module), objective, signatures)
    name = f"'{objective.name}'" if objective.name else "the module"

    @torch.no_grad()
    def example(given: Any) -> Example:
        signature, tensors = _take_apart(given)
        if signature not in signatures:
            signatures.append(signature)
        which = signatures.index(signature)
        inputs = (torch.tensor([which] if is_module else which), *tensors)
        try:
            targets = original(*inputs)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ModelError(f"{name} fails when a call is repeated ({error}); {_HINT}") from error
        return Example(inputs=inputs, targets=tuple(target.clone() for target in targets))

    def examples(calls: Sequence[Call]) -> Iterator[Example]:
        for call in calls:
            given = (call.arguments, call.keywords)
            whole = example(given)
            known = compared_outputs(objective, call.output, call.keywords)
            for again, first in zip(whole.targets, known, strict=True):
                if again.shape != first.shape or _relative_error(again, first) > _MAX_ERROR:
                    raise ModelError(
                        f"{name} returns something else when a call is repeated; {_HINT}"
                    )
            if is_module or objective.loss != "waveform":
                yield whole
            else:
                yield from map(example, _chunks(given))

    train, held_out = list(examples(recorded.train)), list(examples(recorded.held_out))
    variances = target_variances(train) if objective.loss == "mse" else []

    def loss(outputs: Outputs, example: Example) -> dict[str, Tensor]:
        terms = objective_terms(objective, outputs, example.targets, variances, sample_rate)
        return {f"output/{kind}" if is_module else kind: term for kind, term in terms.items()}

    return Task(
        student=_Replayed(student, objective, signatures),
        train=train,
        held_out=held_out,
        loss=loss,
    )


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of a call without the values of its tensors."""

    spec: TreeSpec
    leaves: tuple[Any, ...]
    """Leaves of the arguments; `Tensor` in the places of tensors."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Signature":
        return self  # immutable; copying a tree's structure warns


def _take_apart(given: Any) -> tuple[_Signature, tuple[Tensor, ...]]:
    """Return the signature of arguments and keywords, and their tensors."""
    leaves, spec = tree_flatten(given)
    others = tuple(Tensor if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return _Signature(spec, others), tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))


class _Replayed(nn.Module):
    """A module that repeats calls, given by their tensors alone.

    Args:
        module: Teacher or student.
        objective: Names the method that is called and the outputs that count.
        signatures: Everything else about the calls.
    """

    def __init__(
        self, module: nn.Module, objective: Objective, signatures: Sequence[_Signature]
    ) -> None:
        super().__init__()
        self.module = module
        self._objective = objective
        self._signatures = signatures

    def forward(self, which: Tensor, *tensors: Tensor) -> Outputs:
        """Return the compared tensors of a call.

        Args:
            which: Place of the call's signature, int64; for joined calls, which share it, of each.
            tensors: Tensors of the call; not modified, whatever the module does to its inputs.
        """
        signature = self._signatures[int(which.reshape(-1)[0])]
        copies = (tensor.clone() for tensor in tensors)
        leaves = [next(copies) if leaf is Tensor else leaf for leaf in signature.leaves]
        arguments, keywords = tree_unflatten(leaves, signature.spec)
        output = repeatable(self.module, self._objective)(*arguments, **keywords)
        return tuple(compared_outputs(self._objective, output, keywords))


def _as_call(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments and keywords."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch), {}) if isinstance(batch, tuple | list) else ((batch,), {})


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _relative_error(again: Tensor, first: Tensor) -> float:
    """Return the power of the difference over that of the first."""
    if torch.equal(again, first):
        return 0.0
    # Scores of tokens that are ruled out are infinite on both sides.
    difference = torch.where(again == first, 0.0, again.double() - first.double())
    power = torch.where(first.isfinite(), first, 0.0).double().square().sum()
    return float(difference.square().sum() / power) if power > 0 else float("inf")


def _chunks(given: Any) -> Iterator[Any]:
    """Yield arguments and keywords in chunks of frames that cover all of them.

    Tensors `[batch, channels, frames]` of the largest number of frames are cut, all others stay.
    Chunks need no context where the original is called with them, too: at a chunk's ends teacher
    and student get the same silence. The last chunk may begin inside of the one before.
    """
    lengths = [leaf.shape[-1] for leaf in tree_flatten(given)[0] if _has_frames(leaf)]
    length = max(lengths, default=0)
    if length <= _CHUNK_FRAMES:
        yield given
        return
    for start in (*range(0, length - _CHUNK_FRAMES, _CHUNK_FRAMES), length - _CHUNK_FRAMES):

        def cut(leaf: Any, start: int = start) -> Any:
            if not _has_frames(leaf) or leaf.shape[-1] != length:
                return leaf
            return leaf[..., start : start + _CHUNK_FRAMES].clone()

        yield tree_map(cut, given)


def _has_frames(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() == _FRAME_AXES
