"""Outputs of a tiny model that users see, compared before and after a refactoring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.snapshot


def test_every_scheme(snapshot: Any, tiny_f5_dir: Path, write_texts: Callable[..., str]) -> None:
    texts = write_texts(["hello there", "one more"])
    snapshot.add_family("f5-tts", f"f5-tts:{tiny_f5_dir}?nfe_step=4", texts)
