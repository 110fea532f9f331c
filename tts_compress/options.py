"""Options of commands, declared with the fields of the dataclasses that hold their values."""

from dataclasses import field
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")

USAGE = "usage"
"""Key of a field's `Usage` in its metadata."""


class Usage(NamedTuple):
    """Line of an option in a command's help."""

    form: str
    """Its flag and the name of its value, such as `--output DIR`."""

    meaning: str
    """Parentheses at the end state a default that is no value, such as `(all processors)`."""


def option(default: _T, form: str, meaning: str) -> _T:
    """Return a dataclass field that commands have as an option.

    Args:
        default: Value of the field where the option is not given.
        form: Its flag and the name of its value, as in `Usage`.
        meaning: Its help, as in `Usage`; a default that is a value is added to it.
    """
    return field(default=default, metadata={USAGE: Usage(form, meaning)})
