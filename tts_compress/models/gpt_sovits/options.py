"""How GPT-SoVITS is run; the defaults are those of upstream's `TTS.run`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from tts_compress.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["LANGUAGES", "GptSovitsOptions", "split_location"]

LANGUAGES = (
    "auto", "auto_yue", "en", "zh", "ja", "yue", "ko", "all_zh", "all_ja", "all_yue", "all_ko",
)  # fmt: skip
"""What upstream calls languages; `auto` finds out, `all_zh` takes English letters for Chinese."""

_SPLITS = tuple(f"cut{number}" for number in range(6))

_LIMITS: dict[str, tuple[float, float]] = {
    "top_k": (1, 1025),
    "top_p": (0.01, 1),
    "temperature": (0.01, 10),
    "repetition_penalty": (0.1, 10),
    "speed_factor": (0.1, 10),
    "sample_steps": (1, 1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsOptions:
    """Settings of inference, named as upstream names them.

    Raises:
        ModelError: One of them is of the wrong kind, or out of its range.
    """

    text_lang: str = "auto"
    """Language of the text, one of `LANGUAGES`."""

    prompt_lang: str = "auto"
    """Language of what is said in the recording."""

    text_split_method: str = "cut1"
    """How long texts are cut: `cut0` not at all, `cut1` after four sentences, …, `cut5`."""

    top_k: int = 15
    """Tokens that are drawn from, 1 to 1025; 1 takes the most probable."""

    top_p: float = 1.0
    """Share of the probability that is drawn from, 0.01 to 1."""

    temperature: float = 1.0
    """Divides the scores before they become probabilities, 0.01 to 10."""

    repetition_penalty: float = 1.35
    """Divides the scores of tokens that were said before, 0.1 to 10; 1 does nothing."""

    speed_factor: float = 1.0
    """Of speech, 0.1 to 10."""

    sample_steps: int = 32
    """Steps of v3's and v4's solver, 1 to 1000; each runs the transformer once."""

    def __post_init__(self) -> None:
        for name in ("text_lang", "prompt_lang"):
            _check_choice(name, getattr(self, name), LANGUAGES)
        _check_choice("text_split_method", self.text_split_method, _SPLITS)
        for name, (low, high) in _LIMITS.items():
            value = getattr(self, name)
            whole = name in {"top_k", "sample_steps"}
            fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not (fits and math.isfinite(value) and low <= value <= high):
                kind = "an integer" if whole else "a number"
                raise ModelError(f"{name} is {value!r}; give {kind} from {low:g} to {high:g}")

    def changed(self, given: Mapping[str, Any], where: str) -> GptSovitsOptions:
        """Return these options with some exchanged.

        Args:
            given: Values by name.
            where: What states them, for errors.

        Raises:
            ModelError: There is no such option, or a value is wrong.
        """
        known = [field.name for field in fields(self)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise ModelError(f"{where} states {unknown[0]!r}; there are {', '.join(known)}")
        return replace(self, **dict(given))

    def stated(self) -> dict[str, Any]:
        """Return the options that are not the defaults, by name."""
        default = asdict(GptSovitsOptions())
        return {name: value for name, value in asdict(self).items() if value != default[name]}


def split_location(location: str) -> tuple[str, dict[str, Any]]:
    """Split `PLACE?text_lang=en&top_k=5` into what it names and the options that it states.

    Raises:
        ModelError: What follows the question mark is not names and values.
    """
    name, separator, query = location.partition("?")
    if not separator or Path(location).exists():
        return location, {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    except ValueError as error:
        raise ModelError(
            f"cannot read the options {query!r}: {error}; write them as 'text_lang=en&top_k=5'"
        ) from error
    return name, {key: _value(text) for key, text in pairs}


def _value(text: str) -> str | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ModelError(f"{name} is {value!r}; accepted: {', '.join(choices)}")
