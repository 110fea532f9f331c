"""Options of commands, declared with the fields of the dataclasses that hold their values."""

from dataclasses import field
from typing import TypeVar

_T = TypeVar("_T")

USAGE = "usage"
"""Key of a field's form and meaning in its metadata."""


def option(default: _T, form: str, meaning: str) -> _T:
    """Return a dataclass field that commands have as an option.

    Args:
        default: Value of the field where the option is not given.
        form: Its flag and the name of its value, such as `--output DIR`.
        meaning: Its help; a default that is a value is added to it. Parentheses at the end state
            one that is no value, such as `(all processors)`.
    """
    return field(default=default, metadata={USAGE: (form, meaning)})
