"""Chromium as a person would use it, and `clew serve` in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

__all__ = ["TOKEN", "chromium_path", "open_browser", "running_service"]

TOKEN = "a-token-for-the-inspector"
_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium_path() -> str | None:
    """The browser of this system; none is ever downloaded."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path is not None), None)


@contextmanager
def open_browser(path: str, env: dict[str, str] | None = None) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        playwright.selectors.set_test_id_attribute("data-test")
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS, env={**os.environ, **(env or {})})
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def running_service(store: str, *, token: str = TOKEN) -> Iterator[str]:
    """The URL of a service for this store; without a token, whoever comes may do everything."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("CLEW_")}
    if token:
        env["CLEW_SERVE_TOKENS"] = token
    command = [sys.executable, "-m", "clew", "serve", "--port", "0", "--store", store, "--no-access-log"]
    command += [] if token else ["--no-token"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            events = (json.loads(line) for line in process.stderr)
            yield next(event["url"] for event in events if event["event"] == "listening")
        finally:
            process.kill()
