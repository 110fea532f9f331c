"""Texts of others made fit to be shown: the only place that decides what reaches a terminal."""

import html
import re
from collections.abc import Iterable, Sequence

_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

# Controls, lone halves of surrogate pairs, which cannot be encoded, what YAML and XML cannot hold,
# and what reorders the text around it, so that a file name or a number reads as another one.
_STEERING = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)

# As in `mysql://user:PASSWORD@host/name?password=PASSWORD`; one may hold an `@` itself.
_PASSWORD = re.compile(r"(://[^:/?#\s]*:)\S+@|([?&](?:password|passwd|pwd)=)[^&\s'\"]+")


def harmless(text: str) -> str:
    """Return a text without characters that steer a terminal or the reading order.

    Ends of lines stay.
    """
    return _STEERING.sub("", text)


def json_escaped(document: str) -> str:
    r"""Return a JSON document with what `harmless` leaves out written as `\u001b`.

    JSON escapes only some of these characters itself.
    """
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def masked(text: str) -> str:
    """Return a text with `***` in the place of passwords in its URLs."""
    return _PASSWORD.sub(lambda match: f"{match[1]}***@" if match[1] else f"{match[2]}***", text)


def plain(text: str) -> str:
    """Return a text on one line, without characters that steer a terminal or the reading order."""
    return " ".join(harmless(" ".join(text.split())).split())


def one_line(text: str, limit: int) -> str:
    """Return `plain(text)`, cut with an ellipsis at a number of characters."""
    cleaned = plain(text[: 8 * limit])
    if len(cleaned) <= limit and len(text) <= 8 * limit:
        return cleaned
    return cleaned[: limit - 1].rstrip() + _ELLIPSIS


def shortened(text: str, limit: int) -> str:
    """Return `plain(text)`, its middle left out where it has more than a number of characters.

    An error ends with what to do about it.
    """
    if len(text) > 8 * limit:
        text = text[: 4 * limit] + text[-4 * limit :]
    cleaned = plain(text)
    if len(cleaned) <= limit:
        return cleaned
    end = limit // 3
    return f"{cleaned[: limit - end - 3].rstrip()} {_ELLIPSIS} {cleaned[-end:].lstrip()}"


def html_table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Return an HTML table of texts, which are escaped."""
    head = "".join(f"<th>{_escaped(text)}</th>" for text in header)
    body = ("".join(f"<td>{_escaped(text)}</td>" for text in row) for row in rows)
    return (
        f"<table>{caption and f'<caption>{_escaped(caption)}</caption>'}"
        f"{head and f'<thead><tr>{head}</tr></thead>'}"
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in body)}</tbody></table>"
    )


def _escaped(text: str) -> str:
    return html.escape(plain(text))
