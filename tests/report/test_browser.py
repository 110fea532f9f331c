"""The page in Chromium, alone in a folder: it shows, it plays, it fetches nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser import PATHS, Browser
from tts_compress.evaluation.result import Evaluation
from tts_compress.report import render_html

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PATHS, reason="Chromium is not installed")]


Opened = Callable[[Evaluation], Browser]


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Opened:
    """Open the page of an evaluation from a folder that holds nothing else."""

    def open_page(evaluation: Evaluation) -> Browser:
        file = tmp_path / "alone" / "report.html"
        file.parent.mkdir()
        file.write_text(render_html(evaluation), encoding="utf-8")
        browser.call("Page.navigate", url=file.as_uri())
        browser.wait_for("document.readyState === 'complete' && document.title !== ''")
        return browser

    return open_page


def _problems(browser: Browser) -> list[str]:
    """Return messages on the console, exceptions, and requests for anything but the page."""
    found = []
    assert "Network.requestWillBeSent" in {event["method"] for event in browser.events}
    for event in browser.events:
        method, values = event["method"], event["params"]
        if method in {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}:
            found.append(json.dumps(values))
        if method == "Network.requestWillBeSent":
            url = values["request"]["url"]
            if not url.startswith("data:") and not url.endswith("/alone/report.html"):
                found.append(url)
    return found


def test_both_voices_play_and_one_goes_on_where_the_other_was(
    page: Opened, mailed: Evaluation
) -> None:
    """The keyboard does what the mouse does: what is pressed are buttons."""
    browser = page(mailed)
    assert browser.run("document.querySelectorAll('button.play').length") == 6
    browser.run(
        "window.row = document.querySelector('tr:has(audio)');"
        "window.own = [...row.querySelectorAll('audio')];"
        "window.press = [...row.querySelectorAll('button.play')]; press[0].click(); 0"
    )
    browser.wait_for("own[0].currentTime > 0.3")
    assert browser.run("own[0].readyState >= 2 && press[0].getAttribute('aria-pressed')") == "true"
    reached = browser.run("press[1].click(); own[0].currentTime")
    browser.wait_for(f"own[1].currentTime > {reached}")
    assert browser.run("own[0].paused && !own[1].paused")
    assert browser.run("press.map(one => one.getAttribute('aria-pressed')).join()") == "false,true"
    browser.run("press[1].click()")
    browser.wait_for("own[1].paused && press[1].getAttribute('aria-pressed') === 'false'")
    assert browser.run("row.querySelector('input[type=range]').value > 0.3")
    assert browser.run("document.activeElement.tagName; press[0].focus(); press[0].tabIndex") == 0
    assert _problems(browser) == []


def test_a_voice_stops_where_another_text_begins(page: Opened, mailed: Evaluation) -> None:
    browser = page(mailed)
    browser.run(
        "window.press = [...document.querySelectorAll('button.play')];"
        "window.players = [...document.querySelectorAll('audio')]; press[0].click(); 0"
    )
    browser.wait_for("players[0].currentTime > 0")
    browser.run("press[2].click()")
    browser.wait_for("players[2].currentTime > 0")
    assert browser.run("players.filter(one => !one.paused).length") == 1


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_it_fits_its_width_without_a_complaint(
    page: Opened, mailed: Evaluation, width: int, scheme: str, browser: Browser
) -> None:
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=width,
        height=900,
        deviceScaleFactor=1,
        mobile=False,
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    page(mailed)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert _problems(browser) == []


def test_a_missing_file_is_said_to_be_missing(page: Opened, evaluation: Evaluation) -> None:
    """Audio that was only kept beside the page, which was opened alone."""
    browser = page(evaluation)
    browser.run("document.querySelector('button.play').click()")
    browser.wait_for("document.querySelector('.absent') !== null")
    note = browser.run("document.querySelector('.absent').textContent")
    assert note.startswith("no audio file wav/")
