"""The time spent in each component of GPT-SoVITS, as `inspect` shows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tts_compress.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def test_inspect_shows_every_components_share_of_the_time(
    tiny_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The language model is not called as a module; its share is there all the same."""
    assert main(["inspect", f"gpt-sovits:{tiny_config}", "--json", "--time"]) == 0
    found = json.loads(capsys.readouterr().out)
    shares = {part["name"]: part["time_share"] for part in found["components"]}
    assert sum(shares.values()) + found["other_time_share"] == pytest.approx(1)
    assert shares["t2s"] > 0
    assert shares["vits.dec"] > 0
