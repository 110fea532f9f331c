"""The embedded recognizer, on a human reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.audio import resample
from tts_compress.evaluation.metrics.error_rates import count_edits
from tts_compress.evaluation.normalizers import english_v1
from tts_compress.evaluation.recognizers import Recognizer, open_recognizer
from tts_compress.models import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tts_compress.audio import Audio


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    pytest.importorskip("pocketsphinx")
    return open_recognizer("pocketsphinx", "en-us")


def test_understands_most_of_a_clear_voice(
    recognizer: Recognizer, recordings: Sequence[Audio]
) -> None:
    """At 22.05 kHz, so resampling is part of it."""
    transcript = "in being comparatively modern"
    heard = english_v1(recognizer.transcribe(recordings[0]))
    assert count_edits(transcript, heard, "word").errors <= 2


def test_the_front_end_keeps_nothing_of_the_last_utterance() -> None:
    """After the first of these, a decoder that is not reset transcribes the second differently."""
    pytest.importorskip("piper")
    voice = load("demo")
    texts = ("Keep your voice down.", "Several bees buzzed above the purple clover.")
    first, second = (voice.synthesize(text, seed=0) for text in texts)
    fresh, used = open_recognizer("pocketsphinx", "en-us"), open_recognizer("pocketsphinx", "en-us")
    used.transcribe(first)
    assert used.transcribe(second) == fresh.transcribe(second)


def test_resampling_keeps_tone_and_length() -> None:
    """A 1 kHz tone at 22.05 kHz is one at 16 kHz."""
    tone = np.sin(2 * np.pi * 1000 * np.arange(22_050) / 22_050).astype(np.float32)
    found = resample(tone, 22_050, 16_000)
    expected = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000)
    assert found.shape == (16_000,)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=0.01)
