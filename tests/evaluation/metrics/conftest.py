"""Packages whose networks are opened, which `make install` puts beside the other packages."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def listen() -> Iterator[Path]:
    """Have the wheels found that hold networks, and give their folder."""
    folder = Path(sys.prefix) / "listen"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder
