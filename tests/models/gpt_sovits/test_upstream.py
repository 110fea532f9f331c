"""The side effects of importing GPT-SoVITS' modules are undone."""

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tts_compress.models.checkout import Checkout
from tts_compress.models.gpt_sovits import GPT_SOVITS

_SPEAKER = """
import logging, os, sys
logging.getLogger().setLevel(logging.DEBUG)
logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
sys.path.append(f"{os.getcwd()}/GPT_SoVITS/tuba_parts")
from tuba_part import PART
ARGUMENTS = sys.argv[1:]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    """Return a clone of its shape whose module appends a folder and sets up the logging."""
    parts = tmp_path / "GPT_SoVITS" / "tuba_parts"
    parts.mkdir(parents=True)
    (tmp_path / "GPT_SoVITS" / "tuba_speaker.py").write_text(_SPEAKER)
    (parts / "tuba_part.py").write_text("PART = 3")
    yield Checkout(upstream=replace(GPT_SOVITS, modules=("tuba_speaker",)), root=tmp_path)
    for name in ("tuba_speaker", "tuba_part"):
        sys.modules.pop(name, None)


def test_process_is_given_back(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Upstream reads its language from the last argument, and appends to the path on its own."""
    monkeypatch.setattr(sys, "argv", ["tts-compress", "quantize", "en_US"])
    log = logging.getLogger()
    before = Path.cwd(), list(sys.path), list(sys.argv), list(log.handlers), log.level
    module = checkout.load("tuba_speaker")
    assert (module.PART, module.ARGUMENTS) == (3, [])
    after = Path.cwd(), list(sys.path), list(sys.argv), list(log.handlers), log.level
    assert after == before
    assert not any(Path(entry).is_relative_to(tmp_path) for entry in sys.path if entry)


@pytest.mark.skipif(GPT_SOVITS.variable not in os.environ, reason=f"{GPT_SOVITS.variable} not set")
def test_modules_are_all_that_lie_where_upstream_looks() -> None:
    """A module that is not listed could be taken from another system, or be taken for one's."""
    root = Path(os.environ[GPT_SOVITS.variable])
    folders = [root / part for part in GPT_SOVITS.paths]
    folders += [root / "GPT_SoVITS/eres2net", root / "tools/AP_BWE_main"]
    found = {
        path.name.removesuffix(".py")
        for folder in folders
        for path in folder.iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
    }
    programs = {
        name
        for name in found
        if name.startswith(("api", "inference_", "export_", "s1_", "s2_", "stream_", "onnx_"))
    }
    assert found - programs <= {*GPT_SOVITS.modules, *_NEVER_IMPORTED}


_NEVER_IMPORTED = {"24kto48k", "Docker", "download", "prepare_datasets", "webui"}
"""Programs and data."""
