"""Having a system speak, and taking down what its components are called with."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.layers.structure import share
from tts_compress.models.language_model import LanguageModel
from tts_compress.models.recorded_calls import CallRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.models.distillation import Call, Objective
    from tts_compress.progress import Progress

__all__ = ["record_objectives"]


def record_objectives(
    model: TorchModel,
    objectives: Sequence[Objective],
    texts: Sequence[tuple[str, int]],
    *,
    most: int,
    progress: Progress,
) -> list[list[Call]]:
    """Return the calls of each objective while a model speaks; none of what it never called.

    A language model's scores are recorded while it reads what it has just said.

    Args:
        model: The teacher; not modified.
        objectives: Whose calls are taken down, all in one go.
        texts: What it says, each with the seed of its noise.
        most: Of more calls of one objective a sample is kept.
        progress: Is told of every text.

    Raises:
        ModelError: There is no such module, an objective is about scores of a model that tells
            none, or the model cannot speak.
        TextError: A text cannot be spoken.
    """
    recorders = [CallRecorder(most=most) for _ in objectives]
    pairs = list(zip(objectives, recorders, strict=True))
    root = share(model.root())
    spoken = model.with_root(root, None)
    reading = [(o, r) for o, r in pairs if o.loss == "kl"]
    if reading and not isinstance(spoken, LanguageModel):
        raise ModelError(
            f"'{reading[0][0].module}' is compared by its scores of tokens, but models of family "
            f"{model.family!r} tell none"
        )
    for done, (text, seed) in enumerate(texts):
        progress.advance("record", done, len(texts))
        with _listening(root, [(o, r) for o, r in pairs if o.loss != "kl"]):
            if not isinstance(spoken, LanguageModel) or not reading:
                spoken.synthesize(text, seed=seed)
                continue
            tokens = spoken.generate_tokens(text, seed=seed)
        with _listening(root, reading):
            spoken.logits(text, tokens)
    progress.advance("record", len(texts), len(texts))
    return [recorder.calls for recorder in recorders]


@contextmanager
def _listening(root: nn.Module, pairs: Sequence[tuple[Objective, CallRecorder]]) -> Iterator[None]:
    """Take down the calls of all these objectives in the block."""
    with ExitStack() as stack:
        for objective, recorder in pairs:
            stack.enter_context(recorder.listening(root, objective))
        yield
