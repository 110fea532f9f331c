"""Texts as a system's own program writes them before it looks up their characters."""

import re
import unicodedata

from tts_compress.errors import TextError
from tts_compress.models.contract.schema import Tokens

MOST_CHARACTERS = 1_000_000
"""Longest text behind the contract's replacements."""

_SPACE = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r" ([,.!?;:'])")


def normalize(text: str, tokens: Tokens) -> str:
    """Return a text in the form that a contract states, without what is put around it.

    Raises:
        TextError: Replacements make it too long.
    """
    if tokens.normalize is not None:
        text = unicodedata.normalize(tokens.normalize, text)
    for old, new in tokens.replace.items():
        # Counted before it is made: each of some thirty rules can double a text.
        if len(text) + text.count(old) * len(new) > MOST_CHARACTERS:
            raise TextError(
                f"the contract's replacement of {old!r:.40} makes a text of more than "
                f"{MOST_CHARACTERS:,} characters; give a shorter text, or change [tokens.replace]"
            )
        text = text.replace(old, new)
    if tokens.tidy:
        text = _SPACE.sub(" ", _SPACE_BEFORE_MARK.sub(r"\1", text)).strip()
    if tokens.endings and not text.endswith(tuple(tokens.endings)):
        text += tokens.endings[0]
    return text.lower() if tokens.lowercase else text
