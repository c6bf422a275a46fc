"""Chromium by chromedriver's protocol: pages at a width, light or dark, and what they log."""

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
from ports import free_port, until_healthy

PROGRAMS = [shutil.which(name) for name in ("chromium", "chromedriver")]
needs_chromium = pytest.mark.skipif(not all(PROGRAMS), reason="needs Chromium and its driver")
ARGUMENTS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync")
ARGUMENTS += ("--disable-background-networking", "--disable-component-update")


class Browser:
    """A Chromium with a profile of its own; enter it as a context."""

    def __init__(self, profile: Path) -> None:
        self.profile = profile

    def __enter__(self) -> Self:
        self.port = free_port()
        words = ["chromedriver", f"--port={self.port}"]
        self.driver = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        arguments = [*ARGUMENTS, f"--user-data-dir={self.profile}"]
        options = {"args": arguments, "binary": PROGRAMS[0]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        until_healthy(f"http://127.0.0.1:{self.port}/status", self.driver)
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{made['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body or {}).encode() if method == "POST" else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["value"]

    def command(self, name: str, **parameters: object) -> Any:
        """Run a command of the DevTools protocol."""
        body = {"cmd": name, "params": parameters}
        return self._call("POST", f"{self.session}/goog/cdp/execute", body)

    def run(self, script: str) -> Any:
        """Run JavaScript in the page, and return what it returns."""
        return self._call("POST", f"{self.session}/execute/sync", {"script": script, "args": []})

    def open(self, page: Path, width: int, is_dark: bool = False) -> None:
        """Open a page of this width, and wait until its charts are drawn."""
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self._call("POST", f"{self.session}/url", {"url": page.absolute().as_uri()})
        deadline = time.monotonic() + 120
        while self.run("return document.documentElement.dataset.charts") != "drawn":
            assert time.monotonic() < deadline, f"{page}: no charts; {self.messages()}"
            time.sleep(0.1)

    def messages(self) -> list[str]:
        """Warnings and errors of the console since the last call."""
        rows = self._call("POST", f"{self.session}/se/log", {"type": "browser"})
        return [row["message"] for row in rows if row["level"] in ("WARNING", "SEVERE")]
