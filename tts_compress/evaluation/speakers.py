"""Speakers of an evaluation, where voices have several: the same of both models for each text."""

from dataclasses import replace

from tts_compress.errors import EvaluationError
from tts_compress.evaluation.subject import Subject
from tts_compress.models.base import TTSModel
from tts_compress.models.speakers import choose_speaker, speakers_in_turn


def give_speakers(models: tuple[Subject, Subject], wanted: str | None) -> tuple[Subject, Subject]:
    """Return reference and candidate with the speakers that texts go round.

    Args:
        models: Reference and candidate.
        wanted: Name or id of the only one; None for the one that was chosen for a given model,
            or for all.

    Raises:
        EvaluationError: The models do not have the same speakers, or speak as different ones.
        ModelError: There is no such speaker.
    """
    before, after = models
    reference, candidate = before.model, after.model
    if dict(reference.speakers) != dict(candidate.speakers):
        raise EvaluationError(
            f"'{reference.spec}' {_described(reference)} and '{candidate.spec}' "
            f"{_described(candidate)}; give a candidate that was made from the reference"
        )
    if wanted is not None:
        reference = candidate = choose_speaker(reference, wanted)
    turns = {speakers_in_turn(model) for model in (reference, candidate)}
    chosen = {names for names in turns if len(names) == 1}
    if len(chosen) > 1:
        shown = " and ".join(sorted(name for (name,) in chosen))
        raise EvaluationError(
            f"reference and candidate speak as different speakers, {shown}; give both the same, "
            "or name one in the options"
        )
    names = (chosen or turns).pop()
    return replace(before, speakers=names), replace(after, speakers=names)


def _described(model: TTSModel) -> str:
    names = [f"{name:.40}" for name in list(model.speakers)[:4]]
    more = ", …" if len(model.speakers) > len(names) else ""
    return f"has the speakers {', '.join(names)}{more}" if names else "has one speaker"
