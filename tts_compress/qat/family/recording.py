"""Having a system speak, and taking down what its components are called with."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt, Prompted
from tts_compress.models.language_model import LanguageModel
from tts_compress.models.recorded_calls import CallRecorder
from tts_compress.torch.layers.structure import share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from tts_compress.models.base import TorchModel
    from tts_compress.models.distillation import Call, Objective
    from tts_compress.progress import Progress

    Pairs = Sequence[tuple[Objective, CallRecorder]]

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

    A language model's scores are recorded while it reads what it has just said, and what hears
    descriptions while it does so again with the text as one.

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
    session = _Session(root=root, model=spoken, pairs=pairs)
    for done, (text, seed) in enumerate(texts):
        progress.advance("record", done, len(texts))
        session.say(text, seed)
    progress.advance("record", len(texts), len(texts))
    return [recorder.calls for recorder in recorders]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A model that speaks, and who takes down what of it."""

    root: nn.Module
    model: TorchModel
    pairs: Pairs

    def say(self, text: str, seed: int) -> None:
        """Have everything called that a text calls."""
        speaking, scoring, describing = self._groups()
        if not scoring and not describing:
            with _listening(self.root, speaking):
                self.model.synthesize(text, seed=seed)
            return
        model = self._language_model((scoring or describing)[0][0])
        with _listening(self.root, speaking):
            tokens = model.generate_tokens(text, seed=seed)
        with _listening(self.root, scoring):
            model.logits(text, tokens)
        if describing and isinstance(model, Prompted):
            described = model.with_prompt(Prompt(description=text))
            assert isinstance(described, LanguageModel)
            with _listening(self.root, describing):
                described.logits(text, tokens)

    def _groups(self) -> tuple[Pairs, Pairs, Pairs]:
        """Return what is recorded while the model speaks, reads, and is told how to speak."""
        describing = [pair for pair in self.pairs if pair[0].hears == "description"]
        others = [pair for pair in self.pairs if pair[0].hears == "text"]
        scoring = [pair for pair in others if pair[0].loss == "kl"]
        return [pair for pair in others if pair[0].loss != "kl"], scoring, describing

    def _language_model(self, objective: Objective) -> LanguageModel:
        if not isinstance(self.model, LanguageModel):
            raise ModelError(
                f"'{objective.module}' is recorded while tokens are read, but models of family "
                f"{self.model.family!r} tell none"
            )
        return self.model


@contextmanager
def _listening(root: nn.Module, pairs: Sequence[tuple[Objective, CallRecorder]]) -> Iterator[None]:
    """Take down the calls of all these objectives in the block."""
    with ExitStack() as stack:
        for objective, recorder in pairs:
            stack.enter_context(recorder.listening(root, objective))
        yield
