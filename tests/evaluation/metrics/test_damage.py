"""Planted damage of a stated size is found and fails the gates; speech without it does not."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import lfilter

from tts_compress import evaluate_audio, read_gates
from tts_compress.audio import Audio, read_wav
from tts_compress.evaluation import Evaluation, gate
from tts_compress.evaluation.metrics.damage import KINDS, MARGINS, Damage, Renderings, compare
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load
from tts_compress.models.base import GraphModel
from tts_compress.numerics.faults import added_clicks

Plant: TypeAlias = Callable[[Audio], Audio]

_RATE = 16_000


def _speech(seed: int = 0) -> Audio:
    """Return syllables of a gliding voice and of noise, with short pauses; speech enough."""
    random = np.random.default_rng(seed)
    pieces = []
    for place in range(12):
        time_s = np.arange(int(0.18 * _RATE)) / _RATE
        pitch = np.cumsum(110.0 + 30.0 * random.random() + 60.0 * time_s) / _RATE
        voiced = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 25))
        noise = np.diff(random.standard_normal(len(time_s) + 1))
        rise = np.sin(np.pi * time_s / time_s[-1])
        pieces += [0.1 * rise * (noise if place % 4 == 3 else voiced)]
        pieces += [np.zeros(int(0.03 * _RATE))]
    samples = np.concatenate(pieces) + 2e-4 * random.standard_normal(sum(map(len, pieces)))
    return Audio(samples=samples.astype(np.float32), sample_rate=_RATE)


def _changed(audio: Audio, samples: npt.ArrayLike) -> Audio:
    return Audio(samples=np.asarray(samples, np.float32), sample_rate=audio.sample_rate)


def _loud(audio: Audio) -> int:
    """Return the middle of the loudest quarter second."""
    size = audio.sample_rate // 4
    return int(np.convolve(np.square(audio.samples), np.ones(size), "same").argmax())


def _pinned(audio: Audio, ms: float = 20.0, level: float = 1.0) -> Audio:
    samples, start = audio.samples.copy(), _loud(audio)
    samples[start : start + round(ms * audio.sample_rate / 1000)] = level
    return _changed(audio, samples)


def _stuck_low(audio: Audio) -> Audio:
    return _pinned(audio, level=-0.3)


def _near_a_rail(audio: Audio) -> Audio:
    """Saturate softly: almost constant, nowhere equal."""
    return _changed(audio, 0.4 * np.tanh(200.0 * audio.samples))


def _offset(audio: Audio) -> Audio:
    """Move a third of a second by 3 % of full scale."""
    samples, start = audio.samples.copy(), _loud(audio)
    samples[start : start + audio.sample_rate // 3] += 0.03
    return _changed(audio, samples)


def _zeros(audio: Audio) -> Audio:
    """Silence 8 ms within a loud sound."""
    samples, start = audio.samples.copy(), _loud(audio)
    samples[start : start + 8 * audio.sample_rate // 1000] = 0.0
    return _changed(audio, samples)


def _clicks(audio: Audio) -> Audio:
    """Add one sample of half of full scale at ten places."""
    samples = audio.samples.copy()
    samples[(np.linspace(0.1, 0.9, 10) * len(samples)).astype(int)] += 0.5
    return _changed(audio, samples)


def _whistle(audio: Audio) -> Audio:
    """Add 0.9 s of a tone 30 dB below full scale."""
    samples, count = audio.samples.copy(), round(0.9 * audio.sample_rate)
    start = (len(samples) - count) // 2
    tone = np.sin(2 * np.pi * 3300 * np.arange(count) / audio.sample_rate)
    samples[start : start + count] += (10 ** (-30 / 20) * tone).astype(np.float32)
    return _changed(audio, samples)


def _pause(audio: Audio) -> Audio:
    """Insert 0.9 s of faint noise in the middle of the speech."""
    noise = 1e-4 * np.random.default_rng(1).standard_normal(round(0.9 * audio.sample_rate))
    return _changed(audio, np.insert(audio.samples, _loud(audio), noise.astype(np.float32)))


def _hiss(audio: Audio) -> Audio:
    """Add noise 40 dB below full scale from 1 to 2 kHz."""
    spectrum = np.fft.rfft(np.random.default_rng(4).standard_normal(len(audio.samples)))
    frequencies = np.fft.rfftfreq(len(audio.samples), 1 / audio.sample_rate)
    spectrum[(frequencies < 1000) | (frequencies >= 2000)] = 0.0
    noise = np.fft.irfft(spectrum, len(audio.samples))
    return _changed(audio, audio.samples + 0.01 * noise / np.sqrt(np.mean(np.square(noise))))


def _quiet(audio: Audio) -> int:
    """Return the middle of the quietest 20 ms within the speech."""
    size, middle = audio.sample_rate // 50, len(audio.samples) // 8
    energy = np.convolve(np.square(audio.samples), np.ones(size), "same")
    return middle + int(energy[middle:-middle].argmin())


def _faint_click(audio: Audio) -> Audio:
    """Add one sample of 4 % of full scale in a quiet passage."""
    samples = audio.samples.copy()
    samples[_quiet(audio)] += 0.04
    return _changed(audio, samples)


def _part(audio: Audio, seconds: float) -> slice:
    """Return the loudest part of a length within the middle half."""
    count, quarter = round(seconds * audio.sample_rate), len(audio.samples) // 4
    middle = np.square(audio.samples[quarter : 3 * quarter])
    start = quarter + int(np.convolve(middle, np.ones(count), "valid").argmax())
    return slice(start, start + count)


def _stutter(audio: Audio, seconds: float = 0.2) -> Audio:
    part = _part(audio, seconds)
    return _changed(audio, np.insert(audio.samples, part.stop, audio.samples[part]))


def _drop(audio: Audio, seconds: float = 0.2) -> Audio:
    return _changed(audio, np.delete(audio.samples, _part(audio, seconds)))


def _silenced(audio: Audio) -> Audio:
    """Put silence in the place of 0.2 s of sound."""
    samples = audio.samples.copy()
    samples[_part(audio, 0.2)] = 1e-4
    return _changed(audio, samples)


def _last_sound(audio: Audio, share: float = 0.1) -> int:
    level = np.abs(audio.samples)
    return int(np.flatnonzero(level > share * level.max())[-1])


def _cut(audio: Audio, seconds: float = 0.2) -> Audio:
    end = _last_sound(audio) - round(seconds * audio.sample_rate)
    return _changed(audio, audio.samples[:end])


def _run_on(audio: Audio, seconds: float = 0.5) -> Audio:
    """Go on after the end, backwards."""
    end = _last_sound(audio, 0.01)
    again = np.resize(audio.samples[end::-1], round(seconds * audio.sample_rate))
    return _changed(audio, np.insert(audio.samples, end, again))


def _run_on_for_long(audio: Audio) -> Audio:
    return _run_on(audio, 12.0)


def _slower(audio: Audio) -> Audio:
    count = len(audio.samples)
    places = np.linspace(0, count - 1, round(1.2 * count))
    return _changed(audio, np.interp(places, np.arange(count), audio.samples))


def _louder(audio: Audio) -> Audio:
    """Make half a second 6 dB louder."""
    samples = audio.samples.copy()
    samples[_part(audio, 0.5)] *= 2.0
    return _changed(audio, samples)


def _higher(audio: Audio) -> Audio:
    """Play it 3 % faster and so half a semitone higher."""
    times = np.arange(0.0, len(audio.samples) - 1, 1.03)
    return _changed(audio, np.interp(times, np.arange(len(audio.samples)), audio.samples))


def _burst(audio: Audio) -> Audio:
    """Add 40 ms of noise, 10 dB softer than the speech around it."""
    part = _part(audio, 0.04)
    samples = audio.samples.copy()
    noise = np.random.default_rng(0).standard_normal(part.stop - part.start)
    samples[part] += 0.3 * noise * np.sqrt(np.mean(np.square(samples[part])))
    return _changed(audio, samples)


def _muffled(audio: Audio) -> Audio:
    """Take what is above 800 Hz from 0.2 s of sound."""
    part = _part(audio, 0.2)
    spectrum = np.fft.rfft(audio.samples[part])
    spectrum[round(800 * 0.2) :] *= 0.03
    samples = audio.samples.copy()
    samples[part] = np.fft.irfft(spectrum, part.stop - part.start)
    return _changed(audio, samples)


def _choppy(audio: Audio) -> Audio:
    """Fade 25 ms out and in, as where a packet is lost and somebody conceals it."""
    part = _part(audio, 0.025)
    samples = audio.samples.copy()
    samples[part] *= 1.0 - np.hanning(part.stop - part.start)
    return _changed(audio, samples)


def _pre_echo(audio: Audio) -> Audio:
    """Add everything 30 ms early, 20 dB softer."""
    early = round(0.03 * audio.sample_rate)
    samples = audio.samples.copy()
    samples[:-early] += 0.1 * audio.samples[early:]
    return _changed(audio, samples)


def _whispered(audio: Audio) -> Audio:
    """Give a quarter second the phases of noise, as loud as it is."""
    part = _part(audio, 0.25)
    noise = np.random.default_rng(6).standard_normal(part.stop - part.start)
    spectra = [np.fft.rfft(wave) for wave in (audio.samples[part], noise)]
    spectrum = np.abs(spectra[0]) * np.exp(1j * np.angle(spectra[1]))
    samples, fade = audio.samples.copy(), np.hanning(part.stop - part.start)
    whisper = np.fft.irfft(spectrum, part.stop - part.start)
    samples[part] = (1.0 - fade) * samples[part] + fade * whisper
    return _changed(audio, samples)


FAULTS: list[tuple[str, Plant]] = [
    ("pinned", _pinned),
    ("pinned", _stuck_low),
    ("pinned", _near_a_rail),
    ("offset", _offset),
    ("frozen", _zeros),
    ("click", _clicks),
    ("whistle", _whistle),
    ("pause", _pause),
    ("hiss", _hiss),
    ("click", _faint_click),
]
"""A sound has these whatever it is compared with."""

PLANTED: list[tuple[str, Plant]] = [
    *FAULTS,
    ("repetition", _stutter),
    ("dropped", _drop),
    ("dropped", _silenced),
    ("truncation", _cut),
    ("runaway", _run_on),
    ("runaway", _run_on_for_long),
    ("length", _slower),
    ("level", _louder),
    ("pitch", _higher),
    ("burst", _burst),
    ("hole", _muffled),
    ("hole", _choppy),
    ("onset", _pre_echo),
    ("spoilt", _whispered),
]
_IDS = [plant.__name__.strip("_") for _, plant in PLANTED]


def _found(reference: Audio, candidate: Audio) -> set[str]:
    excess = compare(reference, candidate)
    return {name for name, kind in KINDS.items() if excess[name][0] > kind.margin}


def _has(kind: str, reference: Audio, candidate: Audio) -> bool:
    """Return True if `compare` finds damage of a kind; other kinds are not looked for."""
    return KINDS[kind].size(Renderings(reference, candidate))[0] > KINDS[kind].margin


def test_each_kind_has_a_detector() -> None:
    assert list(Damage.model_fields) == [*MARGINS, "rate"]


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=_IDS)
def test_planted_damage_is_found_in_synthetic_speech(kind: str, plant: Plant) -> None:
    if kind == "onset":
        pytest.skip("pauses are as short as the echo is early")
    for seed in range(3):
        clean = _speech(seed)
        assert _has(kind, clean, plant(clean)), seed


@pytest.mark.parametrize(("kind", "plant"), FAULTS, ids=_IDS[: len(FAULTS)])
def test_damage_that_the_reference_has_is_not_the_candidates(kind: str, plant: Plant) -> None:
    clean = _speech()
    broken = plant(clean)
    assert not _found(broken, broken)
    moved = _changed(broken, np.concatenate((1e-4 * _speech(3).samples, broken.samples)))
    assert not _has(kind, broken, moved)
    assert not _has(kind, broken, clean)


def test_the_place_of_the_damage_is_told() -> None:
    clean = _speech()
    where = _loud(clean) / _RATE
    for kind, plant in (("pinned", _pinned), ("frozen", _zeros), ("pause", _pause)):
        assert compare(clean, plant(clean))[kind][1] == pytest.approx(where, abs=0.06)


def test_one_more_pause_is_found_beside_one_of_the_reference() -> None:
    """Damage is compared by rank: the reference's pause excuses a single one."""
    once = _pause(_speech())
    assert _found(once, _pause(once)) == {"pause", "length"}


