"""Planted damage of a stated size is found and fails the gates; speech without it does not."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

from tests.evaluation.metrics.planted import (
    FAULTS,
    PLANTED,
    RATE,
    Plant,
    burst,
    changed,
    cut,
    drop,
    faint_click,
    loudest,
    make_speech,
    muffled,
    pause,
    pinned,
    pre_echo,
    run_on_for_long,
    stutter,
    swelling,
    vibrating,
    whispered_throughout,
    zeros,
)
from tts_compress import evaluate_audio, read_gates
from tts_compress.audio import Audio, read_wav
from tts_compress.evaluation import Evaluation, gate
from tts_compress.evaluation.metrics.damage import MARGINS, Damage, _lost_words, chance_limit
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load
from tts_compress.numerics import faults
from tts_compress.numerics.damage import KINDS, Renderings, compare
from tts_compress.numerics.faults import added_clicks

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
    clean = make_speech()
    assert _has(kind, clean, plant(clean))


@pytest.mark.parametrize(("kind", "plant"), FAULTS, ids=_IDS[: len(FAULTS)])
def test_damage_that_the_reference_has_is_not_the_candidates(kind: str, plant: Plant) -> None:
    clean = make_speech()
    broken = plant(clean)
    assert not _has(kind, broken, broken)
    moved = changed(broken, np.concatenate((1e-4 * make_speech(3).samples, broken.samples)))
    assert not _has(kind, broken, moved)
    assert not _has(kind, broken, clean)


@pytest.mark.parametrize("rate", [8_000, 22_050])
@pytest.mark.parametrize("length", [0, 1, 5, 50, 200])
def test_the_shortest_sounds_are_compared(rate: int, length: int) -> None:
    wave = np.random.default_rng(0).uniform(-0.3, 0.3, length).astype(np.float32)
    sound = Audio(samples=wave, sample_rate=rate)
    assert not _found(sound, sound)


def test_sounds_are_aligned_only_for_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = make_speech()
    both = Renderings(clean, changed(clean, 0.9 * clean.samples))
    with monkeypatch.context() as patched:
        patched.setattr(faults, "align", None)
        assert KINDS["spoilt"].size(both)[0] == pytest.approx(0.0, abs=0.2)
    assert KINDS["level"].size(both)[0] == pytest.approx(0.9, abs=0.1)


def test_the_place_of_the_damage_is_told() -> None:
    clean = make_speech()
    where = loudest(clean) / RATE
    for kind, plant in (("pinned", pinned), ("frozen", zeros), ("pause", pause)):
        assert compare(clean, plant(clean))[kind][1] == pytest.approx(where, abs=0.06)


def test_one_more_pause_is_found_beside_one_of_the_reference() -> None:
    """Damage is compared by rank: the reference's pause excuses a single one."""
    once = pause(make_speech())
    assert _found(once, pause(once)) == {"pause", "length"}


def test_other_syllables_are_no_fault() -> None:
    assert not [kind for kind, _ in FAULTS if _has(kind, make_speech(), make_speech(7))]


@pytest.mark.parametrize("seconds", [0.1, 0.6])
def test_a_repeated_or_dropped_part_is_found_from_a_tenth_of_a_second_on(
    clips: list[Audio], seconds: float
) -> None:
    for clip in clips[::16]:
        rounded = changed(clip, np.round(clip.samples * 512) / 512)
        assert _has("repetition", clip, stutter(rounded, seconds))
        shorter = drop(rounded, seconds)
        assert _has("dropped", clip, shorter) or _has("truncation", clip, shorter)
        assert _has("truncation", clip, cut(rounded, seconds))


@pytest.mark.parametrize(
    ("kind", "plant"),
    [
        ("repetition", stutter),
        ("runaway", partial(stutter, seconds=1.25)),  # wherever it is
        ("dropped", partial(drop, seconds=1.25)),
        ("truncation", cut),
    ],
)
def test_sound_that_one_side_lacks_has_one_name(kind: str, plant: Plant) -> None:
    clean, kinds = make_speech(), ("repetition", "runaway", "dropped", "truncation")
    assert [name for name in kinds if _has(name, clean, plant(clean))] == [kind]


@pytest.mark.parametrize("length", [0, 1, 50, 1000])
def test_any_length_and_any_sample_is_judged(length: int) -> None:
    clean = make_speech()
    for value in (0.0, np.nan, np.inf):
        short = changed(clean, np.full(length, value))
        assert compare(clean, short).keys() == compare(short, clean).keys() == KINDS.keys()


@pytest.fixture(scope="module")
def clips(assets: Path) -> list[Audio]:
    """Return 32 recordings of a reader, up to four seconds each."""
    found = [read_wav(path) for path in sorted((assets / "speech-ljspeech32" / "wavs").iterdir())]
    return [changed(audio, audio.samples[: 4 * audio.sample_rate]) for audio in found]


