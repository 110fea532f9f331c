"""How GPT-SoVITS is run; the defaults are those of upstream's `TTS.run`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tts_compress.models.options import Options

__all__ = ["LANGUAGES", "GptSovitsOptions"]

LANGUAGES = (
    "auto", "auto_yue", "en", "zh", "ja", "yue", "ko", "all_zh", "all_ja", "all_yue", "all_ko",
)  # fmt: skip
"""What upstream calls languages; `auto` finds out, `all_zh` takes English letters for Chinese."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSovitsOptions(Options):
    """Settings of inference, named as upstream names them.

    Raises:
        ModelError: One of them is of the wrong kind, or out of its range.
    """

    limits: ClassVar = {
        "top_k": (1, 1025),
        "top_p": (0.01, 1),
        "temperature": (0.01, 10),
        "repetition_penalty": (0.1, 10),
        "speed_factor": (0.1, 10),
        "sample_steps": (1, 1000),
    }
    choices: ClassVar = {
        "text_lang": LANGUAGES,
        "prompt_lang": LANGUAGES,
        "text_split_method": tuple(f"cut{number}" for number in range(6)),
    }

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
