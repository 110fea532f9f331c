"""Speech, and damage of a stated size to plant in it."""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve, istft, stft

from tts_compress.audio import Audio

Plant: TypeAlias = Callable[[Audio], Audio]

RATE = 16_000


@cache
def make_speech(seed: int = 0) -> Audio:
    """Return syllables of a gliding voice and of noise, with short pauses; speech enough."""
    random = np.random.default_rng(seed)
    pieces = []
    for place in range(12):
        time_s = np.arange(int(0.18 * RATE)) / RATE
        pitch = np.cumsum(110.0 + 30.0 * random.random() + 60.0 * time_s) / RATE
        voiced = sum(np.sin(2 * np.pi * k * pitch) / k for k in range(1, 25))
        noise = np.diff(random.standard_normal(len(time_s) + 1))
        rise = np.sin(np.pi * time_s / time_s[-1])
        pieces += [0.1 * rise * (noise if place % 4 == 3 else voiced)]
        pieces += [np.zeros(int(0.03 * RATE))]
    samples = np.concatenate(pieces) + 2e-4 * random.standard_normal(sum(map(len, pieces)))
    return Audio(samples=samples.astype(np.float32), sample_rate=RATE)


def changed(audio: Audio, samples: npt.ArrayLike) -> Audio:
    return Audio(samples=np.asarray(samples, np.float32), sample_rate=audio.sample_rate)


def loudest(audio: Audio) -> int:
    """Return the middle of the loudest quarter second."""
    size = audio.sample_rate // 4
    return int(fftconvolve(np.square(audio.samples), np.ones(size), "same").argmax())


def pinned(audio: Audio, ms: float = 20.0, level: float = 1.0) -> Audio:
    samples, start = audio.samples.copy(), loudest(audio)
    samples[start : start + round(ms * audio.sample_rate / 1000)] = level
    return changed(audio, samples)


def _stuck_low(audio: Audio) -> Audio:
    return pinned(audio, level=-0.3)


def _near_a_rail(audio: Audio) -> Audio:
    """Saturate softly: almost constant, nowhere equal."""
    return changed(audio, 0.4 * np.tanh(200.0 * audio.samples))


