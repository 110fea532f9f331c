"""Selection of a system's components to train, and of the recorded calls to train them on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from tts_compress.errors import ModelError, QuantizationError, RecipeError
from tts_compress.models.distillation import Call, Distillable, Objective
from tts_compress.progress import Progress, report_message
from tts_compress.qat.fake_quantize import FakeQuantize
from tts_compress.qat.recorded_calls import record_objectives

_HELD_OUT = 8
"""Number of texts of which one is held out; at least one is."""

_MOST_TRAINED, _MOST_HELD_OUT = 128, 32
"""Calls of one component that are kept: the estimator of a diffusion is called for every step of
every text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComponentDataset:
    """The calls that one component is trained and judged on."""

    objective: Objective
    train: Sequence[Call]
    held_out: Sequence[Call]

    @property
    def name(self) -> str:
        """The component's module, and the method if that has a name."""
        return _name_of(self.objective)


def record_datasets(
    model: Distillable,
    student: nn.Module,
    texts: Sequence[tuple[str, int]],
    *,
    progress: Progress,
) -> list[ComponentDataset]:
    """Return the dataset of each rounded component, in the order data flows.

    Texts are held out, not calls: none that is judged on belongs to a text that is trained on.

    Args:
        model: The teacher.
        student: Its root with fake-quantized layers.
        texts: Texts that the teacher speaks, each with the seed of its noise.
        progress: Receives reports of every text, and of components that are not trained.

    Raises:
        QuantizationError: No component can be trained.
        RecipeError: There is one text only.
        ModelError: The model cannot speak, or lacks a module that it names.
    """
    if len(texts) < 2:
        raise RecipeError(f"{len(texts)} texts to train on; give 2 or more: one is held out")
    rounded = [o for o in model.objectives() if _is_rounded(student, o, progress)]
    judged = set(range(_HELD_OUT - 1, len(texts), _HELD_OUT)) or {len(texts) - 1}
    spoken = [text for i, text in enumerate(texts) if i not in judged]
    others = [text for i, text in enumerate(texts) if i in judged]
    datasets: list[ComponentDataset] = []
    if rounded:
        train = record_objectives(model, rounded, spoken, most=_MOST_TRAINED, progress=progress)
        held_out = record_objectives(model, rounded, others, most=_MOST_HELD_OUT, progress=progress)
        for objective, calls, judged_calls in zip(rounded, train, held_out, strict=True):
            datasets += _dataset(objective, calls, judged_calls, progress)
    if not datasets:
        raise QuantizationError(
            "the recipe rounds no component that can be trained; compress the model without "
            "training"
        )
    return datasets


def _is_rounded(root: nn.Module, objective: Objective, progress: Progress) -> bool:
    try:
        parts = root.get_submodule(objective.module).modules()
    except AttributeError as error:
        raise ModelError(
            f"the model has no module '{objective.module}' to train: {error}"
        ) from error
    if any(isinstance(part, FakeQuantize) for part in parts):
        return True
    report_message(progress, f"{_name_of(objective)} is not rounded: it is not trained")
    return False


def _dataset(
    objective: Objective, calls: Sequence[Call], held_out: Sequence[Call], progress: Progress
) -> list[ComponentDataset]:
    """Return one dataset, or none where nothing is left to train on, or to judge by."""
    known = {_digest(call) for call in held_out}
    new = [call for call in calls if _digest(call) not in known]
    if new and held_out:
        return [ComponentDataset(objective=objective, train=new, held_out=held_out)]
    reason = "gets the same inputs for every text" if calls and held_out else "is not called"
    report_message(progress, f"{_name_of(objective)} {reason}: it is rounded without training")
    return []


def _name_of(objective: Objective) -> str:
    is_plain = objective.method == "forward"
    return objective.module if is_plain else f"{objective.module}.{objective.method}"


def _digest(call: Call) -> bytes:
    """Return a hash that calls with the same tensors have in common."""
    digest = hashlib.sha256()
    for leaf in tree_flatten((call.arguments, call.keywords))[0]:
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{tuple(leaf.shape)}{leaf.dtype}".encode())
            digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
