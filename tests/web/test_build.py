"""The build of the browser's example refuses voices of which its page could not start."""

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tts_compress.errors import ModelError

_BUILD = Path(__file__).parents[2] / "examples" / "web" / "build.py"


def test_a_voice_of_many_speakers_is_refused(choir_path: Path, tmp_path: Path) -> None:
    """Its page did not start: it gave no speaker."""
    build: Any = run_path(str(_BUILD))["build"]
    build.__globals__["compress"] = lambda *_, **__: pytest.fail("it was not refused")
    with pytest.raises(ModelError, match="has 3 speakers, and the page cannot choose one"):
        build(str(choir_path), "int8", tmp_path / "page", typed=False)
