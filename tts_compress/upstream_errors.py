"""What errors of other packages say, for messages of ours; they may have many lines, or none."""

from __future__ import annotations

__all__ = ["first_line", "reason"]

_LONGEST = 300


def reason(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return " ".join(_text(error).split())[:_LONGEST]


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, where advice follows that is not for users."""
    return _text(error).splitlines()[0]


def _text(error: BaseException) -> str:
    return str(error).strip() or repr(error)
