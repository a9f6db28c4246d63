"""What the pages show, over HTTP: threads, a thread, its files and entries, the overview, and what goes wrong."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from clew import Agent, Budget, Thread, tool
from clew.checkpointers import Checkpointer, open_checkpointer
from clew.checkpointers.registry import default_url
from clew.log import MessageAdded, ToolIntent, ToolOutcome
from clew.messages import Assistant, Json, ToolCall, ToolResult, assistant, user
from clew.server.inspector.text import pretty
from clew.server.inspector.visits import HEADERS, _store_for_commands
from clew.server.request import Request
from clew.server.settings import Settings
from clew.testing import ScriptedModel, call
from clew.workers import enqueue
from tests.limits import PATIENCE
from tests.server.inspector.looking import HOSTILE, PIXEL, fill, in_store, thread
from tests.server.serving import serving
from tests.sqlite_files import database

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("inspector")
    made = f"sqlite:///{folder}/c.db"
    in_store(made, lambda store: fill(store, folder / "files"))
    return made


@pytest.fixture(scope="module")
def browser(url: str) -> Iterator[httpx.Client]:
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        yield client


PAGES = [
    "/",
    "/overview",
    "/login",
    thread("trip"),
    thread("hostile"),
    thread("hostile", "/entries"),
    thread("trip", "/files"),
    thread("trip", "/fork?turn=1"),
    thread("trip", "/rewind?turn=1"),
    thread("trip", "/describe"),
    thread("nobody"),
    "/?status=nonsense",
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.attack
def test_every_page_has_the_strict_policy_and_nothing_inline(browser: httpx.Client, page: str) -> None:
    shown = browser.get(page)
    assert {name: shown.headers[name] for name in HEADERS} == HEADERS
    assert "style=" not in shown.text
    assert "<script>" not in shown.text
    assert " onerror=" not in shown.text.replace("&lt;img src=x onerror=", "")
    assert "http://" not in shown.text.replace("http://www.w3.org", "")


def test_the_threads_are_listed_with_what_their_heads_say(browser: httpx.Client) -> None:
    page = browser.get("/").text
    assert page.count('data-test="thread-row"') == 7
    for text in (
        "A trip",
        "ada",
        "m-1",
        "$1.00",
        "team=x",
        "trip-fork",
        'data-status="waiting"',
        'data-status="crashed"',
    ):
        assert text in page, text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("q=TRIP", {"trip", "trip-fork"}),
        ("q=a+TRI", {"trip", "trip-fork"}),
        ("status=failed", {"hostile"}),
        ("agent=ada&status=done", {"trip"}),
        ("tags=team%3Dx&order=created", {"trip", "trip-fork"}),
        ("parent=trip", {"trip-fork"}),
        ("q=nothing-like-it", set()),
    ],
)
def test_threads_are_found_by_text_status_agent_tags_and_parent(
    browser: httpx.Client, query: str, found: set[str]
) -> None:
    page = browser.get(f"/?{query}").text
    assert page.count('data-test="thread-row"') == len(found)
    for name in found:
        assert f'data-href="{thread(name)}"' in page


def test_a_damaged_thread_is_named_beside_the_others(tmp_path: Path) -> None:
    async def some(store: Checkpointer) -> None:
        for name in ("first", "<second>", "third"):
            async with Thread.open(store, name) as opened:
                await opened.append(MessageAdded(user(f"task {name}")))

    url = f"sqlite:///{tmp_path}/c.db"
    in_store(url, some)
    with database(tmp_path / "c.db") as db:
        db.execute("UPDATE heads SET head = x'00' WHERE thread_id = '<second>'")
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        for page in ("/", "/overview", "/?q=task"):
            shown = client.get(page)
            assert shown.status_code == 200
            assert 'data-test="damage"' in shown.text
            assert "&lt;second&gt;" in shown.text
            assert page == "/overview" or shown.text.count('data-test="thread-row"') == 2


def test_threads_come_in_pages(tmp_path: Path) -> None:
    async def many(store: Checkpointer) -> None:
        for number in range(60):
            async with Thread.open(store, f"n{number}") as opened:
                await opened.append(MessageAdded(user(f"task {number}")))

    url = f"sqlite:///{tmp_path}/c.db"
    in_store(url, many)
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        first = client.get("/?q=task").text
        assert first.count('data-test="thread-row"') == 50
        following = first.split('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
        second = client.get(following).text
        assert second.count('data-test="thread-row"') == 10
        assert 'rel="next"' not in second
        assert thread("n0") in second
        assert thread("n0") not in first


@pytest.mark.attack
def test_text_from_threads_is_never_markup(browser: httpx.Client) -> None:
    for page in ("/", thread("hostile"), thread("hostile", "/entries"), "/overview"):
        shown = browser.get(page).text
        assert "<script>alert" not in shown
        assert "<img src=x" not in shown
        assert "&lt;script&gt;alert(1)" in shown


def test_images_are_shown_if_they_are_images(browser: httpx.Client) -> None:
    page = browser.get(thread("hostile")).text
    assert f'src="data:image/png;base64,{base64.b64encode(PIXEL).decode()}"' in page
    assert "data:text/html" not in page


def test_a_thread_shows_its_turns_with_blocks_calls_durations_tokens_and_cost(browser: httpx.Client) -> None:
    page = browser.get(thread("trip")).text
    assert page.count('data-test="turn"') == 2
    assert "Line one\nline 2" in page, "line breaks are kept"
    for text in (
        'data-test="thinking"',
        'data-test="turn-duration"',
        "100 in · 10 out",
        "$0.50",
        'data-status="done"',
    ):
        assert text in page, text
    assert "agent.resume(" in page
    assert 'data-kind="done"' in page


def test_where_a_thread_crashed_is_marked_in_the_timeline_and_in_the_strip(browser: httpx.Client) -> None:
    page = browser.get(thread("crashed")).text
    assert 'class="mark mark-crashed"' in page
    assert "tick tick-crashed" in page
    assert "ended without a word while it ran send" in page
    assert 'data-status="in doubt"' in page
    assert 'class="status status-crashed"' in page


def test_a_fork_shows_where_it_came_from_and_its_parent_shows_the_fork(browser: httpx.Client) -> None:
    assert f'href="{thread("trip", "?turn=1")}"' in browser.get(thread("trip-fork")).text
    assert f'href="{thread("trip-fork")}"' in browser.get(thread("trip")).text


def test_what_was_posted_and_is_not_taken_in_is_on_the_page_of_the_thread_and_no_list(tmp_path: Path) -> None:
    async def some(store: Checkpointer) -> None:
        async with Thread.open(store, "t") as opened:
            await opened.append(MessageAdded(user("Hello.")))
        await Thread.post(store, "t", "And <b>June</b>?")

    url = f"sqlite:///{tmp_path}/c.db"
    in_store(url, some)
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        page = client.get(thread("t")).text
        assert "And &lt;b&gt;June&lt;/b&gt;?" in page
        assert 'data-test="forks"' not in page
        assert client.get("/").text.count('data-test="thread-row"') == 1


def test_of_a_long_thread_the_newest_turns_are_sent_and_others_on_demand(browser: httpx.Client) -> None:
    page = browser.get(thread("long")).text
    assert page.count('data-test="turn"') == 50
    assert page.count('data-test="cell"') == 120
    assert "answer 120" in page
    assert "answer 70" not in page
    assert 'data-load="?start=20&amp;stop=70"' in page
    part = browser.get(thread("long", "/turns?start=20&stop=70")).text
    assert part.count('data-test="turn"') == 50
    assert part.startswith('<a href="')
    assert "answer 21" in part
    assert browser.get(thread("long", "/turns?start=0&stop=120")).status_code == 400


def test_a_link_leads_to_a_turn_with_those_around_it(browser: httpx.Client) -> None:
    page = browser.get(thread("long", "?turn=60")).text
    assert 'data-focus="p59"' in page
    assert page.count('data-test="turn"') == 50
    assert "answer 60" in page
    assert 'data-at-end="false"' in page
    assert browser.get(thread("long", "?turn=121")).status_code == 404
    assert browser.get(thread("long", "?turn=x")).status_code == 400


def test_files_after_a_turn_and_what_changed_since_the_one_before(browser: httpx.Client) -> None:
    page = browser.get(thread("trip", "/files?turn=2")).text
    assert 'data-test="file"' in page
    assert '<span class="del">-Friday</span>' in page
    assert '<span class="add">+Saturday &lt;b&gt;</span>' in page
    whole = browser.get(thread("trip", "/files?turn=1&against=")).text
    assert '<span class="add">+Friday</span>' in whole
    content = browser.get(thread("trip", "/files?turn=2&path=plan.md")).text
    assert "Saturday &lt;b&gt;" in content
    assert browser.get(thread("trip", "/files?turn=9")).status_code == 400
    assert "No files are kept" in browser.get(thread("long", "/files")).text


def test_entries_are_shown_frame_by_frame_without_what_is_secret(browser: httpx.Client, url: str) -> None:
    page = browser.get(thread("long", "/entries")).text
    assert page.count('data-test="frame"') == 50
    assert 'data-kind="lease"' in page
    assert "&#34;token&#34;" not in page
    assert "&#34;owner&#34;" in page
    assert "Frame 50" in browser.get(thread("long", "/entries?start=50")).text


def test_the_overview_adds_up_spend_and_says_how_many_threads_it_looked_at(browser: httpx.Client) -> None:
    page = browser.get("/overview").text
    for text in (
        "<dt>Threads</dt><dd>7</dd>",
        "$1.00",
        'data-test="chart"',
        "newest 7 threads",
        "<td>write</td>",
        "Storage",
    ):
        assert text in page, text


def test_assets_are_named_by_their_content_and_kept(browser: httpx.Client) -> None:
    page = browser.get("/").text
    for ending, kind in (("css", "text/css"), ("js", "text/javascript")):
        name = (
            page.partition("/assets/inspector.")[2]
            if ending == "css"
            else page.partition('script src="/assets/inspector.')[2]
        )
        name = name.partition('"')[0]
        found = browser.get(f"/assets/inspector.{name}")
        assert found.headers["content-type"].startswith(kind)
        assert "immutable" in found.headers["cache-control"]
    assert browser.get("/assets/inspector.000000000000.css").status_code == 404
    assert browser.get("/assets/..%2f__init__.py").status_code == 404


def test_a_thread_that_is_not_there_is_a_page_that_says_so(browser: httpx.Client) -> None:
    shown = browser.get(thread("nobody"))
    assert (shown.status_code, 'data-status="404"' in shown.text) == (404, True)
    assert browser.get("/t/not!base64").status_code == 400


def test_a_damaged_thread_says_what_verify_says(tmp_path: Path) -> None:
    async def one(store: Checkpointer) -> None:
        async with Thread.open(store, "t") as opened:
            await opened.append(MessageAdded(user("q")), MessageAdded(assistant("a")))

    url = f"sqlite:///{tmp_path}/c.db"
    in_store(url, one)
    with database(tmp_path / "c.db") as db:
        tables = [row[0] for row in db.execute("select name from sqlite_master where type = 'table'")]
        frames = next(name for name in tables if "frame" in name)
        columns = [row[1] for row in db.execute(f"pragma table_info({frames})")]
        data = next(name for name in columns if name in ("data", "frame", "body"))
        db.execute(f"update {frames} set {data} = zeroblob(length({data}))")
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        shown = client.get(thread("t"))
    assert shown.status_code == 500
    assert "This thread is damaged" in shown.text
    assert "What clew verify says" in shown.text


def test_a_store_that_is_away_is_a_page_that_says_so() -> None:
    with serving("http://127.0.0.1:9") as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        shown = client.get("/")
    assert shown.status_code == 503
    assert "The store is away" in shown.text


def test_a_page_elsewhere_cannot_reach_the_pages_through_a_name_of_its_own(browser: httpx.Client) -> None:
    shown = browser.get("/", headers={"host": "evil.example"})
    assert shown.status_code == 403
    assert "A trip" not in shown.text


async def test_a_live_thread_is_sent_turn_by_turn(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    with serving(url) as running:
        async with open_checkpointer(url) as store, httpx.AsyncClient(base_url=running.url, timeout=PATIENCE) as client:
            async with Thread.open(store, "t") as opened:
                await opened.append(MessageAdded(user("q")), MessageAdded(assistant("first")))
                frames = opened.head.frames
                async with client.stream("GET", thread("t", f"/events?frames={frames}")) as events:
                    assert events.headers["content-type"].startswith("text/event-stream")
                    lines = events.aiter_lines()
                    assert await anext(lines) == "retry: 2000"
                    await opened.append(MessageAdded(user("again")), MessageAdded(assistant(HOSTILE)))
                    async for line in lines:
                        if line.startswith("data: "):
                            break
            assert '"id":"p1"' in line
            assert '"id":"c1"' in line
            assert '"id":"facts"' in line
            assert '"id":"p0"' not in line, "what did not change is not sent"
            assert "<script>" not in line
            assert (await client.get(thread("nobody", "/events"))).status_code == 404


def test_a_service_that_stops_does_not_wait_for_open_pages(tmp_path: Path) -> None:
    with (
        serving(f"sqlite:///{tmp_path}/c.db", grace=20.0) as running,
        httpx.Client(base_url=running.url, timeout=PATIENCE) as client,
        client.stream("GET", "/threads/events") as events,
    ):
        lines = events.iter_lines()
        assert next(lines) == "retry: 3000"
        running.begin_to_stop()
        assert "event: gone" not in list(lines), "the stream ends, and says nothing that is not so"


async def test_a_programs_thread_that_used_up_its_budget_says_which_budget_its_agent_needs(tmp_path: Path) -> None:
    @tool(effect="none")
    async def look() -> str:
        return "a row"

    url = f"sqlite:///{tmp_path}/c.db"
    model = ScriptedModel([call("look")] * 9)
    async with Agent(model, tools=[look], checkpointer=url, budget=Budget(tokens=10)) as agent:
        await agent.run("How many rows?", thread_id="rows")
    with serving(url) as running:
        page = httpx.get(running.url + thread("rows")).text
    assert re.search(r"In the program that made it, with budget=Budget\(tokens=\d+\): ", page)


LONG_PROMPT = "Please " + "look into every one of the reports " * 8


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A store with threads whose prompt is long, whose answer is Markdown, and whose cost nobody knows."""
    url = f"sqlite:///{tmp_path_factory.mktemp('more')}/c.db"

    async def fill_more(store: Checkpointer) -> None:
        for name in ("one", "two"):
            model = ScriptedModel(f"# Done\n\n**All** of `it`.\n\n![x](https://evil.example/x.png) <b>{name}</b>")
            await Agent(model, checkpointer=store).run(LONG_PROMPT, thread_id=name)

    in_store(url, fill_more)
    with serving(url) as running, httpx.Client(base_url=running.url) as client:
        yield client


