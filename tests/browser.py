"""Chromium without a window, for tests of pages."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
PATHS = [path for path in map(shutil.which, _NAMES) if path]
# Chromium reads commands from descriptor 3 and answers on 4.
_REDIRECT = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """Chromium without a window, steered through a pair of pipes by its DevTools protocol."""

    def __init__(self, profile: Path) -> None:
        into, self._to = os.pipe()
        self._from, out = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", _REDIRECT, str(into), str(out), PATHS[0]),
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

    def keep_downloads(self, folder: Path) -> None:
        """Save what the tab downloads into a folder."""
        session, self._session = self._session, None
        self.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=self._context,
            downloadPath=str(folder),
        )
        self._session = session

    def type_key(self, key: str) -> None:
        """Press and release a key: a character, or `Enter` or `Tab`."""
        codes = {"Enter": (13, "\r"), "Tab": (9, "")}
        code, text = codes.get(key, (ord(key[0].upper()), key))
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

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
