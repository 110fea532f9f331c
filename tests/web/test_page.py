"""The browser's example: it builds, speaks both voices, and says what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.web.players import HEADLESS, find_program, served, what_is_missing
from tests.browser import Browser

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
    assert len(re.findall(r'<audio[^>]* src="blob:', shown)) == 3
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


def test_the_first_sound_comes_long_before_the_whole(page: Path, tmp_path: Path) -> None:
    """In stages: at most 0.3 of the time that the same voice takes unsplit, and the same samples.

    Medians of runs that take turns, of the longest sentence, with the browser's own clock.
    """
    script = """(async () => {
      const ids = page.sentences.map((s) => s.ids).sort((a, b) => b.length - a.length)[0];
      const scales = [0, page.scales[1], 0]; // no noise: both say the same
      const shares = [];
      let off = 0;
      for (let run = 0; run < 5; run++) {
        const whole = await listen(voices[1], ids, scales);
        const parts = await listen(voices[2], ids, scales);
        shares.push(parts.first / whole.all);
        parts.sound.forEach((v, i) => (off = Math.max(off, Math.abs(v - whole.sound[i]))));
        if (parts.sound.length !== whole.sound.length) off = 2;
      }
      return { off, share: shares.sort((a, b) => a - b)[2] };
    })()"""
    browser = Browser(tmp_path / "profile")
    try:
        with served(page, page) as (url, _):
            browser.open_tab()
            browser.call("Page.navigate", url=url)
            browser.wait_for("document.getElementById('status')?.textContent === 'ready'")
            found = browser.run(script)
    finally:
        browser.close()
    assert found["off"] < 1e-5
    assert found["share"] <= 0.3
