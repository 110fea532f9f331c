"""What an evaluation speaks and how it listens: the TOML files in `eval/suites`."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from tts_compress.config import Card, Config, ConfigFile, data_file, read_config
from tts_compress.errors import RecipeError
from tts_compress.evaluation.normalize import NORMALIZERS, find_normalizer
from tts_compress.evaluation.prompt import SuitePrompt  # noqa: TC001  pydantic reads annotations
from tts_compress.evaluation.recognizers import RECOGNIZERS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Suite", "SuiteText", "read_suite"]

_DIGIT = re.compile(r"\d")


class SuiteText(Config):
    """One text."""

    text: str
    """What the models are given."""

    spoken: str | None = None
    """What a listener should hear, where writing and speech differ: numbers, abbreviations."""


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
    """What both models speak by, if they speak by a prompt; others ignore it."""

    @model_validator(mode="after")
    def _usable(self) -> Suite:
        problems = [*self._unknown_names(), *self._bad_seeds()]
        if self.normalizer in NORMALIZERS:
            problems += [p for u in self.utterances for p in self._bad_text(u)]
        texts = [utterance.text for utterance in self.utterances]
        problems += [f"{text!r} occurs twice" for text in sorted({*texts}) if texts.count(text) > 1]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _unknown_names(self) -> list[str]:
        named = [
            ("recognizer", self.recognizer, sorted(RECOGNIZERS)),
            ("normalizer", self.normalizer, sorted(NORMALIZERS)),
        ]
        return [
            f"no {kind} named {name!r} (known: {', '.join(known)})"
            for kind, name, known in named
            if name not in known
        ]

    def _bad_seeds(self) -> list[str]:
        if len({*self.seeds}) < len(self.seeds):
            return [f"seeds repeat: {list(self.seeds)}"]
        return [f"seed {seed} is negative" for seed in self.seeds if seed < 0]

    def _bad_text(self, utterance: SuiteText) -> list[str]:
        if not self.transcript(utterance):
            return [f"{utterance.text!r} has no words after normalisation"]
        if utterance.spoken is None and _DIGIT.search(utterance.text):
            return [f"{utterance.text!r} has digits and needs `spoken`"]
        return []

    def transcript(self, utterance: SuiteText) -> str:
        """Return what a listener should hear, normalised."""
        return find_normalizer(self.normalizer)(utterance.spoken or utterance.text)

    @cached_property
    def sha256(self) -> str:
        """Of everything that decides a result: texts, seeds, recognizer, normaliser, language.

        Of a prompt's recording it is the content that counts, not the place.
        """
        decisive = self.model_dump(mode="json", exclude={"version", "name", "card", "prompt"})
        if self.prompt is not None:  # a suite without one has the hash it always had
            decisive["prompt"] = self.prompt.content()
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def with_seeds(self, seeds: tuple[int, ...]) -> Suite:
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
