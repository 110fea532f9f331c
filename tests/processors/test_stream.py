"""A voice in stages says what the whole says, bit for bit, on processors of other kernels, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processors.emulation import NATIVE, Processor
from tts_compress.export.stream import export_stream
from tts_compress.models import load

pytestmark = pytest.mark.processors

_STITCHER = Path(__file__).with_name("stitcher.py")


def test_stitched_integers_are_the_whole(
    compressed: Callable[[str], Path], haswell: Processor, tmp_path: Path
) -> None:
    voice: Any = load(compressed("int8"))
    export_stream(voice, tmp_path / "stages")
    for processor in (NATIVE, haswell):
        assert not processor.run([_STITCHER, tmp_path / "stages"])