def test_what_nobody_hears_is_left_alone() -> None:
    """Sixteen bits, a hiss 50 dB below the voice, 2 dB softer, half a millisecond late."""
    clean = _speech()
    hiss = 3e-4 * np.random.default_rng(2).standard_normal(len(clean.samples))
    for other in (
        np.round(clean.samples * 32767) / 32767,
        clean.samples + hiss,
        clean.samples * 0.8,
        np.roll(clean.samples, _RATE // 2000),
    ):
        assert not _found(clean, _changed(clean, other))


def test_other_syllables_are_no_fault() -> None:
    assert not [kind for kind, _ in FAULTS if _has(kind, _speech(), _speech(7))]


@pytest.mark.parametrize("seconds", [0.1, 0.6])
def test_a_repeated_or_dropped_part_is_found_from_a_tenth_of_a_second_on(
    clips: list[Audio], seconds: float
) -> None:
    for clip in clips[::4]:
        rounded = _changed(clip, np.round(clip.samples * 512) / 512)
        assert _has("repetition", clip, _stutter(rounded, seconds))
        shorter = _drop(rounded, seconds)
        assert _has("dropped", clip, shorter) or _has("truncation", clip, shorter)
        assert _has("truncation", clip, _cut(rounded, seconds))


@pytest.mark.parametrize("length", [0, 1, 2, 3, 50, 1000])
def test_any_length_and_any_sample_is_judged(length: int) -> None:
    clean = _speech()
    for value in (0.0, np.nan, np.inf):
        short = _changed(clean, np.full(length, value))
        assert compare(clean, short).keys() == compare(short, clean).keys() == KINDS.keys()


@pytest.fixture(scope="module")
def clips(assets: Path) -> list[Audio]:
    """Return 32 recordings of a reader, up to four seconds each."""
    found = [read_wav(path) for path in sorted((assets / "speech-ljspeech32" / "wavs").iterdir())]
    return [_changed(audio, audio.samples[: 4 * audio.sample_rate]) for audio in found]


def test_no_recording_is_damaged(clips: list[Audio]) -> None:
    """Even against a reference that has nothing; pauses are the text's."""
    silence = _changed(clips[0], np.zeros(10))
    assert len(clips) == 32
    faults = {kind for kind, _ in FAULTS} - {"pause"}
    for clip in clips:
        assert not [kind for kind in faults if _has(kind, silence, clip)]
    for clip in clips[::8]:
        assert not _found(clip, clip)


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=_IDS)
def test_planted_damage_is_found_in_recordings(clips: list[Audio], kind: str, plant: Plant) -> None:
    assert all(_has(kind, clip, plant(clip)) for clip in clips[::16])


