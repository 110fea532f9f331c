"""The browser's example: it builds, speaks both voices, and says what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.web.players import HEADLESS, find_program, served, what_is_missing

pytestmark = pytest.mark.slow

_EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := what_is_missing("chromium"):
        pytest.skip(reason)
    out = tmp_path_factory.mktemp("page") / "web"
    command = [sys.executable, str(_EXAMPLE / "build.py"), str(out)]
    # A scheme without calibration, which takes longer than all the rest.
    subprocess.run([*command, "--scheme", "int8-weight-only"], check=True, timeout=300)
    return out


def _shown(folder: Path, profile: Path) -> str:
    """Return the page's final content, with the clock of the page ahead of ours."""
    with served(folder, folder) as (url, _):
        command = [str(find_program("chromium")), *HEADLESS, f"--user-data-dir={profile}"]
        command += ["--virtual-time-budget=60000", "--dump-dom", f"{url}/#speak"]
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return run.stdout


def test_both_voices_speak(page: Path, tmp_path: Path) -> None:
    shown = _shown(page, tmp_path)
    assert re.search(r'id="status"[^>]*>done<', shown), shown
    assert len(re.findall(r'<audio[^>]* src="blob:', shown)) == 2
    assert re.findall(r'data-of="size">([\d.]+) MB<', shown)[0] == "9.59"
    assert "times smaller" in shown


def test_what_is_not_there_is_named(page: Path, tmp_path: Path) -> None:
    voice = page / "fp32" / "demo.onnx"
    kept = voice.rename(page / "elsewhere.onnx")
    try:
        shown = _shown(page, tmp_path)
    finally:
        kept.rename(voice)
    problem = "cannot start: fp32/demo.onnx cannot be fetched: the server answered 404"
    assert problem in shown
