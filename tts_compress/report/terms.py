"""What the words of rows mean that only some reports have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tts_compress.report.evaluation import Evaluation

__all__ = ["Term", "terms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word and its meaning."""

    name: str
    meaning: str


_MEANINGS = {
    "plain-attention": Term(
        name="Plain attention",
        meaning="the system's own runtime without torch's fused attention kernel, which it has by "
        "default. Where plain attention is slower, the difference is what the fused kernel gives.",
    ),
    "compile": Term(
        name="Compiled",
        meaning="the system's own runtime with the blocks of its largest network translated by "
        "torch.compile, which it does not do by default; timed after the translation.",
    ),
}

_TEACHER_FORCED = Term(
    name="Token agreement, KL divergence, logit distance",
    meaning="both language models read the tokens that the reference said and are asked at each "
    "step what comes next: how often they find the same token most probable, how far the "
    "compressed model's probabilities are from the reference's, and how far its scores are.",
)


def terms(evaluation: Evaluation) -> tuple[Term, ...]:
    """Return the terms that this report needs beyond those of every report."""
    names = [variant.name for variant in evaluation.runtimes]
    found = [_MEANINGS[name] for name in names if name in _MEANINGS]
    return (*found, *([_TEACHER_FORCED] if evaluation.teacher_forced is not None else []))
