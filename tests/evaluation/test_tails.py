"""A rare fault fails the gates by its own name and place; what nobody hears does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from scipy.signal import lfilter

from tts_compress import evaluate_audio, load, read_gates
from tts_compress.audio import Audio
from tts_compress.evaluation import gate
from tts_compress.evaluation.metrics.damage import MARGINS
from tts_compress.evaluation.options import EvaluationOptions
from tts_compress.evaluation.suite import read_suite
from tts_compress.numerics.faults import added_clicks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tts_compress.evaluation import Evaluation

_SPOKEN = (0, 2, 3, 5, 8, 11, 14, 16, 17, 20, 22, 23)
_SUITE = read_suite("en-quick").utterances
_TEXTS = {f"u{n:02d}": _SUITE[n] for n in _SPOKEN}
_RATE = 16_000


@pytest.fixture(scope="module")
def spoken() -> dict[str, Audio]:
    voice = load("demo")
    return {name: voice.synthesize(entry.text, seed=0) for name, entry in _TEXTS.items()}


def _judged(
    spoken: Mapping[str, Audio], changes: Mapping[str, Callable[[Any], Any]]
) -> tuple[Evaluation, list[str]]:
    """Return the evaluation of changed audio, and the gates of `default` but words that failed."""
    candidate = {
        name: Audio(samples=np.asarray(changes[name](audio.samples), np.float32), sample_rate=_RATE)
        if name in changes
        else audio
        for name, audio in spoken.items()
    }
    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in spoken}
    options = EvaluationOptions(recognizer="none")
    report = evaluate_audio(spoken, candidate, texts, options=options)
    rows = gate(report, read_gates("default")).rows
    failed = [row for row in rows if not (row.passed or "words" in row.gate.groups)]
    return report, [row.gate.metric for row in failed]


def _place(samples: NDArray[np.float32], seconds: float) -> int:
    """Return the begin of the loudest part within the middle half."""
    count, quarter = round(seconds * _RATE), len(samples) // 4
    energy = np.convolve(np.square(samples[quarter:-quarter]), np.ones(count), "valid")
    return quarter + int(energy.argmax())


def _stutter(samples: NDArray[np.float32]) -> Any:
    at = _place(samples, 0.2)
    return np.insert(samples, at + 3200, samples[at : at + 3200])


def _drop(samples: NDArray[np.float32]) -> Any:
    at = _place(samples, 0.4)
    return np.delete(samples, slice(at, at + 6400))


def _cut(samples: NDArray[np.float32]) -> Any:
    return samples[: np.flatnonzero(np.abs(samples) > 0.02)[-1] - 6400]


def _runaway(samples: NDArray[np.float32]) -> Any:
    return np.concatenate((samples, np.resize(samples, 15 * _RATE)))


def _pre_echo(samples: NDArray[np.float32]) -> Any:
    early = round(0.025 * _RATE)
    changed = samples.copy()
    changed[:-early] += 10 ** (-22 / 20) * samples[early:]
    return changed


def _burst(samples: NDArray[np.float32]) -> Any:
    """Add 40 ms of noise inside the speech."""
    at, changed = _place(samples, 0.2), samples.copy()
    changed[at : at + 640] += 0.05 * np.random.default_rng(0).standard_normal(640)
    return changed


def _muffled(samples: NDArray[np.float32]) -> Any:
    """Take what is above 2 kHz from 0.25 s of the speech."""
    at, changed = _place(samples, 0.25), samples.copy()
    spectrum = np.fft.rfft(samples[at : at + 4000])
    spectrum[500:] *= 0.03
    changed[at : at + 4000] = np.fft.irfft(spectrum)
    return changed


def _click(samples: NDArray[np.float32]) -> Any:
    """Add one sample of 0.08 in the quietest 20 ms of the middle half."""
    quarter = len(samples) // 4
    energy = np.convolve(np.square(samples[quarter:-quarter]), np.ones(320), "same")
    changed = samples.copy()
    changed[quarter + int(energy.argmin())] += 0.08
    return changed


def test_each_fault_in_one_text_fails_by_its_own_kind(spoken: dict[str, Audio]) -> None:
    planted = {
        "u02": ("repetition", _stutter),
        "u05": ("dropped", _drop),
        "u08": ("truncation", _cut),
        "u11": ("runaway", _runaway),
        "u20": ("onset", _pre_echo),
        "u14": ("burst", _burst),
        "u22": ("hole", _muffled),
        "u17": ("click", _click),
    }
    changes = {name: change for name, (_, change) in planted.items()}
    report, failed = _judged(spoken, changes)
    damage = {_SPOKEN[said.index]: said.observed["damage"][0] for said in report.utterances}
    for name, (kind, _) in planted.items():
        assert damage[int(name[1:])][kind][0] > MARGINS[kind], kind
        # A fault may have a second name: muffled high frequencies are dropped sound, too.
        assert report.damage.findings[kind].utterances in {1, 2}, kind
        assert f"damage.{kind}.utterances" in failed
    assert report.damage.rate.utterances == len(planted)
    assert report.damage.rate.p_worse < 0.05


def _rounded(samples: NDArray[np.float32]) -> Any:
    return samples.astype(np.float16)


def _softer(samples: NDArray[np.float32]) -> Any:
    return 10 ** (-1 / 20) * samples


def _louder(samples: NDArray[np.float32]) -> Any:
    return 10 ** (1 / 20) * samples


def _late(samples: NDArray[np.float32]) -> Any:
    return np.roll(samples, 8)


def _offset(samples: NDArray[np.float32]) -> Any:
    return samples + 2e-3


def test_what_nobody_hears_passes(spoken: dict[str, Audio]) -> None:
    harmless = (_rounded, _softer, _louder, _late, _offset)
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
    stuttering = {
        name: Audio(samples=_stutter(audio.samples), sample_rate=_RATE)
        for name, audio in few.items()
    }
    options = EvaluationOptions(recognizer="none")
    texts = {name: _TEXTS[name].spoken or _TEXTS[name].text for name in few}
    report = evaluate_audio([few, stuttering], [stuttering] * 2, texts, options=options)
    assert report.damage.counts == {}
    assert report.damage.rate.other_seeds == len(few)
    assert report.damage.rate.p_worse == 1.0
