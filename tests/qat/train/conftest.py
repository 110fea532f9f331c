"""A toy to train: see `toy.py`."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("accelerate")


@pytest.fixture(scope="session")
def toy_program() -> Path:
    """Return the toy as a program."""
    return Path(__file__).with_name("toy.py")


@pytest.fixture(scope="session")
def toy(toy_program: Path) -> Any:
    """Return what the program consists of."""
    return SimpleNamespace(**runpy.run_path(str(toy_program)))
