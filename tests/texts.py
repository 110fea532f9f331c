"""Calibration sets of a few texts."""

import json
from collections.abc import Sequence
from pathlib import Path

_CARD = 'card = { summary = "s", source = "tests", licence = "CC0-1.0", composition = "none" }\n'


def write_set(path: Path, texts: Sequence[str]) -> Path:
    """Write a calibration set in English that is named for its file."""
    head = f'version = 1\nname = "{path.stem}"\nlanguage = "en-us"\n'
    listed = json.dumps([*texts], ensure_ascii=False)
    path.write_text(f"{head}texts = {listed}\n{_CARD}", encoding="utf-8")
    return path
