"""Pictures of every page of the inspector, light and dark: `make screenshots` puts them into docs/images."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, Page, ViewportSize

from clew import open_checkpointer
from tests.server.inspector.browsing import TOKEN, chromium_path, open_browser, running_service
from tests.server.inspector.looking import thread
from tests.server.inspector.showroom import MAIN, WAITING, fill_showroom

IMAGES = Path(__file__).parents[3] / "docs" / "images"
LARGEST = 250 * 1024


_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <match target="pattern">
    <test name="family" qual="any"><string>system-ui</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Inter</string><string>Liberation Sans</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>sans-serif</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Inter</string><string>Liberation Sans</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>ui-monospace</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Liberation Mono</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>SF Mono</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Liberation Mono</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>SFMono-Regular</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Liberation Mono</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>Menlo</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Liberation Mono</string></edit>
  </match>
  <match target="pattern">
    <test name="family" qual="any"><string>Consolas</string></test>
    <edit name="family" mode="prepend_first" binding="strong"><string>Liberation Mono</string></edit>
  </match>
</fontconfig>
"""
"""The pages take the fonts of the reader's system; those of a bare server would be a poor example."""


class Picture(NamedTuple):
    name: str
    path: str
    width: int = 1280
    height: int = 880
    signed_in: bool = True
    before: Callable[[Page], None] = lambda page: None


def _type_token(page: Page) -> None:
    page.get_by_test_id("token").fill("0123456789abcdef")


PICTURES = [
    Picture("threads", "/"),
    Picture("thread", thread(MAIN), height=1240),
    Picture("question", thread(WAITING), height=900),
    Picture("workspace", thread(MAIN, "/files?turn=3"), height=1000),
    Picture("entries", thread(MAIN, "/entries")),
    Picture("overview", "/overview", height=1000),
    Picture("login", "/login", height=560, signed_in=False, before=_type_token),
    Picture("phone", thread(MAIN), width=360, height=760),
]


def main(folder: Path) -> None:
    path = chromium_path()
    if path is None:
        sys.exit("No Chromium here: install Debian's `chromium`, or Google Chrome.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        store = f"sqlite:///{scratch}/clew.db"
        asyncio.run(_fill(store, Path(scratch) / "billing"))
        fonts = Path(scratch) / "fonts.conf"
        fonts.write_text(_FONTS)
        with running_service(store) as url, open_browser(path, {"FONTCONFIG_FILE": str(fonts)}) as browser:
            for picture in PICTURES:
                for scheme in ("light", "dark"):
                    _take(browser, url, picture, scheme, folder)


async def _fill(url: str, folder: Path) -> None:
    async with open_checkpointer(url) as store:
        await fill_showroom(store, folder)


def _take(browser: Browser, url: str, picture: Picture, scheme: str, folder: Path) -> None:
    size = ViewportSize(width=picture.width, height=picture.height)
    context = browser.new_context(
        viewport=size,
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-GB",
        reduced_motion="reduce",
        base_url=url,
    )
    try:
        page = context.new_page()
        if picture.signed_in:
            page.goto("/login")
            page.get_by_test_id("token").fill(TOKEN)
            page.get_by_test_id("sign-in").click()
            page.wait_for_url(f"{url}/")
        page.goto(picture.path)
        picture.before(page)
        target = folder / f"{picture.name}{'-dark' if scheme == 'dark' else ''}.png"
        page.wait_for_timeout(300)  # for the light that says Live
        page.screenshot(path=target)
    finally:
        context.close()
    bytes_ = target.stat().st_size
    assert bytes_ <= LARGEST, f"{target.name} has {bytes_} bytes"
    print(f"{target.name:28} {bytes_ // 1024:4} KiB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
