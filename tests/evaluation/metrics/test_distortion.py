"""Distortion beyond what the reference's own renderings differ by."""

import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from tts_compress.audio import Audio
from tts_compress.evaluation.metric import Audios
from tts_compress.evaluation.metrics import distortion
from tts_compress.evaluation.metrics.distortion import Distortion
from tts_compress.numerics.spectra import Distances, mu_law, observe

_RATE = 16_000


@cache
def _voice(text: int, seed: int) -> Audio:
    """Return voiced syllables of some pitches with breath; the seed moves their timing."""
    random = np.random.default_rng((text, seed))
    pitches = 90 + 60 * np.random.default_rng(text).random(3)
    pieces = [np.zeros(_RATE // 10)]
    for pitch in pitches:
        time = np.arange(int(_RATE * (0.12 + 0.03 * random.random()))) / _RATE
        tones = sum(np.sin(2 * np.pi * pitch * n * time) / n for n in range(1, 40))
        breath = random.normal(0, 0.003, len(time))
        pieces += [0.05 * np.hanning(len(time)) * (tones + breath), np.zeros(_RATE // 20)]
    return Audio(samples=np.concatenate(pieces).astype(np.float32), sample_rate=_RATE)


def _compare(change: Callable[[Audio, int], Audio], texts: int = 4) -> Distortion:
    found = [
        observe(_voice(text, 0), change(_voice(text, 0), text), _voice(text, 1000))
        for text in range(texts)
    ]
    made = distortion.summarize(found, range(texts))
    assert made is not None
    return made


def _with(audio: Audio, samples: npt.NDArray[np.floating]) -> Audio:
    return replace(audio, samples=samples.astype(np.float32))


def _noisy(share: float, audio: Audio, text: int) -> Audio:
    """Multiply by noise, as the reference unit of ITU-T P.810 does."""
    noise = np.random.default_rng(text).normal(0, share, len(audio.samples))
    return _with(audio, audio.samples * (1 + noise))


def _again(seed: int, _: Audio, text: int) -> Audio:
    """Speak the text with another seed."""
    return _voice(text, seed)


def test_the_unit_is_the_codec_of_telephony() -> None:
    """Libsndfile's G.711 is 1, near enough: its segments only approximate the law."""

    def code(audio: Audio, _: int) -> Audio:
        level = 10 ** (-26 / 20) / np.sqrt(np.mean(np.square(audio.samples)))
        file = io.BytesIO()
        soundfile.write(file, audio.samples * level, _RATE, format="WAV", subtype="ULAW")
        file.seek(0)
        return _with(audio, soundfile.read(file)[0])

    assert _compare(code).value == pytest.approx(1.0, abs=0.2)
    assert _compare(lambda audio, _: mu_law(audio)).value == 1.0


def test_damage_is_found_and_grows() -> None:
    """The smallest is below the unit, and its interval excludes zero."""
    found = [_compare(partial(_noisy, share)) for share in (0.01, 0.03, 0.1)]
    certain = _compare(partial(_noisy, 0.01), texts=12)
    assert certain.interval is not None
    assert certain.interval[0] > 0.0
    assert found[0].value < found[1].value < found[2].value
    assert found[0].value < 1.0
    assert (found[2].interval, found[2].trend) == (None, "unknown")  # of four texts


def test_loudness_polarity_and_an_offset_are_no_damage() -> None:
    changed = _compare(lambda audio, _: _with(audio, -0.1 * audio.samples))
    assert changed.value == pytest.approx(0.0, abs=0.001)
    moved = _compare(lambda audio, _: _with(audio, audio.samples + 0.001))
    assert abs(moved.value) < 0.1


def test_a_delay_of_part_of_a_frame_is_no_damage() -> None:
    """Renderings of one voice start where its frames do; another runtime's may not."""
    late = _compare(lambda audio, _: _with(audio, np.concatenate([np.zeros(80), audio.samples])))
    assert abs(late.value) < 0.25


@pytest.mark.slow
def test_another_seed_is_not_damage() -> None:
    """The value is as often below zero as above it, and the interval holds it."""
    values = [_compare(partial(_again, seed), texts=12) for seed in (1, 2, 3, 4)]
    intervals = [one.interval or (1.0, 1.0) for one in values]
    assert sum(low <= 0.0 <= high for low, high in intervals) >= 3
    assert min(one.value for one in values) < 0.0 < max(one.value for one in values)


@pytest.mark.parametrize(("decibels", "value"), [(46, 0.25), (34, 1.7)])
def test_a_voice_without_noise_is_compared_with_itself(
    recordings: list[Audio], decibels: float, value: float
) -> None:
    """Nothing is exactly nothing there, and noise grows evenly through the limit of the gates."""
    found = []
    for text, voice in enumerate(recordings):
        same = observe(voice, _with(voice, voice.samples.copy()), voice)
        assert (same.reference, same.candidate) == (0.0, 0.0)
        found.append(observe(voice, _noisy(10 ** (-decibels / 20), voice, text), voice))
    summary = distortion.summarize(found, range(len(found)))
    assert summary is not None
    assert summary.value == pytest.approx(value, rel=0.3)


def test_seeds_of_a_text_are_resampled_together() -> None:
    """Repeating every utterance as if with another seed adds no evidence."""
    random = np.random.default_rng(0)
    single = [
        Distances(reference=1.0, candidate=1.0 + added, coded=1.5)
        for added in random.normal(0.1, 0.1, 20)
    ]
    once = distortion.summarize(single, range(20))
    thrice = distortion.summarize(single * 3, [*range(20)] * 3)
    assert once is not None
    assert thrice is not None
    assert thrice.interval == pytest.approx(once.interval)
    assert once.value == pytest.approx(np.mean([one.candidate - 1.0 for one in single]) / 0.5)


def _observed(
    candidates: Callable[[int, int], Audio], seeds: int = 2, count: int = 12
) -> Distortion:
    """Return the distortion of a candidate over some texts, observed as an evaluation does."""
    rows, texts = [], []
    for text in range(count):
        before = None
        for seed in range(seeds):
            heard = Audios(
                reference=_voice(text, seed),
                candidate=candidates(text, seed),
                other_seed=_voice(text, seed + 100),
                before=before,
            )
            rows.append(distortion.METRICS[0].observe(heard))  # type: ignore[misc]
            texts.append(text)
            before = replace(heard, before=None)
    summary = distortion.summarize(rows, texts)
    assert summary is not None
    return summary


@pytest.mark.slow
def test_a_voice_that_lost_its_variety_is_told_from_one_that_speaks_alike() -> None:
    """One seed for all of them: no farther from another rendering, and all of the variety lost."""
    same = _observed(_voice)
    assert same.lost_variety == distortion.Share(value=0.0, interval=(0.0, 0.0))
    flat = _observed(lambda text, _: _voice(text, 0))
    assert flat.interval is not None
    assert flat.interval[0] <= 0.0 <= flat.interval[1]
    assert flat.lost_variety is not None
    assert flat.lost_variety.interval is not None
    assert flat.lost_variety.interval[0] > 0.5


def test_a_suite_with_one_seed_shows_no_variety() -> None:
    assert _observed(_voice, seeds=1, count=2).lost_variety is None


def test_broken_audio_has_a_value_and_silence_none() -> None:
    voice, other = _voice(0, 0), _voice(0, 1)
    broken = _with(voice, np.where(np.arange(len(voice.samples)) % 50, voice.samples, np.nan))
    empty = _with(voice, np.zeros(0))
    for candidate in (broken, empty, _with(voice, 0 * voice.samples)):
        found = observe(voice, candidate, other)
        assert found.candidate > found.reference
    silent = observe(empty, empty, empty)
    assert distortion.summarize([silent, silent], [0, 1]) is None


@pytest.mark.parametrize(
    ("interval", "trend", "words"),
    [
        ((-0.02, 0.03), "same", "none that this suite can show"),
        ((0.18, 0.23), "same", "less than that coding"),
        ((0.9, 1.1), "unknown", "cannot show"),
        ((-0.5, 1.5), "unknown", "cannot show"),
        ((1.01, 1.2), "worse", "more than that coding"),
    ],
)
def test_the_interval_is_judged_against_the_unit(
    interval: tuple[float, float], trend: str, words: str
) -> None:
    found = Distortion(value=0.2, interval=interval, added_db=0.05, other_seeds_db=1.0)
    assert found.trend == trend
    assert words in found.judgement
    assert found.words.startswith("20 % (95 % interval ")


def test_long_audio_is_compared_more_coarsely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows with the square of the frames; damage is found all the same."""
    audios = _voice(0, 0), _noisy(0.03, _voice(0, 0), 0), _voice(0, 1)
    fine = observe(*audios)
    monkeypatch.setattr("tts_compress.numerics.spectra._LONG_S", 0.1)
    coarse = observe(*audios)
    assert coarse.candidate > coarse.reference
    assert coarse != fine


def test_other_rates_are_refused() -> None:
    with pytest.raises(ValueError, match=r"16000, 22050"):
        observe(_voice(0, 0), replace(_voice(0, 0), sample_rate=22_050), _voice(0, 1))
