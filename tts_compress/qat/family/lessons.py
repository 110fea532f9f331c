"""Which components learn, from what they were called with while texts were spoken."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._pytree import tree_flatten

from tts_compress.errors import ModelError, QuantizationError, RecipeError
from tts_compress.progress import say
from tts_compress.qat.fake_quantize import FakeQuantize
from tts_compress.qat.family.asking import name_of
from tts_compress.qat.family.recording import record_objectives

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from tts_compress.models.distillation import Call, Distillable, Objective
    from tts_compress.progress import Progress

__all__ = ["Lesson", "find_lessons"]

_HELD_OUT = 8
"""Of so many texts one is held out; at least one is."""

_MOST_LEARNED, _MOST_JUDGED = 128, 32
"""Calls of one component that are kept: the estimator of a diffusion is called for every step of
every text."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """What one component learns from."""

    objective: Objective
    train: Sequence[Call]
    held_out: Sequence[Call]

    @property
    def name(self) -> str:
        """What its component is called."""
        return name_of(self.objective)


def find_lessons(
    model: Distillable,
    student: nn.Module,
    texts: Sequence[tuple[str, int]],
    *,
    progress: Progress,
) -> list[Lesson]:
    """Return what each rounded component learns from, in the order data flows.

    Texts are held out, not calls: what is judged on was said in no text that is learned from.

    Args:
        model: The teacher.
        student: Its root with fake-quantized layers.
        texts: What the teacher says, each with the seed of its noise.
        progress: Is told of every text, and of components that do not learn.

    Raises:
        QuantizationError: No component learns.
        RecipeError: There is one text only.
        ModelError: The model cannot speak, or lacks a module that it names.
    """
    if len(texts) < 2:
        raise RecipeError(f"{len(texts)} texts to learn from; give 2 or more: one is held out")
    rounded = [o for o in model.objectives() if _is_rounded(student, o, progress)]
    judged = set(range(_HELD_OUT - 1, len(texts), _HELD_OUT)) or {len(texts) - 1}
    spoken = [text for i, text in enumerate(texts) if i not in judged]
    held_out = [text for i, text in enumerate(texts) if i in judged]
    lessons: list[Lesson] = []
    if rounded:
        learned = record_objectives(model, rounded, spoken, most=_MOST_LEARNED, progress=progress)
        others = record_objectives(model, rounded, held_out, most=_MOST_JUDGED, progress=progress)
        lessons = _lessons(rounded, learned, others, progress)
    if not lessons:
        raise QuantizationError(
            "the recipe rounds no component that learns; there is nothing to train: compress the "
            "model without"
        )
    return lessons


def _is_rounded(root: nn.Module, objective: Objective, progress: Progress) -> bool:
    try:
        parts = root.get_submodule(objective.module).modules()
    except AttributeError as error:
        raise ModelError(
            f"the model has no module '{objective.module}' to learn: {error}"
        ) from error
    if any(isinstance(part, FakeQuantize) for part in parts):
        return True
    say(progress, f"{name_of(objective)} is not rounded: it does not learn")
    return False


def _lessons(
    objectives: Sequence[Objective],
    learned: Sequence[Sequence[Call]],
    others: Sequence[Sequence[Call]],
    progress: Progress,
) -> list[Lesson]:
    """Return the lessons of those that have something to learn and something else to judge by."""
    lessons = []
    for objective, calls, held_out in zip(objectives, learned, others, strict=True):
        known = {_digest(call) for call in held_out}
        new = [call for call in calls if _digest(call) not in known]
        if new and held_out:
            lessons.append(Lesson(objective=objective, train=new, held_out=held_out))
            continue
        reason = "hears the same in every text" if calls and held_out else "is not called"
        say(progress, f"{name_of(objective)} {reason}: it is rounded without learning")
    return lessons


def _digest(call: Call) -> bytes:
    """Return what calls with the same tensors have in common."""
    digest = hashlib.sha256()
    for leaf in tree_flatten((call.arguments, call.keywords))[0]:
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{tuple(leaf.shape)}{leaf.dtype}".encode())
            digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()
