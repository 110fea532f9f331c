"""What both models of an evaluation speak by, besides the text."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import Field, model_validator

from tts_compress.artifact import sha256_of
from tts_compress.config import Config
from tts_compress.errors import RecipeError
from tts_compress.models.base import Prompt

__all__ = ["SuitePrompt"]


class SuitePrompt(Config):
    """The table `[prompt]` of a suite; each system uses what it knows."""

    audio: str | None = Field(default=None, min_length=1)
    """A recording of the voice to speak with: an absolute path, or one from the suite's file on."""

    text: str | None = Field(default=None, min_length=1)
    """What is said in the recording."""

    description: str | None = Field(default=None, min_length=1)
    """How to speak, in words."""

    @model_validator(mode="after")
    def _says_something(self) -> SuitePrompt:
        if self.audio is None and self.description is None:
            raise ValueError(
                "`text` is what is said in `audio`, which is missing"
                if self.text is not None
                else "it is empty; give `audio` with `text`, `description`, or both"
            )
        return self

    def found_beside(self, suite: Path) -> SuitePrompt:
        """Return the prompt with its recording as an absolute path that was read once.

        Args:
            suite: The suite's file.

        Raises:
            RecipeError: The recording is missing or is no audio.
        """
        if self.audio is None:
            return self
        path = (suite.parent / self.audio).absolute()
        try:
            found = path.is_file()
        except (OSError, ValueError):  # a name too long to be one, or with a null character
            found = False
        if not found:
            raise RecipeError(
                f"no recording at {str(path)[:300]!r}; `prompt.audio` is a path from the suite's "
                "folder on, or an absolute one"
            )
        _check_recording(path)
        return self.model_copy(update={"audio": str(path)})

    def content(self) -> dict[str, str | None]:
        """Return what of it decides how a model speaks; of the recording, its hash.

        Raises:
            RecipeError: The recording cannot be read any more.
        """
        try:
            audio = None if self.audio is None else sha256_of(Path(self.audio))
        except OSError as error:
            raise RecipeError(f"cannot read the recording '{self.audio}': {error}") from error
        return {"audio": audio, "text": self.text, "description": self.description}

    @property
    def fingerprint(self) -> str:
        """Hash of `content`."""
        return hashlib.sha256(json.dumps(self.content(), sort_keys=True).encode()).hexdigest()

    def to_prompt(self) -> Prompt:
        """Return it as models take it."""
        audio = None if self.audio is None else Path(self.audio)
        return Prompt(audio=audio, text=self.text, description=self.description)


def _check_recording(path: Path) -> None:
    import soundfile

    try:
        frames = soundfile.info(path).frames
    # A name such as `x.raw` stands for samples without a header, and is a TypeError.
    except (OSError, TypeError, soundfile.LibsndfileError) as error:
        raise RecipeError(f"`prompt.audio` is no recording: '{path}': {error}") from error
    if not frames:
        raise RecipeError(f"`prompt.audio` is an empty recording: '{path}'")
