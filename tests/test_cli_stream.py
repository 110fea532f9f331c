"""`stream` writes the sound of the whole, to a file or as samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tts_compress.audio import read_wav
from tts_compress.cli import main

if TYPE_CHECKING:
    from pathlib import Path

_TEXT = "Hello there."


def test_the_file_and_the_samples_are_those_of_the_whole(
    tiny_path: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    whole, streamed = tmp_path / "whole.wav", tmp_path / "streamed.wav"
    assert main(["synthesize", str(tiny_path), _TEXT, "--output", str(whole), "--seed", "3"]) == 0
    command = ["stream", str(tiny_path), _TEXT, "--seed", "3", "--output"]
    assert main([*command, str(streamed)]) == 0
    expected = read_wav(whole)
    assert read_wav(streamed).sample_rate == expected.sample_rate
    assert np.array_equal(read_wav(streamed).samples, expected.samples)
    capfdbinary.readouterr()
    assert main([*command, "-"]) == 0
    samples = np.frombuffer(capfdbinary.readouterr().out, "<i2")
    assert np.abs(samples / 32767 - expected.samples).max() < 1e-4


def test_what_cannot_be_streamed_is_told_in_a_line(
    tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.wav"
    there.write_bytes(b"kept")
    for output, more, expected in (
        (str(there), [], "--force"),
        ("-", ["--json"], "give --output a file"),
        (str(tmp_path / "new.wav"), ["--speaker", "anna"], "speaker"),
    ):
        assert main(["stream", str(tiny_path), _TEXT, "--output", output, *more]) == 2
        assert expected in capsys.readouterr().err
    assert there.read_bytes() == b"kept"
