"""A headless Chromium, driven through its DevTools protocol on two pipes: it needs neither a driver nor a port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 20.0


def chromium() -> str | None:
    """The browser of this machine: that in the variable CHROMIUM, or the first on the path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser process. Messages to and from it are JSON, each with a NUL at its end."""

    def __init__(self, program: str, profile: Path) -> None:
        to_browser, from_browser = os.pipe(), os.pipe()

        def pipes() -> None:  # the browser reads from 3 and writes to 4
            reading, writing = os.dup(to_browser[0]), os.dup(from_browser[1])
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self._process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "--hide-scrollbars", "about:blank"],
            preexec_fn=pipes, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser[0])
        os.close(from_browser[1])
        self._writing, self._reading = to_browser[1], from_browser[0]
        self._unread = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a method. What the browser says meanwhile goes to `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            found = self._read()
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._reading, 1 << 20)
            assert more, "the browser ended"
            self._unread += more
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(SECONDS)
        os.close(self._writing)
        os.close(self._reading)


class Tab:
    """A tab of the browser."""

    def __init__(
        self, browser: Browser, url: str, *, width: int = 1200, height: int = 900, dark: bool = False
    ) -> None:
        self._browser = browser
        self._target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=self._target, flatten=True)
        self._session = attached["sessionId"]
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression, in JSON."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression, as soon as it is true."""
        end = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            assert time.monotonic() < end, f"{script} is still {found!r} in {self.text()}"
            time.sleep(0.05)
        return found

    def text(self) -> str:
        """What the page shows."""
        return str(self.run("document.body?.innerText"))

    def shows(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.wait(f"document.body?.innerText.includes({json.dumps(text)})")

    def press(self, *keys: str) -> None:
        """Press keys, such as Tab, Enter, or letters."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
        for key in keys:
            code = codes.get(key, ord(key[0]))
            text = {"Tab": "", "Enter": "\r", "Escape": ""}.get(key, key)
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                          text=text if kind == "keyDown" else "")  # fmt: skip

    def names(self) -> list[tuple[str, str]]:
        """Role and accessible name of everything that is not hidden from assistive technology."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (each["role"]["value"], each.get("name", {}).get("value", ""))
            for each in nodes
            if not each["ignored"]
        ]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def problems(self) -> list[str]:
        """Errors on the console, such as of the Content-Security-Policy, and requests to others than the page's own server."""
        self.run("1")  # reads what was said
        own = [each for each in self._browser.events if each.get("sessionId") == self._session]
        said = [str(each["params"]) for each in own if each["method"] == "Runtime.exceptionThrown"]
        said += [
            str(each["params"]["entry"]) for each in own
            if each["method"] == "Log.entryAdded" and each["params"]["entry"]["level"] == "error"
        ]  # fmt: skip
        origin = self.run("location.origin")
        requests = (
            each["params"]["request"]["url"] for each in own if each["method"] == "Network.requestWillBeSent"
        )
        return said + [url for url in requests if not url.startswith((f"{origin}/", "data:", "about:"))]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
