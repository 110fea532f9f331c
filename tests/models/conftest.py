"""Calibration sets for models of every kind."""

from pathlib import Path

import pytest

from tests.texts import write_set


@pytest.fixture
def ids_set(tmp_path: Path) -> Path:
    """Return a calibration set of eight texts of ids, which voices of every system take."""
    texts = [f"ids: {' '.join(str((n * k) % 60) for k in range(1, 20))}" for n in range(1, 9)]
    return write_set(tmp_path / "ids.toml", texts)
