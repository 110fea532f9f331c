"""Loudness and pitch that sway are found beside a rendering with any timing and noise."""

from functools import partial

import numpy as np
import pytest

from tests.evaluation.metrics import planted
from tests.evaluation.metrics.planted import changed, make_speech, rough, swelling, vibrating
from tts_compress.audio import Audio
from tts_compress.numerics.damage import KINDS, Renderings, roughness, sway


def _size(kind: str, reference: Audio, candidate: Audio) -> float:
    return KINDS[kind].size(Renderings(reference, candidate))[0]


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        ("tremolo", swelling),
        ("tremolo", partial(swelling, hz=12.0, decibels=6.0)),
        ("tremolo", rough),
        ("vibrato", vibrating),
    ],
)
def test_what_sways_is_found_in_other_noise(kind: str, plant: planted.Plant) -> None:
    clean, other = make_speech(), make_speech(7)
    allowed = max(_size(kind, clean, other), _size(kind, other, clean)) + KINDS[kind].margin
    later = changed(other, other.samples[170:])
    assert _size(kind, clean, later) <= allowed
    assert _size(kind, clean, plant(later)) > allowed


@pytest.mark.parametrize("kind", ["tremolo", "vibrato"])
def test_nothing_sways_that_is_softer_or_late(kind: str) -> None:
    clean = make_speech()
    for samples in (0.9 * clean.samples, -clean.samples, np.roll(clean.samples, 8)):
        assert _size(kind, clean, changed(clean, samples)) <= KINDS[kind].margin / 2


def test_a_rough_voice_has_no_beat_of_its_own_reference() -> None:
    clean = make_speech().samples.astype(np.float64)
    beaten = rough(make_speech()).samples.astype(np.float64)
    size, at_s = roughness(clean, beaten, planted.RATE)
    assert size == pytest.approx(7.0 / 8.0**0.5, rel=0.3)
    assert 0.0 <= at_s < len(clean) / planted.RATE
    assert roughness(beaten, beaten, planted.RATE)[0] == 0.0
    assert roughness(clean[:100], beaten, planted.RATE) == (0.0, 0.0)


def test_the_largest_sway_has_a_time() -> None:
    assert sway(np.array([1.0, 2.0, 9.0]), np.array([0.1, 0.2, 0.3])) == (1.0, 0.3)
    assert sway(np.zeros(0), np.zeros(0)) == (0.0, 0.0)


@pytest.mark.parametrize("late_s", [0.008, 0.02])
def test_a_recording_that_begins_late_does_not_hiss(late_s: float) -> None:
    """Where it pauses, the other speaks; both are of the same length."""
    clean = make_speech()
    late = changed(clean, np.roll(clean.samples, round(late_s * planted.RATE)))
    assert _size("hiss", clean, late) <= KINDS["hiss"].margin


def test_zeros_around_a_sound_are_not_frozen() -> None:
    """A recording that begins 8 ms late, or ends so much later, is silent there."""
    clean = make_speech()
    sound = changed(clean, clean.samples[planted.RATE // 40 : -planted.RATE // 10])
    for around in ((128, 0), (0, 128)):
        assert _size("frozen", sound, changed(sound, np.pad(sound.samples, around))) == 0.0