def _offset(audio: Audio) -> Audio:
    """Move a third of a second by 3 % of full scale."""
    samples, start = audio.samples.copy(), loudest(audio)
    samples[start : start + audio.sample_rate // 3] += 0.03
    return changed(audio, samples)


def zeros(audio: Audio) -> Audio:
    """Silence 8 ms within a loud sound."""
    samples, start = audio.samples.copy(), loudest(audio)
    samples[start : start + 8 * audio.sample_rate // 1000] = 0.0
    return changed(audio, samples)


def _clicks(audio: Audio) -> Audio:
    """Add one sample of half of full scale at ten places."""
    samples = audio.samples.copy()
    samples[(np.linspace(0.1, 0.9, 10) * len(samples)).astype(int)] += 0.5
    return changed(audio, samples)


def _pulses(audio: Audio) -> Audio:
    """Add 2 ms of a tenth of full scale at ten places."""
    samples = audio.samples.copy()
    for start in (np.linspace(0.1, 0.9, 10) * len(samples)).astype(int):
        samples[start : start + audio.sample_rate // 500] += 0.1
    return changed(audio, samples)


def _whistle(audio: Audio) -> Audio:
    """Add 0.9 s of a tone 30 dB below full scale."""
    samples, count = audio.samples.copy(), round(0.9 * audio.sample_rate)
    start = (len(samples) - count) // 2
    tone = np.sin(2 * np.pi * 3300 * np.arange(count) / audio.sample_rate)
    samples[start : start + count] += (10 ** (-30 / 20) * tone).astype(np.float32)
    return changed(audio, samples)


def pause(audio: Audio) -> Audio:
    """Insert 0.9 s of faint noise in the middle of the speech."""
    noise = 1e-4 * np.random.default_rng(1).standard_normal(round(0.9 * audio.sample_rate))
    return changed(audio, np.insert(audio.samples, loudest(audio), noise.astype(np.float32)))


def _hiss(audio: Audio) -> Audio:
    """Add noise 40 dB below full scale from 1 to 2 kHz."""
    spectrum = np.fft.rfft(np.random.default_rng(4).standard_normal(len(audio.samples)))
    frequencies = np.fft.rfftfreq(len(audio.samples), 1 / audio.sample_rate)
    spectrum[(frequencies < 1000) | (frequencies >= 2000)] = 0.0
    noise = np.fft.irfft(spectrum, len(audio.samples))
    return changed(audio, audio.samples + 0.01 * noise / np.sqrt(np.mean(np.square(noise))))


def _quiet(audio: Audio) -> int:
    """Return the middle of the quietest 20 ms within the speech."""
    size, middle = audio.sample_rate // 50, len(audio.samples) // 8
    energy = fftconvolve(np.square(audio.samples), np.ones(size), "same")
    return middle + int(energy[middle:-middle].argmin())


def faint_click(audio: Audio) -> Audio:
    """Add one sample of 4 % of full scale in a quiet passage."""
    samples = audio.samples.copy()
    samples[_quiet(audio)] += 0.04
    return changed(audio, samples)


def _part(audio: Audio, seconds: float) -> slice:
    """Return the loudest part of a length within the middle half."""
    count, quarter = round(seconds * audio.sample_rate), len(audio.samples) // 4
    middle = np.square(audio.samples[quarter : 3 * quarter])
    start = quarter + int(fftconvolve(middle, np.ones(count), "valid").argmax())
    return slice(start, start + count)


def stutter(audio: Audio, seconds: float = 0.2) -> Audio:
    part = _part(audio, seconds)
    return changed(audio, np.insert(audio.samples, part.stop, audio.samples[part]))


def drop(audio: Audio, seconds: float = 0.2) -> Audio:
    return changed(audio, np.delete(audio.samples, _part(audio, seconds)))


def _silenced(audio: Audio) -> Audio:
    """Put silence in the place of 0.2 s of sound."""
    samples = audio.samples.copy()
    samples[_part(audio, 0.2)] = 1e-4
    return changed(audio, samples)


def _last_sound(audio: Audio, share: float = 0.1) -> int:
    level = np.abs(audio.samples)
    return int(np.flatnonzero(level > share * level.max())[-1])


def cut(audio: Audio, seconds: float = 0.2) -> Audio:
    end = _last_sound(audio) - round(seconds * audio.sample_rate)
    return changed(audio, audio.samples[:end])


def _run_on(audio: Audio, seconds: float = 0.5) -> Audio:
    """Go on after the end, backwards."""
    end = _last_sound(audio, 0.01)
    again = np.resize(audio.samples[end::-1], round(seconds * audio.sample_rate))
    return changed(audio, np.insert(audio.samples, end, again))


def run_on_for_long(audio: Audio) -> Audio:
    return _run_on(audio, 12.0)


def _slower(audio: Audio) -> Audio:
    count = len(audio.samples)
    places = np.linspace(0, count - 1, round(1.2 * count))
    return changed(audio, np.interp(places, np.arange(count), audio.samples))


def _louder(audio: Audio) -> Audio:
    """Make half a second 6 dB louder."""
    samples = audio.samples.copy()
    samples[_part(audio, 0.5)] *= 2.0
    return changed(audio, samples)


def _higher(audio: Audio) -> Audio:
    """Play it 3 % faster and so half a semitone higher."""
    times = np.arange(0.0, len(audio.samples) - 1, 1.03)
    return changed(audio, np.interp(times, np.arange(len(audio.samples)), audio.samples))


def burst(audio: Audio) -> Audio:
    """Add 40 ms of noise, 10 dB softer than the speech around it."""
    part = _part(audio, 0.04)
    samples = audio.samples.copy()
    noise = np.random.default_rng(0).standard_normal(part.stop - part.start)
    samples[part] += 0.3 * noise * np.sqrt(np.mean(np.square(samples[part])))
    return changed(audio, samples)


def muffled(audio: Audio) -> Audio:
    """Take what is above 800 Hz from 0.2 s of sound."""
    part = _part(audio, 0.2)
    spectrum = np.fft.rfft(audio.samples[part])
    spectrum[round(800 * 0.2) :] *= 0.03
    samples = audio.samples.copy()
    samples[part] = np.fft.irfft(spectrum, part.stop - part.start)
    return changed(audio, samples)


def _choppy(audio: Audio) -> Audio:
    """Fade 25 ms out and in, as where a packet is lost and somebody conceals it."""
    part = _part(audio, 0.025)
    samples = audio.samples.copy()
    samples[part] *= 1.0 - np.hanning(part.stop - part.start)
    return changed(audio, samples)


def pre_echo(audio: Audio) -> Audio:
    """Add everything 30 ms early, 20 dB softer."""
    early = round(0.03 * audio.sample_rate)
    samples = audio.samples.copy()
    samples[:-early] += 0.1 * audio.samples[early:]
    return changed(audio, samples)


def _whispered(audio: Audio) -> Audio:
    """Give a quarter second the phases of noise, as loud as it is."""
    part = _part(audio, 0.25)
    noise = np.random.default_rng(6).standard_normal(part.stop - part.start)
    spectra = [np.fft.rfft(wave) for wave in (audio.samples[part], noise)]
    spectrum = np.abs(spectra[0]) * np.exp(1j * np.angle(spectra[1]))
    samples, fade = audio.samples.copy(), np.hanning(part.stop - part.start)
    whisper = np.fft.irfft(spectrum, part.stop - part.start)
    samples[part] = (1.0 - fade) * samples[part] + fade * whisper
    return changed(audio, samples)


def whispered_throughout(audio: Audio) -> Audio:
    """Give all of it the phases of noise, as loud as it is: the samples do not correlate."""
    _, _, frames = stft(audio.samples, nperseg=512)
    turns = np.random.default_rng(5).uniform(-np.pi, np.pi, frames.shape)
    whisper = istft(frames * np.exp(1j * turns), nperseg=512)[1][: len(audio.samples)]
    before, after = (np.sqrt(np.mean(np.square(wave))) for wave in (audio.samples, whisper))
    return changed(audio, whisper * before / after)


def swelling(audio: Audio, hz: float = 5.0, decibels: float = 7.0) -> Audio:
    """Make it louder and softer by some decibels in all, so many times a second."""
    times_s = np.arange(len(audio.samples)) / audio.sample_rate
    return changed(audio, audio.samples * 10 ** (decibels / 40 * np.sin(2 * np.pi * hz * times_s)))


def rough(audio: Audio) -> Audio:
    return swelling(audio, hz=50.0)


def vibrating(audio: Audio, share: float = 0.05) -> Audio:
    """Make it higher and lower by a share, six times a second."""
    samples, turn = np.arange(len(audio.samples)), audio.sample_rate / (2 * np.pi * 6.0)
    return changed(
        audio, np.interp(samples + share * turn * np.sin(samples / turn), samples, audio.samples)
    )


FAULTS: list[tuple[str, Plant]] = [
    ("pinned", pinned),
    ("pinned", _stuck_low),
    ("pinned", _near_a_rail),
    ("offset", _offset),
    ("frozen", zeros),
    ("click", _clicks),
    ("click", _pulses),
    ("whistle", _whistle),
    ("pause", pause),
    ("hiss", _hiss),
    ("click", faint_click),
]
"""A sound has these whatever it is compared with."""

PLANTED: list[tuple[str, Plant]] = [
    *FAULTS,
    ("repetition", stutter),
    ("dropped", drop),
    ("dropped", _silenced),
    ("truncation", cut),
    ("runaway", _run_on),
    ("runaway", run_on_for_long),
    ("length", _slower),
    ("level", _louder),
    ("pitch", _higher),
    ("burst", burst),
    ("hole", muffled),
    ("hole", _choppy),
    ("onset", pre_echo),
    ("spoilt", _whispered),
    ("unlike", whispered_throughout),
    ("tremolo", swelling),
    ("tremolo", rough),
    ("vibrato", vibrating),
]
