"""Numbers and texts as people read them; `None`, NaN and infinity become `n/a`.

Every function takes the raw value: nothing here is fit for comparing.
"""

import math
from typing import TypeGuard

# Templates take these from here, too.
from tts_compress.plain import one_line as one_line  # noqa: PLC0414
from tts_compress.plain import plain as plain  # noqa: PLC0414

MISSING = "n/a"
_MINUS = "\N{MINUS SIGN}"


def is_finite(value: float | None) -> TypeGuard[float]:
    """Return True if a measurement is a number."""
    return value is not None and math.isfinite(value)


def percent(share: float | None) -> str:
    """Return a share as a percentage with one digit: 0.123 is `12.3 %`."""
    return f"{_unsigned(100 * share, 1)} %" if is_finite(share) else MISSING


def points(share: float | None) -> str:
    """Return a difference of two shares in percentage points: 0.004 is `+0.4 points`."""
    return f"{signed(100 * share, 1)} points" if is_finite(share) else MISSING


def count(number: int, thing: str) -> str:
    """Return `1 text` or `2 texts`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a number with up to six significant digits."""
    return f"{value:.6g}" if is_finite(value) else MISSING


def interval(low_high: tuple[float, float] | None, scale: float = 100.0, digits: int = 1) -> str:
    """Return an interval of a difference without its unit; of shares, in percentage points.

    Args:
        low_high: Its ends; None where there are too few texts for one.
        scale: Factor to the unit.
        digits: Decimals.
    """
    if low_high is None or not (is_finite(low_high[0]) and is_finite(low_high[1])):
        return MISSING
    return " \N{HORIZONTAL ELLIPSIS} ".join(signed(scale * end, digits) for end in low_high)


def signed(value: float, digits: int) -> str:
    """Return a number with its sign; one that rounds to zero has none."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else _MINUS}{text}"


def bytes_of(count: float | None) -> str:
    """Return a number of bytes in kB, MB or GB (powers of ten)."""
    if not is_finite(count):
        return MISSING
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds with about three digits; in seconds from one second on."""
    if not is_finite(value):
        return MISSING
    if abs(value) >= 1000:
        return f"{value / 1000:.2f} s"
    return f"{value:.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f} ms"


def seconds(value: float | None) -> str:
    """Return a length in seconds with two decimals."""
    return f"{value:.2f} s" if is_finite(value) else MISSING


def real_time_factor(value: float | None) -> str:
    """Return synthesis seconds per second of audio with three decimals."""
    return f"{value:.3f}" if is_finite(value) else MISSING


def decibels(value: float | None, digits: int = 1) -> str:
    """Return a level, a minus sign where it is negative."""
    return f"{_unsigned(value, digits)} dB" if is_finite(value) else MISSING


def nats(value: float | None) -> str:
    """Return an amount of information in nats with two significant digits."""
    return f"{value:.2g} nats" if is_finite(value) else MISSING


def times(ratio: float | None, above: str, below: str) -> str:
    """Return a ratio reference/candidate with its direction in words.

    Args:
        ratio: 2 means that the candidate needs half of what the reference needs.
        above: The word for a ratio above 1, such as `faster`.
        below: The word for a ratio below 1, such as `slower`; it gets the inverse.
    """
    if not is_finite(ratio) or ratio < 0:
        return MISSING
    if ratio == 0:
        return f"infinitely {below}"
    factor, word = (ratio, above) if ratio >= 1 else (1 / ratio, below)
    if factor < 1.005:  # would read "1.00 times faster"
        return "no change"
    digits = 2 if factor < 1.095 else 1 if factor < 99.5 else 0
    return f"{factor:.{digits}f}\N{MULTIPLICATION SIGN} {word}"


def times_interval(ratio: float | None, low_high: tuple[float, float] | None) -> str:
    """Return the interval of the number that `times` writes, without words.

    Args:
        ratio: Reference over candidate; below 1 `times` writes its inverse, and so does this.
        low_high: The ratio's interval. An end below 1 in what is written points the other way:
            `1.2 times slower` from 0.97 to 1.4 may also be faster.
    """
    if low_high is None or not is_finite(ratio):
        return MISSING
    low, high = low_high
    if not (is_finite(low) and is_finite(high)) or low <= 0:
        return MISSING
    if ratio < 1:
        low, high = 1 / high, 1 / low
    digits = 2 if high < 9.995 else 1 if high < 99.5 else 0
    return f"{low:.{digits}f} \N{HORIZONTAL ELLIPSIS} {high:.{digits}f}"


def _unsigned(value: float, digits: int) -> str:
    return signed(value, digits).removeprefix("+")
