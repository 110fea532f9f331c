"""Loudness and pitch that sway are found beside a rendering with any timing and noise."""

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest

from tests.evaluation.metrics import planted
from tests.evaluation.metrics.planted import changed, make_speech, rough, swelling, vibrating
from tts_compress.audio import Audio
from tts_compress.numerics import faults
from tts_compress.numerics.damage import KINDS, Renderings, compare, roughness, sway
from tts_compress.numerics.spectra import on_time


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
    several = np.repeat([1.0, 2.0, 9.0], 40)
    assert sway(several, np.arange(120) / 100) == (1.0, 0.8)
    # Chance moves the median of a few values more.
    assert sway(several[::12], np.arange(10) / 10) == (0.5, 0.7)
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


def _late(audio: Audio, samples: int) -> Audio:
    """Begin later by zeros, or earlier without what is there; the length changes by as much."""
    begun = np.pad(audio.samples, (max(0, samples), 0))[max(0, -samples) :]
    return changed(audio, begun)


@pytest.mark.parametrize("polarity", [1, -1])
@pytest.mark.parametrize("samples", [-100, 0, 5, 130, 700])
def test_a_late_or_inverted_recording_is_the_same_sound(samples: int, polarity: int) -> None:
    silence = 1e-4 * np.random.default_rng(0).standard_normal(800)
    clean = changed(make_speech(), np.concatenate((silence, make_speech().samples, silence)))
    moved = _late(changed(clean, polarity * clean.samples), samples)
    for candidate in (moved, changed(moved, moved.samples[: len(clean.samples)])):
        sizes = compare(clean, candidate)
        assert not {name for name, kind in KINDS.items() if sizes[name][0] > 0.2 * kind.margin}


def test_damage_in_a_late_recording_is_found_at_its_time() -> None:
    clean = make_speech()
    clicking = planted.faint_click(clean)
    size, at_s = compare(clean, clicking)["click"]
    late_size, late_at_s = compare(clean, _late(clicking, 320))["click"]
    assert size > KINDS["click"].margin
    assert late_size == pytest.approx(size, rel=0.01)
    assert late_at_s == pytest.approx(at_s + 320 / planted.RATE, abs=1e-3)


def test_sound_behind_the_end_of_a_late_recording_is_kept() -> None:
    clean = make_speech()
    longer = changed(clean, np.append(clean.samples, clean.samples[: planted.RATE // 2]))
    candidate, late_s = on_time(clean, _late(longer, 320))
    assert late_s == 320 / planted.RATE
    np.testing.assert_array_equal(candidate.samples, longer.samples)


def test_neither_another_seed_nor_a_longer_sound_is_late() -> None:
    """Nine tenths of the longer one correlate where all is moved by 12 ms.

    Nor is one beside silence, or one of less than a tenth of a second, in which little correlates.
    """
    clean = make_speech()
    longer = changed(clean, np.insert(clean.samples, planted.RATE // 5, np.zeros(186)))
    silent, short = (changed(clean, samples) for samples in (0.0 * longer.samples, np.ones(400)))
    pairs = ((clean, make_speech(7)), (clean, longer), (silent, clean), (short, _late(short, 50)))
    for reference, other in pairs:
        candidate, late_s = on_time(reference, other)
        assert candidate is other
        assert late_s == 0.0


def test_an_inverted_recording_is_turned_where_a_part_of_it_is_damaged_too() -> None:
    clean = make_speech()
    damaged = np.where(np.arange(len(clean.samples)) // 3000 == 5, 0.0, clean.samples)
    turned, late_s = on_time(clean, changed(clean, -damaged))
    assert late_s == 0.0
    np.testing.assert_array_equal(turned.samples, damaged)


@pytest.mark.parametrize(("early_s", "damaged"), [(0.005, False), (0.02, True)])
def test_a_sound_may_begin_a_little_early(early_s: float, damaged: bool) -> None:
    """Breath that grows before a sound is 5 ms early here; an echo is earlier."""
    count = planted.RATE
    noise, times_s = np.random.default_rng(0).choice([-1.0, 1.0], count), np.arange(count) / count
    silence, sound = np.full(count, 1e-4), np.where(times_s >= 0.5, 0.1, 0.0)

    def breathing(early_s: float) -> npt.NDArray[np.float64]:
        level = np.minimum(10.0 ** (-1.4 + 70.0 * (times_s - 0.5 + early_s)), 0.01)
        return np.asarray(noise * np.maximum(np.maximum(silence, level * (times_s < 0.5)), sound))

    rises = [r for r, _ in faults.added_onsets(breathing(0.0), breathing(early_s), planted.RATE)]
    assert (max(rises) > KINDS["onset"].margin / 2) is damaged
