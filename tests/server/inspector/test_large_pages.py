"""Large threads in the inspector: a page has a bounded size, takes bounded memory, and keeps no other request waiting."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from clew import Thread, open_checkpointer
from clew._runtime.text import one_line
from clew.checkpointers import Checkpointer, MemoryCheckpointer
from clew.log import MessageAdded, StateSet, StatusChanged
from clew.messages import Image, assistant, user
from clew.server.inspector import live, pages
from clew.server.inspector.entries_page import entries_page, read_stretch
from clew.server.inspector.visits import Turns, Viewer
from tests.limits import PATIENCE
from tests.server.inspector.looking import thread
from tests.server.serving import a_token, serving

pytestmark = [pytest.mark.anyio, pytest.mark.attack]
T = TypeVar("T")

HIDDEN = "\u202e\x1b"
"""Characters that take the most room once they are made visible."""
MARKDOWN = "**a** [x](y) `c` " * 60 + "\n\n| a | b |\n|---|---|\n| c | d |\n\n> > > q\n\n* * *\n1. x\n"


async def memory(work: Callable[[], Awaitable[T]]) -> tuple[T, int]:
    """Do this work; return its result, and the most memory that it took on top of what was taken before, in bytes."""
    tracemalloc.start()
    try:
        return await work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_a_line_about_a_long_text_takes_no_memory_for_all_of_it() -> None:
    async def line() -> str:
        return one_line(text, 160)

    text = HIDDEN * 2_000_000
    made, taken = await memory(line)
    assert len(made) == 160
    assert made.endswith("…")
    assert taken < 2**18


def test_a_line_whose_text_goes_on_behind_white_space_says_that_it_was_cut() -> None:
    assert one_line(f"a{' ' * 1000}b", 20) == "a…"
    assert one_line(f"a{' ' * 50}b", 20) == "a b"


async def test_the_entries_of_a_large_text_take_little_memory_besides_the_text() -> None:
    size = 4_000_000
    async with MemoryCheckpointer() as store:
        await write(store, "t", HIDDEN * size)

        async def page() -> str:
            head = await store.head("t")
            assert head is not None
            return entries_page(Viewer(), head, 0, await read_stretch(store, head, 0))

        made, taken = await memory(page)
    assert HIDDEN not in made
    assert len(made) < 500_000
    assert taken < 12 * len((HIDDEN * size).encode())  # to decode it takes most of this


async def test_of_the_frames_of_a_page_one_at_a_time_is_in_memory() -> None:
    async def page() -> None:
        head = await store.head("t")
        assert head is not None
        assert len(await read_stretch(store, head, 0)) > 30

    async with MemoryCheckpointer() as store:
        text = "x" * 2_000_000
        for number in range(16):
            await write(store, "t", f"{number}{text}")
        _, taken = await memory(page)
    assert taken < 12 * len(text)


async def test_the_entries_of_a_page_have_a_bounded_size_and_the_rest_is_a_click_away(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store, Thread.open(store, "t") as opened:
        for start in range(0, 30_000, 10_000):
            await opened.append(*(StateSet(f"k{number}", [number] * 50) for number in range(start, start + 10_000)))
        last = opened.head.frames - 1
    with serving(url) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        page = client.get(thread("t", "/entries")).text
        assert len(page) < 4_000_000
        assert "more entries" in page
        assert f'href="{thread("t", f"/entries?start={last}")}"' in page
        assert "k20000" not in page
        assert "k20000" in client.get(thread("t", f"/entries?start={last}")).text


async def write(store: Checkpointer, thread_id: str, *texts: str) -> None:
    async with Thread.open(store, thread_id) as opened:
        for text in texts:
            await opened.append(MessageAdded(user(text)), MessageAdded(assistant("Yes.")))


async def test_a_page_of_many_long_turns_has_a_bounded_size_and_each_turn_opens_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store, Thread.open(store, "t") as opened:
        for number in range(40):
            text = f"{MARKDOWN * 60}\n\nThe end of turn {number + 1}."
            await opened.append(MessageAdded(user(f"Question {number + 1}")), MessageAdded(assistant(text)))
    with serving(url) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        for page in (client.get(thread("t")).text, client.get(thread("t", "/turns?start=0&stop=40")).text):
            assert len(page) < 2_500_000
            assert page.count('data-test="turn"') == 40
            assert "Shown in part." in page
            assert f'href="{thread("t", "?at=0#p0")}"' in page
            assert "The end of turn 1." not in page
        assert "Question 40" in page
        opened_page = client.get(thread("t", "?at=0")).text
        assert "The end of turn 1." in opened_page
        assert len(opened_page) < 2_500_000


async def test_ordinary_turns_are_shown_whole(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store:
        await write(store, "t", *["An ordinary question. " * 100] * 30)
        async with Thread.open(store, "t") as opened:
            await opened.append(MessageAdded(user(Image("image/png", b"x" * 2**20))), MessageAdded(assistant("A cat.")))
    with serving(url) as running:
        page = httpx.get(running.url + thread("t"), timeout=PATIENCE).text
    assert 'data-test="image"' in page
    assert 'data-test="in-part"' not in page


async def test_a_page_has_few_images_and_few_marks_however_many_there_are(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store, Thread.open(store, "t") as opened:
        images = [Image("image/png", bytes([number]) + bytes(3 * 2**20)) for number in range(40)]
        await opened.append(MessageAdded(user(*images)), MessageAdded(assistant("A cat.")))
        await opened.append(*(StatusChanged("failed", "because " * 1_000) for _ in range(3_000)))
        await opened.append(StatusChanged("failed", "x" * 2_000_000))
    with serving(url) as running:
        for rest in ("", "?at=0"):
            page = httpx.get(running.url + thread("t", rest), timeout=PATIENCE).text
            assert page.count('data-test="mark"') <= 400
            assert len(page) < 48 * 2**20
            assert "shown in part" in page.lower()


@pytest.fixture
def made_in(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the OS threads that make pages."""
    names: set[str] = set()

    def watched(module: Any, name: str) -> None:
        plain = getattr(module, name)

        def watch(*given: Any, **options: Any) -> Any:
            names.add(threading.current_thread().name)
            return plain(*given, **options)

        monkeypatch.setattr(module, name, watch)

    for name in ("thread_page", "window_html", "entries_page", "overview_page"):
        watched(pages, name)
    for name in ("turn_html", "facts_html"):
        watched(live, name)
    return names


@pytest.mark.parametrize("path", ["", "/turns?start=0&stop=2", "/entries", "/events?frames=1", "overview"])
async def test_pages_are_made_beside_the_event_loop(path: str, made_in: set[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store:
        await write(store, "t", "Who?", "Where?")
    with serving(url) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        where = "/overview" if path == "overview" else thread("t", path)
        with client.stream("GET", where) as answer:
            assert next(answer.iter_raw())
    assert made_in
    assert all(name.startswith("asyncio_") for name in made_in), made_in


async def test_few_pages_are_made_at_once_with_however_many_tokens() -> None:
    turns, now, most = Turns(), [], 0
    tokens = [a_token(f"token number {number}") for number in range(6)]

    async def page(number: int) -> None:
        nonlocal most
        async with turns.of(tokens[number % 6]):
            assert tokens[number % 6] not in now
            now.append(tokens[number % 6])
            most = max(most, len(now))
            await asyncio.sleep(0)
            now.remove(tokens[number % 6])

    await asyncio.gather(*map(page, range(30)))
    assert most == 2