@pytest.mark.slow
def test_no_recording_is_damaged(clips: list[Audio]) -> None:
    """Even against a reference that has nothing; pauses are the text's."""
    silence = changed(clips[0], np.zeros(10))
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
    return changed(audio, samples)


_SPOKEN = (0, 2, 3, 5, 8, 11, 14, 16, 17, 20, 22, 23)
_TEXTS = {f"u{n:02d}": read_suite("en-quick").utterances[n] for n in _SPOKEN}


_load = cache(load)


@cache
def _speak(name: str) -> Audio:
    return _load("demo").synthesize(_TEXTS[name].text, seed=0)


@pytest.fixture(scope="module")
def spoken() -> dict[str, Audio]:
    return {name: _speak(name) for name in _TEXTS}


def _check_hiss(audios: Sequence[Audio], places: Iterable[int]) -> None:
    """Check that hiss of a band and level, each by the place, is found, and no other change is."""
    for place in places:
        audio, level_db = audios[place % len(audios)], (-50, -55, -60)[place % 3]
        assert _has("hiss", audio, _hissing(audio, level_db, place)), (place, level_db)
    for place, audio in enumerate(audios):
        other = changed(audio, (0.89 * audio.samples, np.roll(audio.samples, 5))[place % 2])
        assert not _has("hiss", audio, other), place
        assert place > 1 or not _found(audio, other), place


def test_hiss_in_a_single_silence_is_found() -> None:
    """Each band at each level."""
    _check_hiss([_speak(name) for name in list(_TEXTS)[:5]], range(15))


@pytest.mark.slow
@pytest.mark.parametrize("voice", ["hfc", "kristin"])
def test_hiss_in_a_single_silence_of_a_trained_voice_is_found(assets: Path, voice: str) -> None:
    path = assets / "trained-voices" / voice / f"{voice}.onnx"
    if not path.is_file():
        pytest.skip("no trained voices among the assets")
    speaks: Any = load(path)
    texts = read_suite("en-quick").utterances[:15]
    _check_hiss([speaks.synthesize(entry.text, seed=0) for entry in texts], range(15))


def test_hiss_in_a_single_silence_of_a_recording_is_found(assets: Path) -> None:
    """Each band; one clip has no silence."""
    paths = sorted((assets / "speech-ljspeech32" / "wavs").iterdir())
    silent = [path for path in paths if path.stem != "LJ001-0013"]
    _check_hiss([read_wav(path) for path in silent[:5]], (0, 1, 2, 8, 14))


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


@pytest.mark.slow
def test_each_fault_in_one_text_fails_by_its_own_kind(spoken: dict[str, Audio]) -> None:
    planted: dict[str, tuple[str, Plant]] = {
        "u02": ("repetition", stutter),
        "u05": ("dropped", partial(drop, seconds=0.4)),
        "u08": ("truncation", partial(cut, seconds=0.4)),
        "u11": ("runaway", run_on_for_long),
        "u20": ("onset", pre_echo),
        "u14": ("burst", burst),
        "u22": ("hole", muffled),
        "u17": ("click", faint_click),
        "u00": ("tremolo", swelling),
        "u16": ("vibrato", vibrating),
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


@pytest.mark.slow
def test_what_nobody_hears_passes(spoken: dict[str, Audio]) -> None:
    """Sixteen bits, 1 dB softer or louder, half a millisecond late, a faint offset."""
    harmless: tuple[Plant, ...] = (
        lambda audio: changed(audio, audio.samples.astype(np.float16)),
        lambda audio: changed(audio, 10 ** (-1 / 20) * audio.samples),
        lambda audio: changed(audio, 10 ** (1 / 20) * audio.samples),
        lambda audio: changed(audio, np.roll(audio.samples, 8)),
        lambda audio: changed(audio, audio.samples + 2e-3),
    )
    changes = {name: harmless[place % 5] for place, name in enumerate(spoken)}
    report, failed = _judged(spoken, changes)
    assert not failed
    assert report.damage.rate.utterances == 0


@pytest.mark.slow
def test_a_text_that_is_whispered_throughout_is_found(spoken: dict[str, Audio]) -> None:
    """No sample correlates with the reference's, and no moment differs from the rest."""
    report, failed = _judged(spoken, {"u08": whispered_throughout})
    assert "damage.unlike.utterances" in failed
    assert report.damage.counts["unlike"] == report.damage.rate.utterances == 1
    assert report.damage.rate.p_worse == 1.0  # seeds differ as much: it is not counted


@pytest.mark.slow
def test_nothing_is_unlike_where_no_other_rendering_says_what_noise_does(
    spoken: dict[str, Audio],
) -> None:
    """One recording of each text on either side, of other timing: seeds may differ as much."""

    def whispered_sooner(audio: Audio) -> Audio:
        return whispered_throughout(changed(audio, audio.samples[200:]))

    few = {name: spoken[name] for name in list(spoken)[:3]}
    report, failed = _judged(few, dict.fromkeys(few, whispered_sooner))
    assert report.damage.unlike.excess == 0.0
    assert "damage.unlike.utterances" not in failed


def test_other_phases_are_no_click() -> None:
    """An all-pass filter of first order delays low frequencies more than high ones."""
    for name in list(_TEXTS)[:4]:
        wave = _speak(name).samples.astype(np.float64)
        turned = lfilter([-0.5, 1.0], [1.0, -0.5], wave)
        assert all(size <= 9.0 for size, _ in added_clicks(wave, turned, RATE)), name


@pytest.mark.slow
def test_the_candidate_may_do_what_seeds_of_the_reference_do(spoken: dict[str, Audio]) -> None:
    """With one seed the reference stutters, and so does the candidate with both."""
    few = dict(list(spoken.items())[:2])
    stuttering = {name: stutter(audio) for name, audio in few.items()}
    options = EvaluationOptions(recognizer="none")
    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in few}
    report = evaluate_audio([few, stuttering], [stuttering] * 2, texts, options=options)
    assert report.damage.counts == {}
    assert report.damage.rate.other_seeds == len(few)
    assert report.damage.rate.p_worse == 1.0


def test_the_worst_of_one_more_seed_is_rarely_damage() -> None:
    """Also where tails are heavier than exponential."""
    sizes = np.random.default_rng(0).lognormal(sigma=0.6, size=(2, 1000, 72))
    worst = [after.max() > chance_limit(before) + 1.0 for before, after in zip(*sizes, strict=True)]
    assert 0.01 < np.mean(worst) < 0.05


def _swaying(seed: int, more_db: float = 0.0) -> list[dict[str, Audio]]:
    """Return a sound that sways by chance for each text, in two renderings of unequal length."""
    random, clean = np.random.default_rng(seed), make_speech()
    return [
        {
            name: changed(clean, swelling(clean, decibels=decibels).samples[seed + turn + 1 :])
            for name, decibels in zip(_TEXTS, more_db + random.exponential(3.0, 12), strict=True)
        }
        for turn in range(2)
    ]


def _inverted_and_fluttering(audio: Audio) -> Audio:
    return changed(audio, -swelling(audio, hz=12.0).samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "damaged"),
    [
        (_swaying(300), 0),
        (_swaying(200, more_db=24.0), 24),
        ([{n: _inverted_and_fluttering(a) for n, a in seed.items()} for seed in _swaying(0)], 24),
    ],
    ids=["as-seeds-do", "more-on-average", "in-the-same-noise"],
)
def test_a_candidate_of_other_noise_is_one_more_seed(
    candidate: list[dict[str, Audio]], damaged: int
) -> None:
    """Its worst utterance may be worse than theirs; its mean may not, for certain.

    One that keeps lengths which seeds change has the same noise, though no sample correlates.
    """
    texts = {name: entry.spoken or entry.text for name, entry in _TEXTS.items()}
    options = EvaluationOptions(recognizer="none")
    report = evaluate_audio(_swaying(0), candidate, texts, options=options)
    assert report.damage.counts.get("tremolo", 0) == damaged


@pytest.mark.parametrize(("seconds", "damaged"), [(0.1, 0), (0.01, 4)])
def test_a_length_may_change_by_more_where_seeds_change_it(seconds: float, damaged: int) -> None:
    """6 % are damage, but not beside seeds that differ by 4 %."""

    def longer(seconds: float) -> dict[str, Audio]:
        clean = make_speech()
        silence = 2e-4 * np.random.default_rng(0).standard_normal(round(seconds * RATE))
        return {name: changed(clean, np.append(clean.samples, silence)) for name in ("u00", "u02")}

    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in ("u00", "u02")}
    options = EvaluationOptions(recognizer="none")
    sides = [longer(0.0), longer(seconds)], [longer(0.16), longer(0.16 + seconds)]
    report = evaluate_audio(*sides, texts, options=options)
    assert report.damage.counts.get("length", 0) == damaged


@pytest.mark.parametrize(
    ("heard", "lost"),
    [
        ({"candidate": ""}, 1.0),
        ({"candidate": "a b"}, 0.5),
        ({"candidate": "", "other_seed": "a"}, 0.25),
        ({"candidate": "", "disturbed": ""}, 0.0),
        ({"candidate": "", "second": "a b"}, 0.5),
        ({"reference": ""}, 0.0),
    ],
)
def test_words_are_lost_beyond_any_rendering_by_the_reference(
    heard: dict[str, str], lost: float
) -> None:
    """The reference may lose them with another seed of the suite, whose other seed nobody heard."""
    roles = ("reference", "candidate", "other_seed", "disturbed")
    first = SimpleNamespace(transcript="a b c d", audio={role: role for role in roles})
    audio = {"reference": "second", "candidate": "reference", "other_seed": "unheard"}
    second = SimpleNamespace(transcript="a b c d", audio=audio)
    hypotheses = dict.fromkeys((*roles, "second"), "a b c d") | heard
    run: Any = SimpleNamespace(pairs=[first, second], hypotheses=hypotheses)
    assert _lost_words(run)[0] == (lost, 0.0)