def _hissing(audio: Audio, level_db: float, seed: int) -> Audio:
    """Add noise in an octave or in all to the longest stretch 40 dB below the loud parts."""
    samples, step = audio.samples.astype(np.float64), audio.sample_rate // 100
    energy = np.square(samples[: len(samples) // step * step]).reshape(-1, step).mean(axis=1)
    silent = energy < 1e-4 * energy[energy > 0.1 * energy.mean()].mean()
    edges = step * np.flatnonzero(np.diff(silent, prepend=False, append=False))
    begin, end = max(edges.reshape(-1, 2), key=np.ptp)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(len(samples)))
    frequencies = np.fft.rfftfreq(len(samples), 1 / audio.sample_rate)
    lowest = (500, 1000, 2000, 4000, 500)[seed % 5]
    highest = audio.sample_rate if seed % 5 == 4 else 2 * lowest
    spectrum[(frequencies < lowest) | (frequencies >= highest)] = 0.0
    noise = np.fft.irfft(spectrum, len(samples))
    samples[begin:end] += 10 ** (level_db / 20) * (noise / noise.std())[begin:end]
    return _changed(audio, samples)


def _spoken(assets: Path, voice: str) -> list[Audio]:
    if voice == "recordings":
        paths = sorted((assets / "speech-ljspeech32" / "wavs").iterdir())
        silent = [path for path in paths if path.stem != "LJ001-0013"]
        return [read_wav(path) for path in silent[:15]]
    spec = "demo" if voice == "demo" else str(assets / "trained-voices" / voice / f"{voice}.onnx")
    model = load(spec)
    assert isinstance(model, GraphModel)
    texts = read_suite("en-quick").utterances[:15]
    return [model.synthesize(entry.text, seed=0) for entry in texts]


@pytest.mark.parametrize(
    "voice",
    [
        *("recordings", "demo"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("hfc", "kristin")),
    ],
)
def test_hiss_in_a_single_silence_is_found(assets: Path, voice: str) -> None:
    if voice in {"hfc", "kristin"} and not (assets / "trained-voices").is_dir():
        pytest.skip("no trained voices among the assets")
    for place, audio in enumerate(_spoken(assets, voice)):  # each band at each level
        level_db = (-50, -55, -60)[place % 3]
        assert _has("hiss", audio, _hissing(audio, level_db, place)), (place, level_db)
        other = _changed(audio, (0.89 * audio.samples, np.roll(audio.samples, 5))[place % 2])
        assert not _has("hiss", audio, other), place
        assert place > 1 or not _found(audio, other), place


def test_the_demo_voice_is_not_damaged(demo: Path) -> None:
    voice = load(demo)
    silence = Audio(samples=np.zeros(10, np.float32), sample_rate=voice.sample_rate)
    for seed, text in enumerate(("A barefoot boy chased the chickens.", "Open the door, please.")):
        spoken = voice.synthesize(text, seed=seed)
        assert not [kind for kind, _ in FAULTS if _has(kind, silence, spoken)]


_SPOKEN = (0, 2, 3, 5, 8, 11, 14, 16, 17, 20, 22, 23)
_TEXTS = {f"u{n:02d}": read_suite("en-quick").utterances[n] for n in _SPOKEN}


@pytest.fixture(scope="module")
def spoken() -> dict[str, Audio]:
    voice = load("demo")
    return {name: voice.synthesize(entry.text, seed=0) for name, entry in _TEXTS.items()}


def _judged(
    spoken: Mapping[str, Audio], changes: Mapping[str, Plant]
) -> tuple[Evaluation, list[str]]:
    """Return the evaluation of changed audio, and the gates of `default` but words that failed."""
    candidate = {**spoken} | {name: plant(spoken[name]) for name, plant in changes.items()}
    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in spoken}
    options = EvaluationOptions(recognizer="none")
    report = evaluate_audio(spoken, candidate, texts, options=options)
    rows = gate(report, read_gates("default")).rows
    failed = [row for row in rows if not (row.passed or "words" in row.gate.groups)]
    return report, [row.gate.metric for row in failed]


