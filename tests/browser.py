"""A headless Chromium, driven through a pipe in its own protocol: nothing to install but Debian's package.

`find_chromium` says where it is. Where there is none a test that needs it is skipped and says so, unless
OUTRIDER_NEEDS_BROWSER is set, as `.ci/run` does where it can install one.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--hide-scrollbars")
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None and os.environ.get("OUTRIDER_NEEDS_BROWSER"):
        pytest.fail("this run must have a Chromium: apt-get install chromium-headless-shell")
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium-headless-shell")
    return found


class Browser:
    """A running browser; its messages are JSON, each ended by a NUL."""

    def __init__(self, profile: Path) -> None:
        arguments = [find_chromium(), *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # What the browser reads and writes must be its descriptors 3 and 4, so ours are far from there.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for pipe in (os.pipe(), os.pipe()) for end in pipe]
        its_in, self._out, self._in, its_out = ends
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(its_in), str(its_out), *arguments],
            pass_fds=(its_in, its_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(its_in)
        os.close(its_out)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        os.write(self._out, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            got = self._read()
            if got.get("id") == self._number:
                assert "error" not in got, f"{method}: {got['error']}"
                return dict(got["result"])
            self.events.append(got)

    def wait_for(self, method: str, session: str) -> None:
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._in, 1 << 16)
            assert part, "the browser ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        os.close(self._out)
        os.close(self._in)


class Page:
    """A page in a window of its own."""

    def __init__(self, browser: Browser, file: Path, width: int, height: int, dark: bool) -> None:
        self._browser = browser
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")
        self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        self._ask("Page.navigate", url=file.as_uri())
        browser.wait_for("Page.loadEventFired", self._session)

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **params)

    def run(self, script: str) -> Any:
        """The value of an expression."""
        found = self._ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def settle(self) -> None:
        """Two frames later, when what was shown lazily is there."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def point_at(self, selector: str, index: int = 0) -> None:
        """Move the mouse over the middle of an element's first line."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelectorAll({selector!r})[{index}]; "
            "e.scrollIntoView({block: 'center'}); "
            "const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, *keys: str) -> None:
        for key in keys:
            self._ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
            self._ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    @property
    def faults(self) -> list[str]:
        """What went wrong: errors in the console, and anything that was asked of a network."""
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
                found.append(params["request"]["url"])
        return found


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    browser = Browser(profile)
    try:
        yield browser
    finally:
        browser.close()
