"""The recording that a system speaks by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.errors import ModelError
from tts_compress.models.base import Prompt
from tts_compress.models.recording import (
    REFERENCE,
    REFERENCE_TEXT,
    check_duration,
    exchange_recording,
    find_prompt,
)

if TYPE_CHECKING:
    from pathlib import Path

_RATE = 8000


def _record(path: Path, seconds: float) -> Path:
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(path, np.zeros(int(seconds * _RATE), np.float32), _RATE)
    return path


def test_a_recording_is_found_with_what_is_said_in_it(tmp_path: Path) -> None:
    text = tmp_path / REFERENCE_TEXT
    text.write_text("  one two.\n", encoding="utf-8")
    assert find_prompt(tmp_path) == Prompt()  # not stated anywhere
    audio = _record(tmp_path / REFERENCE, 0.1)
    assert find_prompt(tmp_path) == Prompt(audio=audio, text="one two.")
    text.write_text(" \n", encoding="utf-8")
    assert find_prompt(tmp_path) == Prompt(audio=audio)
    text.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ModelError, match=r"cannot read '.*reference\.txt'"):
        find_prompt(tmp_path)
    text.unlink()
    assert find_prompt(tmp_path) == Prompt(audio=audio)


def test_a_text_does_not_stay_with_another_recording(tmp_path: Path) -> None:
    first, second = tmp_path / "first.wav", tmp_path / "second.wav"
    before = Prompt(audio=first, text="one two.")
    assert exchange_recording(before, Prompt()) is before
    assert exchange_recording(before, Prompt(audio=second)) == Prompt(audio=second)
    said = exchange_recording(before, Prompt(text=" three. "))
    assert said == Prompt(audio=first, text="three.")
    both = Prompt(audio=second, text="three.")
    assert exchange_recording(before, both) == both
    assert exchange_recording(before, Prompt(text=" ")) == Prompt(audio=first)


def test_a_recording_must_have_a_length_that_the_system_takes(tmp_path: Path) -> None:
    path = tmp_path / "r.wav"
    for seconds in (1.0, 2.5):
        check_duration(_record(path, seconds), (1, 2.5))
    for seconds in (0.9, 2.6):
        with pytest.raises(ModelError, match=rf"is {seconds} s long; give .* of 1 to 2\.5 s"):
            check_duration(_record(path, seconds), (1, 2.5))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    text = tmp_path / "text.wav"
    text.write_text("no sound")
    for path in (text, tmp_path, tmp_path / "absent.wav"):
        with pytest.raises(ModelError, match="cannot read audio from"):
            check_duration(path, (1, 2))
