"""Numbers as people read them."""

import math
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_compress.evaluation import formatting

NOTHING = (None, math.nan, math.inf, -math.inf)


@pytest.mark.parametrize("value", NOTHING)
def test_what_is_no_number_is_not_available(value: float | None) -> None:
    for written in (
        formatting.percent,
        formatting.points,
        formatting.bytes_of,
        formatting.milliseconds,
        formatting.real_time_factor,
        formatting.decibels,
        formatting.number,
        formatting.seconds,
        formatting.nats,
    ):
        assert written(value) == formatting.MISSING
    assert formatting.times(value, "faster", "slower") == formatting.MISSING


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (formatting.points(0.004), "+0.4 points"),
        (formatting.points(-0.009), "\u22120.9 points"),
        (formatting.points(-0.0001), "0.0 points"),  # `-0.0` would read as an improvement
        (formatting.decibels(-0.01), "0.0 dB"),
        (formatting.interval((-0.009, 0.018)), "\u22120.9 \u2026 +1.8"),
        (formatting.interval((-0.009, math.nan)), formatting.MISSING),
        (formatting.milliseconds(0.004), "0.00 ms"),
        (formatting.milliseconds(9.99), "9.99 ms"),
        (formatting.milliseconds(66.9), "66.9 ms"),
        (formatting.milliseconds(208.4), "208 ms"),
        (formatting.milliseconds(1500), "1.50 s"),
        (formatting.bytes_of(0), "0 bytes"),
        (formatting.bytes_of(2_500), "2.5 kB"),
        (formatting.bytes_of(63_201_294), "63.2 MB"),
        (formatting.bytes_of(4e9), "4.0 GB"),
    ],
)
def test_a_number_has_its_sign_digits_and_unit(written: str, text: str) -> None:
    assert written == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (1.8, "1.8\u00d7 faster"),
        (1 / 1.2, "1.2\u00d7 slower"),
        (1.04, "1.04\u00d7 faster"),
        (1.0951, "1.1\u00d7 faster"),
        (250.0, "250\u00d7 faster"),
        (1.0, "no change"),
        (1.004, "no change"),
        (0, "infinitely slower"),
        (-1.0, formatting.MISSING),
    ],
)
def test_a_ratio_says_which_way_is_up(ratio: float, text: str) -> None:
    assert formatting.times(ratio, "faster", "slower") == text


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (1.6, (1.5149, 1.7), "1.51 \u2026 1.70"),
        (1.06, (0.94, 1.2), "0.94 \u2026 1.20"),
        # "2.0 times slower" is 1.6 to 2.5 times slower.
        (0.5, (0.4, 0.625), "1.60 \u2026 2.50"),
        (12.0, (9.0, 15.96), "9.0 \u2026 16.0"),
        (200.0, (150.4, 260.0), "150 \u2026 260"),
        (1.6, None, formatting.MISSING),
        (None, (1.0, 2.0), formatting.MISSING),
        (math.nan, (1.0, 2.0), formatting.MISSING),
        (1.6, (math.nan, 2.0), formatting.MISSING),
        (1.6, (1.0, math.inf), formatting.MISSING),
        (0.5, (0.0, 2.0), formatting.MISSING),
    ],
)
def test_the_interval_of_a_ratio_is_that_of_the_number_in_words(
    ratio: float | None, interval: tuple[float, float] | None, text: str
) -> None:
    assert formatting.times_interval(ratio, interval) == text


@given(st.text(), st.integers(1, 50))
def test_one_line_is_one_harmless_line(text: str, limit: int) -> None:
    line = formatting.one_line(text, limit)
    assert len(line) <= limit
    assert not any(unicodedata.category(character) in {"Cc", "Cs"} for character in line)
    assert "\u202e" not in line
    assert formatting.plain(line) == line


def test_a_text_is_kept_but_for_what_steers_its_surroundings() -> None:
    """Zero-width joiners stay: Persian and Hindi need them."""
    assert formatting.plain("a\tb\n c\x1b[31m") == "a b c[31m"
    assert formatting.plain("exe.\u202egnp") == "exe.gnp"
    assert formatting.plain("\u0645\u06cc\u200c\u062e") == "\u0645\u06cc\u200c\u062e"
