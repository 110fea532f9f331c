"""The limits promised for the embedded voice."""

from pathlib import Path

import numpy as np
import pytest

from tts_compress.compression import compress
from tts_compress.evaluation.suite import read_suite
from tts_compress.models import load

pytestmark = pytest.mark.slow


def test_int8_is_three_times_smaller_and_keeps_durations(demo: Path, tmp_path: Path) -> None:
    voice = load("demo")
    saved = compress(voice, "int8", quality="fast").save(tmp_path / "demo-int8") / demo.name
    assert 3 * saved.stat().st_size <= demo.stat().st_size
    small = load(saved)
    pairs = []
    for utterance in read_suite("en-quick").utterances[::3]:
        before = voice.synthesize(utterance.text, seed=None).durations
        after = small.synthesize(utterance.text, seed=None).durations
        assert before is not None
        assert after is not None
        pairs.append((before, after))
    before, after = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    assert np.mean(before == after) >= 0.99
    assert abs(after.sum() / before.sum() - 1) <= 0.005
