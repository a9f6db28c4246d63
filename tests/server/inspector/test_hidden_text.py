"""Texts of a thread in the inspector: no control character reaches a page, none is hidden, none breaks the live stream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from clew import Thread, open_checkpointer
from clew.agent.settings import Setup, keep_setup
from clew.checkpointers.http.events import event
from clew.log import MessageAdded
from clew.messages import assistant, user
from tests.hidden_text import OBEYED, write_everywhere
from tests.limits import PATIENCE
from tests.server.inspector.looking import thread
from tests.server.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

TEXT = "a\x1b]0;owned\x07\x9b31m\u202eback\u2066\u2028\u0085\x7f\u200f\U000e0041z"
SHOWN = "a\\x1b]0;owned\\x07\\x9b31m\\u202eback\\u2066\\u2028\\x85\\x7f\\u200f\\U000e0041z"


def test_no_page_holds_a_control_character_and_all_text_is_shown(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    asyncio.run(write_everywhere(url, TEXT))
    with serving(url) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        pages = ("/", "/overview", *(thread(TEXT, rest) for rest in ("", "/entries", "/describe", "/fork?turn=1")))
        for page in (*pages, thread(f"{TEXT}?")):
            text = client.get(page).text
            assert OBEYED.search(text) is None, page
            if page in pages and page != "/overview":
                assert SHOWN in text, page


async def test_no_text_breaks_the_live_stream(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    read = b""
    with serving(url) as running:
        client = httpx.AsyncClient(base_url=running.url, timeout=PATIENCE)
        async with client, open_checkpointer(url) as store, Thread.open(store, "t") as opened:
            await opened.append(MessageAdded(user("q")), MessageAdded(assistant("first")))
            async with client.stream("GET", thread("t", f"/events?frames={opened.head.frames}")) as events:
                await opened.append(MessageAdded(user("again")), MessageAdded(assistant(TEXT)))
                async for part in events.aiter_raw():
                    read += part
                    if b"data: " in read and read.endswith(b"\n\n"):
                        break
    (data,) = (line.removeprefix(b"data: ") for line in read.split(b"\n") if line.startswith(b"data: "))
    patches = {each["id"]: each["html"] for each in json.loads(data)}
    assert SHOWN in patches["p1"]


def test_only_a_line_feed_breaks_the_data_of_an_event() -> None:
    assert event("rows", "a\u2028b\u0085c\x0bd\ne") == "event: rows\ndata: a\u2028b\u0085c\x0bd\ndata: e\n\n".encode()


async def test_the_setup_in_force_is_on_the_page_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    prompt = "Be kind. " * 10_000 + "THE END"
    async with open_checkpointer(url) as store:
        setup = Setup(model="m", tools=("evil:boom",), mcp=("sh -c 'boom'",), permissions="full", system=prompt)
        await keep_setup(store, "t", setup)
        async with Thread.open(store, "t") as opened:
            await opened.fork("folded")
    with serving(url) as running:
        for thread_id in ("t", "folded"):
            page = httpx.get(running.url + thread(thread_id), timeout=PATIENCE).text
            for text in ("evil:boom", "sh -c &#39;boom&#39;", prompt, "run any command"):
                assert text in page
