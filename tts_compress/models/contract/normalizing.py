"""Texts as a system's own program writes them before it looks up their characters."""

import re
import unicodedata

from tts_compress.models.contract.schema import Tokens

_SPACE = re.compile(r"\s+")
_SPACE_BEFORE_MARK = re.compile(r" ([,.!?;:'])")


def normalize(text: str, tokens: Tokens) -> str:
    """Return a text in the form that a contract states, without what is put around it."""
    if tokens.normalize is not None:
        text = unicodedata.normalize(tokens.normalize, text)
    for old, new in tokens.replace.items():
        text = text.replace(old, new)
    if tokens.tidy:
        text = _SPACE.sub(" ", _SPACE_BEFORE_MARK.sub(r"\1", text)).strip()
    if tokens.endings and not text.endswith(tuple(tokens.endings)):
        text += tokens.endings[0]
    return text.lower() if tokens.lowercase else text