def test_a_title_that_was_cut_ends_in_an_ellipsis(more: httpx.Client) -> None:
    cut = LONG_PROMPT[:80].rstrip() + "…"
    assert more.get("/").text.count(f">{cut}</a>") == 2
    assert f'data-test="thread-title">{cut}<' in more.get(thread("one")).text


def test_that_costs_are_unknown_is_said_once_and_not_on_every_row(more: httpx.Client) -> None:
    page = more.get("/").text
    assert page.count("is unknown") == 1
    assert "it is unknown for 2 threads here" in page
    assert '<td class="num cost"></td>' in page
    assert 'data-test="fact-cost">unknown<' in more.get(thread("one")).text


def test_the_markdown_of_the_model_is_rendered_without_its_html_and_pictures(more: httpx.Client) -> None:
    page = more.get(thread("one")).text
    assert '<p class="md-heading">Done</p>' in page
    assert "<strong>All</strong> of <code>it</code>." in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert 'href="https://evil.example/x.png" rel="noopener' in page
    assert "<img" not in page


@pytest.mark.parametrize(("value", "words"), [(True, "yes"), (False, "no"), (None, "null"), ("yes", "yes")])
async def test_an_answer_of_yes_or_no_is_in_words(value: Any, words: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    async with open_checkpointer(url) as store, Thread.open(store, "t") as opened:
        await opened.append(MessageAdded(user("Does it rain?")))
        await opened.append(MessageAdded(Assistant((ToolCall("1", "rains", value),))), ToolIntent(1, 0))
        await opened.append(ToolOutcome(1, 0, ToolResult("1", (Json(value),))))
    with serving(url) as running:
        page = httpx.get(running.url + thread("t"), timeout=PATIENCE).text
    assert page.count(f'<pre class="code">{words}</pre>') == 2
    assert pretty({"rains": True}) == '{\n  "rains": true\n}'


async def test_unsealed_threads_of_a_store_with_a_key_are_marked_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    for name, key in (("plain", None), ("sealed", "00" * 32)):
        async with open_checkpointer(url, key=key, allow_plain=bool(key)) as store, Thread.open(store, name) as opened:
            await opened.append(MessageAdded(user("Hello.")), MessageAdded(assistant("Hello.")))
    monkeypatch.setenv("CLEW_KEY", "00" * 32)
    monkeypatch.setenv("CLEW_ALLOW_PLAIN", "1")
    with serving(url) as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as client:
        rows = client.get("/").text.split("<tr ")[1:]
        marked = {name: next(row for row in rows if thread(name) in row) for name in ("plain", "sealed")}
        assert "not sealed" in marked["plain"]
        assert "not sealed" not in marked["sealed"]
        assert "not sealed" in client.get(thread("plain")).text
        assert "not sealed" not in client.get(thread("sealed")).text


def test_the_resume_command_names_the_store_even_if_it_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLEW_STORE", raising=False)
    asked = SimpleNamespace(headers={b"host": b"127.0.0.1:7411"}, is_secure=False)
    assert _store_for_commands(Settings(store=default_url()), cast(Request, asked)) == "http://127.0.0.1:7411"


def test_a_queued_thread_is_shown_with_its_place_and_counted(tmp_path: Path) -> None:
    async def queue(store: Checkpointer) -> None:
        await enqueue(store, "later", "Go.", agent="clerk", delay=590, priority=2)
        await enqueue(store, "now", "Go.", agent="<b>clerk</b>", tags={"<i>": "<i>"})

    made = f"sqlite:///{tmp_path}/queue.db"
    in_store(made, queue)
    with serving(made) as running, httpx.Client(base_url=running.url) as client:
        assert "due in 9m" in client.get("/?status=queued").text
        page = client.get(thread("later")).text
        assert re.search(r'data-test="fact-queue"[^>]*>\s*due in 9m \d+s, priority 2', page)
        assert re.search(r'data-test="to-ask">.*?Go\.', page, re.DOTALL)
        overview = client.get("/overview").text
        assert re.search(r'data-test="total-queue".*?<dd>2</dd>.*?1 due, the oldest for \d+s', overview, re.DOTALL)
        assert "<b>clerk" not in client.get("/").text
