"""The interface of a speech language model beside audio: its tokens and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """The tokens a language model generated, in the order it reads them again."""

    ids: npt.NDArray[np.int64]
    """Inputs of the steps, shape `[S + 1, K]` for K codebooks; the first row starts the speech."""

    chosen: npt.NDArray[np.bool_]
    """Mask of the tokens of `ids[1:]` that are sound and chosen by the model, shape `[S, K]`.

    It is false where a token is forced (codebooks that start later than others, and those that end
    earlier) and where it marks the end.
    """


@runtime_checkable
class LanguageModel(Protocol):
    """A model that speaks by predicting tokens."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Speak a text and return the tokens instead of audio.

        Args:
            text: The text to speak.
            seed: Chooses the noise as for `synthesize`; None takes what is most probable.

        Raises:
            TextError: The text cannot be spoken.
        """

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores from which each of `tokens.ids[1:]` would be drawn.

        Args:
            text: The text that is spoken.
            tokens: The tokens before each step; the model's own choices are not used.

        Returns:
            Shape `[S, K, V]`, float32, before any rule of sampling.

        Raises:
            TextError: The text cannot be spoken.
            ModelError: The tokens are not ones of this model.
        """
