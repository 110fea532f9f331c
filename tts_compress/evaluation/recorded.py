"""What a language model said and how it scored it, on disk: one process writes, another reads."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from tts_compress.errors import ArtifactError
from tts_compress.models.language_model import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["RecordedModel", "read_tokens", "write_scores", "write_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModel:
    """A language model that answers from files."""

    tokens: Mapping[str, Path]
    """What was said, by text."""

    scores: Mapping[str, Path]
    """How it was scored, by text."""

    def generate_tokens(self, text: str, *, seed: int | None) -> Tokens:
        """Return what was said; with which noise is settled."""
        del seed
        return read_tokens(self.tokens[text])

    def logits(self, text: str, tokens: Tokens) -> npt.NDArray[np.float32]:
        """Return the scores of what was said, shape `[S, K, V]`."""
        del tokens
        found: npt.NDArray[np.float32] = np.load(self.scores[text], allow_pickle=False)
        return found


def write_tokens(path: Path, tokens: Tokens) -> None:
    """Write what was said, whole or not at all."""
    with _whole(path) as file:
        np.savez(file, ids=tokens.ids, chosen=tokens.chosen)


def read_tokens(path: Path) -> Tokens:
    """Return what `write_tokens` wrote."""
    with np.load(path, allow_pickle=False) as found:
        return Tokens(ids=found["ids"], chosen=found["chosen"])


def write_scores(path: Path, scores: npt.NDArray[np.float32]) -> None:
    """Write scores, shape `[S, K, V]`, whole or not at all."""
    with _whole(path) as file:
        np.save(file, scores)


@contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """Give a file that gets its name when it is complete."""
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise ArtifactError(f"cannot write '{path}': {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
