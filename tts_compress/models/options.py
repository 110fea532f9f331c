"""Inference options of a system: settings with ranges, which may follow a model's location."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import parse_qsl

from tts_compress.errors import ModelError, raising


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings of inference, which a family adds as fields; the defaults are the system's own."""

    limits: ClassVar[Mapping[str, tuple[float, float]]]
    """The least and the greatest value of each number; one whose bounds are `int` is whole."""

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Accepted values of each setting that is a word."""

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and field.default is None:  # the model's own settings state it
                continue
            if name in self.choices:
                if value not in self.choices[name]:
                    raise ModelError(
                        f"{name} is {value!r}; accepted: {', '.join(self.choices[name])}"
                    )
                continue
            low, high = self.limits[name]
            is_whole = isinstance(low, int) and isinstance(high, int)
            kind, words = (int, "an integer") if is_whole else (float, "a number")
            fits = isinstance(value, int | kind) and not isinstance(value, bool)
            if not (fits and low <= value <= high):
                raise ModelError(f"{name} is {value!r:.40}; give {words} from {low:g} to {high:g}")

    def changed(self, stated: Mapping[str, Any], where: str) -> Self:
        """Return these options with some exchanged."""
        names = sorted(field.name for field in fields(self))
        if unknown := sorted(stated.keys() - set(names)):
            raise ModelError(f"{where} states {unknown[0]!r}; there are {', '.join(names)}")
        return replace(self, **stated)

    def stated(self) -> dict[str, Any]:
        """Return the options that are not the defaults, by name."""
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}


def split_location(location: str, example: str) -> tuple[str, dict[str, Any]]:
    """Split `DIR?steps=16&language=en` into what it names and the options that it states.

    Args:
        location: If the whole of it exists as a path, it is that, without options.
        example: Example of the family's options, for errors.

    Returns:
        The part before the question mark; and the options by name: integers, floats and words.
    """
    name, separator, query = location.partition("?")
    if not separator or Path(location).exists():
        return location, {}
    problem, advice = f"cannot read the options {query!r}", f"write them as '{example}'"
    with raising(ModelError, problem, ValueError, advice=advice):
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
        if not pairs:
            raise ValueError("there are none")
    return name, {key: number_or_text(text) for key, text in pairs}


def number_or_text(text: str) -> str | float:
    """Return the number that a text states, an integer if it is one, or else the text itself."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
