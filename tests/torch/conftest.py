"""One thread for everything here."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Compute as `one_thread` says."""
