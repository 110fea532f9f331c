"""Suites: the texts, seeds, prompt, recognizer and normaliser of an evaluation.

The TOML files are in `eval/suites`.
"""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

from pydantic import Field, model_validator

from tts_compress.artifact import sha256_of
from tts_compress.config import (
    IDS,
    Card,
    Config,
    ConfigFile,
    data_file,
    is_ids,
    parse_config,
    read_config,
)
from tts_compress.errors import RecipeError, raising
from tts_compress.evaluation.normalizers import NORMALIZERS
from tts_compress.evaluation.recognizers import check_recognizer, recognizer_names
from tts_compress.models.base import Prompt

_DIGIT = re.compile(r"\d")
FOR_DIGITS = {"en-v1": "en-v2"}
"""Normalisers that were made for a recognizer that writes words alone, and their successors."""


class SuiteText(Config):
    """One text."""

    text: str
    """The text as models are given it."""

    spoken: str | None = None
    """The words to be understood, where writing and speech differ: numbers, abbreviations."""


class Suite(ConfigFile):
    """Texts, seeds, recognizer and normaliser of one evaluation."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    language: str
    """An espeak-ng voice name, such as `en-us`."""

    recognizer: str
    """The recognizer that is recommended, `NAME` or `NAME:MODEL`; a run may choose another."""

    normalizer: str
    seeds: tuple[int, ...] = Field(min_length=1)
    """Every text is spoken once with each, by both models with the same noise."""

    utterances: tuple[SuiteText, ...] = Field(min_length=1)
    card: Card | None = None
    """Where the texts come from; all shipped suites have one."""

    prompt: Prompt | None = None
    """The prompt of both models, if they speak by a prompt; others ignore it. In a file its
    recording is an absolute path, or one from the suite's folder."""

    @model_validator(mode="after")
    def _is_usable(self) -> "Suite":
        problems = [
            f"no {kind} named {name!r} (known: {', '.join(sorted(names))})"
            for kind, name, names in (
                ("recognizer", self.recognizer.partition(":")[0], recognizer_names()),
                ("normalizer", self.normalizer, NORMALIZERS),
            )
            if name not in names
        ]
        if len({*self.seeds}) < len(self.seeds):
            problems.append(f"seeds repeat: {list(self.seeds)}")
        problems += [f"seed {seed} is negative" for seed in sorted({*self.seeds}) if seed < 0]
        if self.normalizer in NORMALIZERS:
            problems += [p for u in self.utterances for p in self._problems_of(u)]
        texts = [utterance.text for utterance in self.utterances]
        problems += [f"{text!r} occurs twice" for text in sorted({*texts}) if texts.count(text) > 1]
        if self.prompt is not None:
            problems += _problems_of_prompt(self.prompt)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems_of(self, utterance: SuiteText) -> list[str]:
        if not self.transcript(utterance):
            return [f"{utterance.text!r} has no words after normalisation"]
        unheard = self.recognizer == "none" and is_ids(utterance.text)
        if utterance.spoken is None and not unheard and _DIGIT.search(utterance.text):
            return [f"{utterance.text!r} has digits and needs `spoken`"]
        return []

    def transcript(self, utterance: SuiteText) -> str:
        """Return the words to be understood, normalised; ids are words as they are."""
        if utterance.spoken is None and is_ids(utterance.text):
            return " ".join(utterance.text.removeprefix(IDS).split())
        return self.normalize(utterance.spoken or utterance.text)

    def normalize(self, text: str) -> str:
        """Return a text as its normaliser writes it."""
        return NORMALIZERS[self.normalizer](text)

    @property
    def sha256(self) -> str:
        """Hash of everything that decides a result: texts, seeds, recognizer, normaliser, language.

        A prompt's recording counts by its content, not its place, and of a recognizer its name: the
        place of its model says little, and its description in a report all.
        """
        decisive = self.model_dump(mode="json", exclude={"version", "name", "card", "prompt"})
        decisive["recognizer"] = self.recognizer.partition(":")[0]
        if self.prompt is not None:  # a suite without one has the hash it always had
            decisive["prompt"] = prompt_content(self.prompt)
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def with_seeds(self, seeds: tuple[int, ...] | None) -> "Suite":
        """Return the suite with other seeds, checked like a file; None leaves its own.

        Raises:
            RecipeError: The seeds are empty, repeat, or are negative.
        """
        if seeds is None:
            return self
        changed = self.model_copy(update={"seeds": seeds}).model_dump_json()
        return parse_config(changed, Suite, f"{self.name!r} with other seeds")

    def with_recognizer(self, spec: str | None) -> "Suite":
        """Return the suite with another recognizer, `NAME` or `NAME:MODEL`; None leaves its own.

        A recognizer may write numbers in digits, which not every normaliser knows: then the suite
        has that one's successor, under which the suite's own recognizer scores the same.

        Raises:
            EvaluationError: There is no recognizer of that name.
        """
        if spec is None:
            return self
        if check_recognizer(spec) == self.recognizer.partition(":")[0]:
            return self.model_copy(update={"recognizer": spec})
        normalizer = FOR_DIGITS.get(self.normalizer, self.normalizer)
        return self.model_copy(update={"recognizer": spec, "normalizer": normalizer})


def read_suite(name: str | Path) -> Suite:
    """Return a shipped suite, or the one in a user's TOML file.

    Raises:
        RecipeError: There is none of that name, the file is malformed, or the prompt's recording
            cannot be read.
    """
    path = data_file("eval/suites", str(name))
    suite = read_config(path, Suite)
    if suite.prompt is None or suite.prompt.audio is None:
        return suite
    import soundfile

    recording = (path.parent / suite.prompt.audio).absolute()
    problem = f"'{path}': no recording at {str(recording)[:300]!r}"
    advice = "`prompt.audio` is a path from the suite's folder on, or an absolute one"
    # Samples without a header, such as those of `x.raw`, are a TypeError.
    causes = (OSError, TypeError, ValueError, soundfile.LibsndfileError)
    with raising(RecipeError, problem, *causes, advice=advice):
        with recording.open("rb") as file:
            frames = soundfile.info(file).frames
        if not frames:
            raise ValueError("it is empty")
    return suite.model_copy(update={"prompt": replace(suite.prompt, audio=recording)})


def prompt_content(prompt: Prompt) -> dict[str, str | None]:
    """Return everything in a prompt that decides how a model speaks; the recording as its hash.

    Raises:
        RecipeError: The recording cannot be read any more.
    """
    with raising(RecipeError, f"cannot read the recording '{prompt.audio}'"):
        audio = None if prompt.audio is None else sha256_of(prompt.audio)
    return {"audio": audio, "text": prompt.text, "description": prompt.description}


def _problems_of_prompt(prompt: Prompt) -> list[str]:
    empty = [name for name in ("text", "description") if getattr(prompt, name) == ""]
    problems = [f"`prompt.{name}` is empty" for name in empty]
    if prompt.audio is None and prompt.text is not None:
        problems.append("`prompt.text` is what is said in `prompt.audio`, which is missing")
    elif prompt == Prompt():
        problems.append("`prompt` is empty; give `audio` with `text`, `description`, or both")
    return problems
