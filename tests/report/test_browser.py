"""The page in Chromium, alone in a folder: it shows, it plays, it fetches nothing."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tts_compress.evaluation.result import Evaluation
from tts_compress.report import render_html

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PATHS = [path for path in map(shutil.which, _NAMES) if path]
# Chromium reads commands from descriptor 3 and answers on 4.
_REDIRECT = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
pytestmark = pytest.mark.skipif(not _PATHS, reason="Chromium is not installed")


class Browser:
    """Chromium without a window, steered through a pair of pipes by its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        into, self._to = os.pipe()
        self._from, out = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", _REDIRECT, str(into), str(out), _PATHS[0]),
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
                f"--user-data-dir={profile}",
            ],
            pass_fds=(into, out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(into)
        os.close(out)
        self._unread = b""
        self._session: str | None = None
        self._sent = 0
        self.events: list[dict[str, Any]] = []
        """Events of the open tab, such as requests and messages on the console."""

    def open_tab(self) -> None:
        """Turn to a new tab that knows nothing of those before it."""
        self._session, self.events = None, []
        context = self.call("Target.createBrowserContext")["browserContextId"]
        made = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        target = made["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self._context = context

    def close_tab(self) -> None:
        """Close it, with what it stored."""
        self._session = None
        self.call("Target.disposeBrowserContext", browserContextId=self._context)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                return dict(answer["result"])
            if self._session is not None and answer.get("sessionId") == self._session:
                self.events.append(answer)

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page; it counts as the reader's click."""
        answer = self.call(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + 30
        while not self.run(script):
            assert time.monotonic() < end, f"never: {script}"
            time.sleep(0.05)

    def close(self) -> None:
        """End the browser."""
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser ended"
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        return dict(json.loads(message))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.open_tab()
    yield chromium
    chromium.close_tab()


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
    assert browser.run("document.querySelectorAll('button.play').length") == 46
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


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
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
