"""Suites: the texts, seeds, prompt, recognizer and normaliser of an evaluation.

The TOML files are in `eval/suites`. Normalisers are part of the metric, therefore pinned by name
and version: a published one never changes, and a better one gets a new version beside it, so that
two reports that name the same normaliser compare.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from pydantic import Field, model_validator

from tts_compress.artifact import sha256_of
from tts_compress.config import Card, Config, ConfigFile, data_file, read_config
from tts_compress.errors import RecipeError
from tts_compress.evaluation.recognizers import recognizer_names
from tts_compress.models.base import Prompt

_DIGIT = re.compile(r"\d")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u2018": "'", "\u02bc": "'"})
_NOT_ENGLISH = re.compile(r"[^a-z']+")


def english_v1(text: str) -> str:
    """Return the words of an English text: lower case, letters and apostrophes, single spaces.

    Everything else is a word boundary: "Well-known, isn't it?" becomes "well known isn't it".
    Apostrophes that stand alone or at the edge of a word are quotation marks and disappear.
    Numbers are not spelled out; a suite gives the spoken form of a text that has digits.
    """
    words = _NOT_ENGLISH.sub(" ", text.translate(_APOSTROPHES).lower()).split()
    return " ".join(bare for word in words if (bare := word.strip("'")))


NORMALIZERS: Mapping[str, Callable[[str], str]] = {"en-v1": english_v1}
"""Text normalisers by the name suites use."""


class SuiteText(Config):
    """One text."""

    text: str
    """The text as models are given it."""

    spoken: str | None = None
    """The words to be understood, where writing and speech differ: numbers, abbreviations."""


class SuitePrompt(Config):
    """The table `[prompt]` of a suite; each system uses the parts it knows."""

    audio: str | None = Field(default=None, min_length=1)
    """A recording of the voice to speak with: an absolute path, or one from the suite's folder."""

    text: str | None = Field(default=None, min_length=1)
    """The words spoken in the recording."""

    description: str | None = Field(default=None, min_length=1)
    """The manner of speaking, in words."""

    @model_validator(mode="after")
    def _is_usable(self) -> "SuitePrompt":
        if self.audio is None and self.description is None:
            raise ValueError(
                "`text` is what is said in `audio`, which is missing"
                if self.text is not None
                else "it is empty; give `audio` with `text`, `description`, or both"
            )
        return self

    def found_beside(self, suite: Path) -> "SuitePrompt":
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
        """Return everything that decides how a model speaks; the recording as its hash.

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


class Suite(ConfigFile):
    """Texts, seeds, recognizer and normaliser of one evaluation."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    language: str
    """An espeak-ng voice name, such as `en-us`."""

    recognizer: str
    normalizer: str
    seeds: tuple[int, ...] = Field(min_length=1)
    """Every text is spoken once with each, by both models with the same noise."""

    utterances: tuple[SuiteText, ...] = Field(min_length=1)
    card: Card
    prompt: SuitePrompt | None = None
    """The prompt of both models, if they speak by a prompt; others ignore it."""

    @model_validator(mode="after")
    def _is_usable(self) -> "Suite":
        problems = [
            f"no {kind} named {name!r} (known: {', '.join(sorted(known))})"
            for kind, name, known in (
                ("recognizer", self.recognizer, recognizer_names()),
                ("normalizer", self.normalizer, NORMALIZERS),
            )
            if name not in known
        ]
        if len({*self.seeds}) < len(self.seeds):
            problems.append(f"seeds repeat: {list(self.seeds)}")
        problems += [f"seed {seed} is negative" for seed in sorted({*self.seeds}) if seed < 0]
        if self.normalizer in NORMALIZERS:
            problems += [p for u in self.utterances for p in self._problems_of(u)]
        texts = [utterance.text for utterance in self.utterances]
        problems += [f"{text!r} occurs twice" for text in sorted({*texts}) if texts.count(text) > 1]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems_of(self, utterance: SuiteText) -> list[str]:
        if not self.transcript(utterance):
            return [f"{utterance.text!r} has no words after normalisation"]
        if utterance.spoken is None and _DIGIT.search(utterance.text):
            return [f"{utterance.text!r} has digits and needs `spoken`"]
        return []

    def transcript(self, utterance: SuiteText) -> str:
        """Return the words to be understood, normalised."""
        return self.normalize(utterance.spoken or utterance.text)

    def normalize(self, text: str) -> str:
        """Return a text as its normaliser writes it."""
        return NORMALIZERS[self.normalizer](text)

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that decides a result: texts, seeds, recognizer, normaliser, language.

        A prompt's recording counts by its content, not its place.
        """
        decisive = self.model_dump(mode="json", exclude={"version", "name", "card", "prompt"})
        if self.prompt is not None:  # a suite without one has the hash it always had
            decisive["prompt"] = self.prompt.content()
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def with_seeds(self, seeds: tuple[int, ...]) -> "Suite":
        """Return the suite with other seeds, checked like a file.

        Raises:
            ValueError: The seeds are empty, repeat, or are negative.
        """
        return Suite.model_validate({**self.model_dump(), "seeds": seeds})


def read_suite(name: str | Path) -> Suite:
    """Return a shipped suite, or the one in a user's TOML file.

    Raises:
        RecipeError: There is none of that name, the file is malformed, or the prompt's recording
            cannot be read.
    """
    path = data_file("eval/suites", str(name))
    suite = read_config(path, Suite)
    if suite.prompt is None:
        return suite
    try:
        prompt = suite.prompt.found_beside(path)
    except RecipeError as error:
        raise RecipeError(f"'{path}': {error}") from error
    return suite.model_copy(update={"prompt": prompt})
