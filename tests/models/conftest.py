"""Calibration sets for models of every kind."""

from pathlib import Path

import pytest


@pytest.fixture
def ids_set(tmp_path: Path) -> Path:
    """Return a calibration set of eight texts of ids, which voices of every system take."""
    path = tmp_path / "ids.toml"
    texts = [f"ids: {' '.join(str((n * k) % 60) for k in range(1, 20))}" for n in range(1, 9)]
    path.write_text(
        f'version = 1\nname = "ids"\nlanguage = "en-us"\ntexts = {texts}\n'.replace("'", '"')
        + '[card]\nsummary = "s"\nsource = "s"\nlicence = "s"\ncomposition = "s"\n',
        encoding="utf-8",
    )
    return path