def test_each_fault_in_one_text_fails_by_its_own_kind(spoken: dict[str, Audio]) -> None:
    planted: dict[str, tuple[str, Plant]] = {
        "u02": ("repetition", _stutter),
        "u05": ("dropped", partial(_drop, seconds=0.4)),
        "u08": ("truncation", partial(_cut, seconds=0.4)),
        "u11": ("runaway", _run_on_for_long),
        "u20": ("onset", _pre_echo),
        "u14": ("burst", _burst),
        "u22": ("hole", _muffled),
        "u17": ("click", _faint_click),
    }
    changes = {name: plant for name, (_, plant) in planted.items()}
    report, failed = _judged(spoken, changes)
    damage = {_SPOKEN[said.index]: said.observed["damage"][0] for said in report.utterances}
    for name, (kind, _) in planted.items():
        assert damage[int(name[1:])][kind][0] > MARGINS[kind], kind
        # A fault may have a second name: muffled high frequencies are dropped sound, too.
        assert report.damage.findings[kind].utterances in {1, 2}, kind
        assert f"damage.{kind}.utterances" in failed
    assert report.damage.rate.utterances == len(planted)
    assert report.damage.rate.p_worse < 0.05


def test_what_nobody_hears_passes(spoken: dict[str, Audio]) -> None:
    """Sixteen bits, 1 dB softer or louder, half a millisecond late, a faint offset."""
    harmless: tuple[Plant, ...] = (
        lambda audio: _changed(audio, audio.samples.astype(np.float16)),
        lambda audio: _changed(audio, 10 ** (-1 / 20) * audio.samples),
        lambda audio: _changed(audio, 10 ** (1 / 20) * audio.samples),
        lambda audio: _changed(audio, np.roll(audio.samples, 8)),
        lambda audio: _changed(audio, audio.samples + 2e-3),
    )
    changes = {name: harmless[place % 5] for place, name in enumerate(spoken)}
    report, failed = _judged(spoken, changes)
    assert not failed
    assert report.damage.rate.utterances == 0


def test_other_phases_are_no_click(spoken: dict[str, Audio]) -> None:
    """An all-pass filter of first order delays low frequencies more than high ones."""
    for name, audio in list(spoken.items())[:4]:
        wave = audio.samples.astype(np.float64)
        turned = lfilter([-0.5, 1.0], [1.0, -0.5], wave)
        assert all(size <= 9.0 for size, _ in added_clicks(wave, turned, _RATE)), name


def test_the_candidate_may_do_what_seeds_of_the_reference_do(spoken: dict[str, Audio]) -> None:
    """With one seed the reference stutters, and so does the candidate with both."""
    few = dict(list(spoken.items())[:2])
    stuttering = {name: _stutter(audio) for name, audio in few.items()}
    options = EvaluationOptions(recognizer="none")
    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in few}
    report = evaluate_audio([few, stuttering], [stuttering] * 2, texts, options=options)
    assert report.damage.counts == {}
    assert report.damage.rate.other_seeds == len(few)
    assert report.damage.rate.p_worse == 1.0
