"""The page of a listening test, and the command that reads what it saves."""

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.browser import PATHS, Browser
from tts_compress.audio import Audio, write_float_wav
from tts_compress.cli import main
from tts_compress.evaluation.listening import ListeningTest
from tts_compress.evaluation.page_audio import make_test
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import write_report
from tts_compress.report.pages import render_listening_page

_SECRETS = ("reference", "candidate", "catch", "damaged")
_needs_chromium = pytest.mark.skipif(not PATHS, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def test(tmp_path_factory: pytest.TempPathFactory) -> ListeningTest:
    """Sixteen pairs of tones and four damaged copies; one more pair is identical."""
    folder = tmp_path_factory.mktemp("sounds")
    files: dict[str, Path] = {}
    for pitch, length in ((p, n) for n in range(17) for p in (220, 330)):
        times = np.arange(2400 + 100 * length) / 8000
        samples = 0.2 * np.sin(2 * np.pi * pitch * times)
        files[f"{pitch}-{length}"] = folder / f"{pitch}-{length}.wav"
        audio = Audio(samples=samples.astype(np.float32), sample_rate=8000)
        write_float_wav(files[f"{pitch}-{length}"], audio)
    pairs: list[Any] = [
        SimpleNamespace(
            index=n,
            seed=0,
            audio={"reference": f"220-{n}", "candidate": f"{330 if n else 220}-{n}"},
            seconds=dict.fromkeys(("reference", "candidate"), 0.3 + 0.0125 * n),
        )
        for n in range(17)
    ]
    made = make_test(("a", "b", "c"), pairs, files)
    assert made is not None
    return made


@pytest.fixture
def page(browser: Browser, test: ListeningTest, tmp_path: Path) -> Browser:
    file = tmp_path / "alone" / "listening-test.html"
    file.parent.mkdir()
    file.write_text(render_listening_page(test), encoding="utf-8")
    browser.call("Page.navigate", url=file.as_uri())
    browser.wait_for("document.readyState === 'complete'")
    browser.keep_downloads(tmp_path)
    return browser


def _listen(page: Browser, trials: int) -> None:
    """Do the trials by the keyboard: play all three, answer right, go on.

    X is known by the sound of both files, as the page must make X one of them.
    """
    for number in range(1, trials + 1):
        page.wait_for(f"document.activeElement.textContent === 'Pair {number} of {trials}'")
        page.type_key("1")  # before anything was heard: no answer
        assert page.run("document.getElementById('next').disabled")
        for key in "abx":
            page.type_key(key)
            page.wait_for(f"document.querySelector('[value={key}].play').ariaPressed === 'true'")
        shown = page.run("document.body.innerText").lower()
        assert not [secret for secret in _SECRETS if secret in shown]
        sources = page.run("window.created.slice(-3)")
        page.type_key("1" if sources[2] == sources[0] else "2")
        assert page.run("document.activeElement.id") == "next"
        page.type_key("Enter")


def _saved(page: Browser, folder: Path) -> Path:
    page.wait_for("document.activeElement.id === 'save'")
    page.type_key("Enter")
    end = time.monotonic() + 30
    while not (found := list(folder.glob("listening-*.json"))):
        assert time.monotonic() < end, "nothing was saved"
        time.sleep(0.05)
    return found[0]


_NOTE_SOUNDS = (
    "window.created = []; window.Audio = new Proxy(Audio, {construct(kind, [source]) "
    "{ created.push(source); return new kind(source); }}); 0"
)


@pytest.mark.slow
@_needs_chromium
def test_twenty_trials_by_the_keyboard_and_the_command_joins_them(
    page: Browser, test: ListeningTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page.run(_NOTE_SOUNDS)
    page.type_key("Tab")
    assert page.run("document.activeElement.id") == "name"
    for key in "Ada":
        page.type_key(key)
    page.type_key("Enter")
    _listen(page, 20)
    file = _saved(page, tmp_path)
    document = json.loads(file.read_text(encoding="utf-8"))
    assert (document["test"], document["listener"]) == (test.test, "Ada")
    trials = document["trials"]
    assert [trial["plays"] for trial in trials] == [{"a": 1, "b": 1, "x": 1}] * 20
    assert all(trial["seconds"] > 0 for trial in trials)
    asked = {(pair.index, pair.seed, pair.catch) for pair in test.pairs}
    heard = [(trial["index"], trial["seed"], trial["catch"]) for trial in trials]
    assert set(heard) == asked
    assert heard != sorted(heard)
    for letter in ("reference", "x"):
        assert {trial[letter] for trial in trials} == {"a", "b"}
    assert main(["listening", str(file)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "Ada: 16 of 16 right"
    assert told[1] == "pairs that are identical, and were not asked: 1"
    assert told[2].startswith("a difference is heard: 16 of 16 right (79 to 100 %;")
    requests = [e["params"]["request"]["url"] for e in page.events if "requestWill" in e["method"]]
    assert [url for url in requests if not url.startswith(("data:", "file:"))] == []
    complaints = {"Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"}
    assert [event for event in page.events if event["method"] in complaints] == []


@pytest.mark.slow
@_needs_chromium
def test_every_part_fits_a_phone_and_is_large_enough_for_a_finger(page: Browser) -> None:
    size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    for part in ("start", "trial", "end"):
        page.run(
            "for (const part of ['start', 'trial', 'end'])"
            f" document.getElementById(part).hidden = part !== '{part}'; 0"
        )
        assert page.run("document.documentElement.scrollWidth") <= 360
        sizes = page.run(
            "[...document.querySelectorAll('button, input, a')].filter(e => e.offsetParent)"
            ".map(e => e.offsetHeight)"
        )
        assert min(sizes) >= 44


@pytest.mark.slow
@_needs_chromium
def test_a_key_goes_on_where_the_other_sound_is(page: Browser) -> None:
    """And begins at the start where none plays; the same key stops."""
    page.run(
        "window.all = []; window.Audio = new Proxy(Audio, {construct(kind, [source]) "
        "{ all.push(new kind(source)); return all.at(-1); }});"
        "document.getElementById('start').requestSubmit(); 0"
    )
    page.run(
        "for (const player of all) { player.playbackRate = 0.1;"
        " player.addEventListener('play', () => { window.began = player.currentTime; }); } 0"
    )
    page.type_key("a")
    page.wait_for("all[0].currentTime > 0.05")
    page.type_key("x")
    page.wait_for("!all[2].paused && all[0].paused")
    page.wait_for("began > 0.05")
    page.type_key("x")
    page.wait_for("all[2].paused")
    page.type_key("b")
    page.wait_for("!all[1].paused && began === 0")


@pytest.mark.usefixtures("undrawn")
def test_the_page_is_written_beside_the_report_where_it_was_asked_for(
    evaluation: Evaluation, test: ListeningTest, tmp_path: Path
) -> None:
    asked = evaluation.model_copy(update={"listening": test})
    write_report(asked, tmp_path)
    assert (tmp_path / "listening-test.html").read_text("utf-8") == render_listening_page(test)
    assert "listening" not in json.loads((tmp_path / "report.json").read_text("utf-8"))
