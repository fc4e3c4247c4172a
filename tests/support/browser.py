"""A headless Chromium, driven over its DevTools protocol: enough to look at a page, press keys, and take its picture."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import connect


class Browser:
    """One tab of a browser of its own, which remembers nothing."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        command = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert command, "Chromium is not installed; on Debian: apt-get install chromium"
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
        ]
        self._process = subprocess.Popen(
            [command, *options, "--remote-debugging-port=0", f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"TMPDIR": self._folder},
        )
        self._numbers = itertools.count(1)
        #: What the page has logged as an error, such as something that its policy forbids.
        self.errors: list[str] = []
        self._open = contextlib.ExitStack()
        self._socket = self._open.enter_context(connect(self._address(), max_size=None))
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # All of its processes end, and write nothing into the folder any more.
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        self._open.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _address(self) -> str:
        port, end = Path(self._folder) / "DevToolsActivePort", time.monotonic() + 60
        while not (port.exists() and port.read_text().strip()):
            assert time.monotonic() < end, "Chromium did not start in a minute"
            time.sleep(0.1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json", timeout=30) as reply:
            return next(target["webSocketDebuggerUrl"] for target in json.load(reply) if target["type"] == "page")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            said = json.loads(self._socket.recv(60))
            self._note(said)
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                return said["result"]

    def _note(self, said: dict[str, Any]) -> None:
        if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            entry = said["params"]["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(said["params"]["exceptionDetails"]))

    def sign_in(self, url: str, token: str) -> None:
        """Carry a token as Airflow's own pages do."""
        self.call("Network.setCookie", name="_token", value=token, url=url, httpOnly=True, sameSite="Lax")

    def sign_out(self) -> None:
        self.call("Network.clearBrowserCookies")

    def resize(self, width: int, height: int) -> None:
        """The window's size; below 600 a phone's."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def prefer(self, scheme: str) -> None:
        """The colour scheme that the system prefers."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url: str, ready: str = "document.readyState === 'complete'") -> None:
        """Go to a page, and wait until an expression holds."""
        self.call("Page.navigate", url=url)
        self.wait(f"location.href !== 'about:blank' && ({ready})")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", **parameters)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 30) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + timeout_s
        while True:
            answer = self.call("Runtime.evaluate", expression=f"!!({expression})", returnByValue=True, awaitPromise=True)
            if answer["result"].get("value") is True:
                return
            assert time.monotonic() < end, f"not in {timeout_s} s: {expression}\n{answer}\n{self.errors}\n{self.text()[:2000]}"
            time.sleep(0.1)

    def text(self) -> str:
        """What can be read in the page, in its frame if it has one."""
        return str(self.run("(document.querySelector('iframe')?.contentDocument ?? document).body.innerText"))

    def press(self, *keys: str) -> None:
        """Press keys one after the other, by their names."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
        for key in keys:
            facts = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
            if key == "Enter":
                facts["text"] = "\r"
            self.call("Input.dispatchKeyEvent", type="keyDown", **facts)
            self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, in the frame if the page has one."""
        place = self.run(
            f"""(() => {{
                const frame = document.querySelector('iframe');
                const found = (frame?.contentDocument ?? document).querySelector({json.dumps(selector)});
                found.scrollIntoView({{block: 'center'}});
                // A link that is broken has a box for each line.
                const box = found.getClientRects()[0], outer = frame?.getBoundingClientRect() ?? {{left: 0, top: 0}};
                return [outer.left + box.left + box.width / 2, outer.top + box.top + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Take a picture of what is seen, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))
