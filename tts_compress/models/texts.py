"""What no system can speak, whatever it is given next."""

from __future__ import annotations

from tts_compress.errors import TextError

__all__ = ["check_encodable", "check_text"]


def check_encodable(text: str) -> None:
    """Refuse what phonemizers and tokenizers written in C cannot be given.

    Raises:
        TextError: The text holds null characters or halves of surrogate pairs.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise TextError(
            f"{text[:40]!r} holds null characters or halves of surrogate pairs; give plain text"
        )


def check_text(text: str) -> None:
    """Refuse a text that has nothing to speak, or cannot be encoded.

    Raises:
        TextError: It is so.
    """
    check_encodable(text)
    if not any(character.isalnum() for character in text):
        raise TextError(f"nothing to speak in {text[:40]!r}; give a text with words")
