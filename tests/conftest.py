"""Fixtures for every part of the suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def assets() -> Path:
    """Return the folder of recordings and voices that are too large for the repository.

    It is `TTS_COMPRESS_ASSETS`, or `shared/assets` beside the checkout; tests skip without it.
    """
    beside = Path(__file__).parents[2] / "shared" / "assets"
    folder = Path(os.environ.get("TTS_COMPRESS_ASSETS", beside))
    if not folder.is_dir():
        pytest.skip("no assets; set TTS_COMPRESS_ASSETS to their folder")
    return folder
