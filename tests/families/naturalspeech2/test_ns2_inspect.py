"""The time spent in each component of NaturalSpeech2, as `inspect` shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def test_inspect_shows_every_components_share_of_the_time(
    tiny_ns2_dir: Path, amphion: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = f"naturalspeech2:{tiny_ns2_dir}?inference_step=4"
    assert main(["inspect", spec, "--json", "--time", "--checkout", str(amphion)]) == 0
    found = json.loads(capsys.readouterr().out)
    shares = {part["name"]: part["time_share"] for part in found["components"]}
    assert sum(shares.values()) + found["other_time_share"] == pytest.approx(1)
    assert shares["diffusion.diff_estimator"] > 0
    assert shares["codec.decoder"] > 0
