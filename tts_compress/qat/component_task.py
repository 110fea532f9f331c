"""Training one component of a system: recorded calls of its original, each by itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from tts_compress.errors import ModelError
from tts_compress.models.distillation import Call, Objective
from tts_compress.qat.component_dataset import ComponentDataset
from tts_compress.qat.losses import objective_terms, target_variances
from tts_compress.qat.recorded_calls import compared_outputs, repeatable
from tts_compress.qat.task import CallSignature, Example

_MAX_ERROR = 1e-8
"""Largest error of a repeated output: power of its difference from the recorded one, over the
power of that. It is not zero because torch adds up in another order where noise is chosen, or in
inference mode; at 80 dB it is still far below the effect of rounding."""

_HINT = (
    "it draws noise, or keeps something from call to call: name in the objective's `repeated` what "
    "switches that off"
)

_CHUNK_FRAMES = 128
"""One to three seconds: gradients of a whole sentence of samples need too much memory."""

_FRAME_AXES = 3
"""Batch, channels, frames."""


class ComponentTask:
    """A `Task` made of one component and calls that were recorded of its original.

    Calls are examples one by one, because their first axis need not be a batch. Those of components
    that return samples are cut into chunks.

    Args:
        dataset: The recorded calls.
        teacher: The root in FP32 that the objective's names are below; not modified.
        student: The component with fake-quantized layers.
        sample_rate: Sample rate of a component that returns samples, Hz.

    Raises:
        ModelError: The teacher returns something else when a call is repeated.
    """

    def __init__(
        self, dataset: ComponentDataset, teacher: nn.Module, student: nn.Module, *, sample_rate: int
    ) -> None:
        self._dataset = dataset
        self._objective = objective = dataset.objective
        self._sample_rate = sample_rate
        self._signatures: list[CallSignature] = []
        original = teacher.get_submodule(objective.module)
        self._teacher = _ReplayedComponent(original, objective, self._signatures)
        self._train = [example for call in dataset.train for example in self._examples(call)]
        self._held_out = [example for call in dataset.held_out for example in self._examples(call)]
        self._variances = target_variances(self._train) if objective.loss == "mse" else []
        self.student: nn.Module = _ReplayedComponent(student, objective, self._signatures)

    def train_examples(self) -> Sequence[Example]:
        """Return the examples that the student is trained on."""
        return self._train

    def held_out_examples(self) -> Sequence[Example]:
        """Return the examples that the student is judged on."""
        return self._held_out

    def loss(self, outputs: tuple[Tensor, ...], example: Example) -> Mapping[str, Tensor]:
        """Return the terms of the loss: one, or two for samples."""
        return objective_terms(
            self._objective, outputs, example.targets, self._variances, self._sample_rate
        )

    def _examples(self, call: Call) -> list[Example]:
        """Return the examples of a call: itself, or chunks of it where samples are made."""
        given = (call.arguments, call.keywords)
        recorded = compared_outputs(self._objective, call.output, call.keywords)
        example = self._example(given)
        for again, first in zip(example.targets, recorded, strict=True):
            if again.shape != first.shape or _relative_error(again, first) > _MAX_ERROR:
                raise ModelError(
                    f"'{self._dataset.name}' returns something else when a call is repeated; "
                    f"{_HINT}"
                )
        if self._objective.loss != "waveform":
            return [example]
        return [self._example(chunk) for chunk in _chunks(given)]

    @torch.no_grad()
    def _example(self, given: tuple[Any, Any]) -> Example:
        signature = CallSignature.of(given)
        if signature not in self._signatures:
            self._signatures.append(signature)
        which = torch.tensor(self._signatures.index(signature))
        inputs = (which, *signature.tensors(given))
        try:
            targets = self._teacher(*inputs)
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise ModelError(
                f"'{self._dataset.name}' fails when a call is repeated ({error}); {_HINT}"
            ) from error
        return Example(inputs=inputs, targets=tuple(target.clone() for target in targets))


class _ReplayedComponent(nn.Module):
    """A component that repeats recorded calls, given by their tensors alone.

    Args:
        module: Teacher or student.
        objective: Names the method that is called and the outputs that count.
        signatures: Everything else about the calls.
    """

    def __init__(
        self, module: nn.Module, objective: Objective, signatures: Sequence[CallSignature]
    ) -> None:
        super().__init__()
        self.module = module
        self._objective = objective
        self._signatures = signatures

    def forward(self, which: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the compared tensors of a call.

        Args:
            which: Place of the call's signature, int64, a scalar.
            tensors: Tensors of the call; not modified, whatever the component does to its inputs.
        """
        signature = self._signatures[int(which)]
        arguments, keywords = signature.call([tensor.clone() for tensor in tensors])
        output = repeatable(self.module, self._objective)(*arguments, **keywords)
        return tuple(compared_outputs(self._objective, output, keywords))


def _relative_error(again: Tensor, first: Tensor) -> float:
    """Return the power of the difference over that of the first."""
    if torch.equal(again, first):
        return 0.0
    # Scores of tokens that are ruled out are infinite on both sides.
    difference = torch.where(again == first, 0.0, again.double() - first.double())
    power = torch.where(first.isfinite(), first, 0.0).double().square().sum()
    return float(difference.square().sum() / power) if power > 0 else float("inf")


def _chunks(given: tuple[Any, Any]) -> Iterator[tuple[Any, Any]]:
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
    return isinstance(leaf, torch.Tensor) and leaf.dim() == _FRAME_AXES
