"""The inspector in Chromium, from `clew serve` in a process of its own: what a person sees, clicks and types."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from clew import Thread
from clew.checkpointers import Checkpointer, Delta
from clew.checkpointers.http.protocol import JSON
from clew.log import Described, MessageAdded, StatusChanged, ThreadStarted, ToolIntent, ToolOutcome, Usage
from clew.messages import Assistant, Text, ToolCall, ToolResult, assistant, user
from clew.workspace import Workspace
from tests.cli.samples import make_samples
from tests.cli.workshop import Workshop
from tests.limits import PATIENCE
from tests.server.following import deltas_path
from tests.server.inspector.browsing import TOKEN, chromium_path, open_browser, running_service
from tests.server.inspector.looking import in_store, thread
from tests.server.inspector.worker import LAST
from tests.server.inspector.writer import WORDS
from tests.servers.running import lacking

expect.set_options(timeout=1000 * PATIENCE)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

LONG = 1000
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PHONE = 360
PAGES = ["/", "/overview", "/?q=nothing+of+the+sort"] + [
    thread(name, rest)
    for name, rest in (
        ("trip", ""),
        ("report", ""),
        ("visa", ""),
        ("trip", "/files?turn=4"),
        ("trip", "/entries"),
        ("trip", "/fork?turn=2"),
        ("trip", "/rewind?turn=2"),
        ("trip", "/describe"),
        ("nobody", ""),
    )
]
NAME = "unbroken" * 40
"""A name without a place where a line can end."""
NAMED = [thread(NAME, rest) for rest in ("", "/entries", "/files", "/fork?turn=1", "/describe")]


class Site(NamedTuple):
    """A service with the sample threads, a thread of a thousand turns, and one that waits and can be resumed."""

    url: str
    shop: Workshop


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if chromium_path() is None:
        lacking("no Chromium or Google Chrome", install="chromium")
    folder = tmp_path_factory.mktemp("browser")
    shop = Workshop(folder)
    make_samples(shop.url, folder)
    in_store(shop.url, _long_thread)
    in_store(shop.url, partial(_long_names, folder=folder / NAME[:200]))
    model = shop.script("ask", {"call": {"name": "ask_size"}}, "Then it is a large one.")
    shop.clew("run", "Order it.", "--model", model, "--tool", "shop:ask_size", "--thread", "order")
    with running_service(shop.url) as url:
        yield Site(url, shop)


async def _long_thread(store: Checkpointer) -> None:
    async with Thread.open(store, "long", durability="exit") as opened:
        await opened.append(Described("A long way"))
        for number in range(1, LONG + 1):
            said = assistant(f"This is answer {number}.\nIt has a second line.")
            await opened.append(MessageAdded(user(f"Question {number}?")), MessageAdded(said, Usage(10, 5), 0.001))
        await opened.append(StatusChanged("done"))


async def _long_names(store: Checkpointer, folder: Path) -> None:
    """Write a thread in which every name is long: its own, those of its agent, model, tag, tool and file."""
    (folder / NAME[:200]).mkdir(parents=True)
    (folder / NAME[:200] / NAME[:200]).write_text(NAME)
    async with Thread.open(store, NAME) as opened:
        used = Assistant((ToolCall("1", NAME, {NAME: NAME}),), model=NAME)
        await opened.append(ThreadStarted(NAME, NAME), Described(NAME, {NAME: NAME}))
        await opened.append(MessageAdded(user(NAME)), MessageAdded(used), ToolIntent(1, 0))
        await opened.append(ToolOutcome(1, 0, ToolResult("1", (Text(NAME),))))
        await opened.append((await Workspace(folder, store).snapshot()).entry(), StatusChanged("failed", NAME))


@pytest.fixture(scope="module")
def browser(site: Site) -> Iterator[Browser]:
    path = chromium_path()
    assert path is not None
    with open_browser(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def signed_in(site: Site, browser: Browser) -> Any:
    """The cookies of somebody who gave the token."""
    with _tab(site, browser) as page:
        _sign_in(page, TOKEN)
        page.wait_for_url(f"{site.url}/")
        return page.context.storage_state()


def _sign_in(page: Page, token: str) -> None:
    page.goto("/login")
    page.get_by_test_id("token").fill(token)
    page.get_by_test_id("sign-in").click()


@contextmanager
def _tab(site: Site, browser: Browser, **how: Any) -> Iterator[Page]:
    """A page of its own. Nothing on it may fail, and it may ask nobody but the service for anything."""
    context = browser.new_context(base_url=site.url, **{"viewport": {"width": 1280, "height": 800}, **how})
    context.set_default_timeout(1000 * PATIENCE)
    page = context.new_page()
    troubles: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    try:
        yield page
    finally:
        context.close()
    assert [said for said in troubles if not said.startswith(_REFUSED)] == []
    assert hosts <= {urlsplit(site.url).netloc, ""}


_REFUSED = (
    "Failed to load resource: the server responded with a status of 401",
    "Failed to load resource: the server responded with a status of 404",
)
"""What Chromium says of a page that is meant to be refused."""
Open = Callable[..., Any]


@pytest.fixture
def tab(site: Site, browser: Browser, signed_in: Any) -> Open:
    return lambda **how: _tab(site, browser, storage_state=signed_in, **how)


def _ids(page: Page) -> list[str]:
    return sorted(page.get_by_test_id("thread-id").all_text_contents())


def _go(page: Page, path: str, *, live: bool = False) -> None:
    page.goto(path)
    if live:
        expect(page.get_by_test_id("live")).to_have_attribute("data-state", "on")


def test_the_list_shows_every_thread_and_how_it_stands(tab: Open) -> None:
    with tab() as page:
        answer = page.goto("/")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert page.title() == "Threads · Clew"
        states = {
            name: page.locator("tr", has=page.locator(f"a[href='{thread(name)}'].title")).get_by_test_id("status")
            for name in ("trip", "report", "visa", "old")
        }
        for name, status in {"trip": "done", "report": "crashed", "visa": "waiting", "old": "failed"}.items():
            expect(states[name]).to_have_attribute("data-status", status)


def test_the_list_is_filtered_as_one_chooses_and_types(tab: Open) -> None:
    with tab() as page:
        _go(page, "/")
        page.get_by_test_id("filter-status").select_option("waiting")
        page.wait_for_url("**status=waiting*")
        assert _ids(page) == ["order", "visa"]
        _go(page, "/")
        page.get_by_test_id("search").fill("long way")
        page.wait_for_url("**q=long+way*")
        assert _ids(page) == ["long"]
        page.get_by_test_id("search").fill("no such words")
        expect(page.get_by_test_id("empty")).to_contain_text("No thread matches")


def test_the_list_works_without_a_script(tab: Open) -> None:
    with tab(java_script_enabled=False) as page:
        _go(page, "/")
        page.get_by_test_id("filter-agent").fill("writer")
        page.get_by_test_id("apply").click()
        expect(page.get_by_test_id("thread-row")).to_have_count(2)
        page.get_by_test_id("thread-link").first.click()
        expect(page.get_by_test_id("turn").or_(page.get_by_test_id("pending")).first).to_be_visible()


def test_a_new_thread_comes_into_the_list_by_itself(site: Site, tab: Open) -> None:
    with tab() as page:
        _go(page, "/?q=newcomer", live=True)
        expect(page.get_by_test_id("empty")).to_be_visible()
        site.shop.clew("run", "Hi.", "--model", site.shop.script("hi", "Hello."), "--thread", "newcomer")
        expect(page.get_by_test_id("thread-row")).to_have_count(1)


def test_a_thread_is_opened_from_the_list_and_shows_its_turns_and_calls(tab: Open) -> None:
    with tab() as page:
        _go(page, "/")
        page.locator(f"a[href='{thread('trip')}'].title").click()
        expect(page.get_by_test_id("turn")).to_have_count(5)
        expect(page.get_by_test_id("fact-status")).to_have_text("Done")
        expect(page.get_by_test_id("resume-command")).to_contain_text("agent.resume(")
        call = page.locator("[data-turn='1'] [data-test=call]")
        expect(call.get_by_test_id("result")).to_be_hidden()
        call.locator("summary").click()
        expect(call.get_by_test_id("result")).to_contain_text("Paris: the river, the tower, the museum.")


def test_where_a_process_died_is_seen_at_a_glance(tab: Open) -> None:
    with tab() as page:
        _go(page, thread("report"))
        expect(page.locator("[data-test=tick][data-kind=crashed]")).to_be_visible()
        expect(page.locator("[data-test=mark][data-kind=crashed]")).to_contain_text("while it ran send_mail")
        expect(page.locator("[data-test=call][data-status='in doubt']")).to_contain_text("nobody knows")


def test_turns_of_a_running_agent_appear_and_the_readers_place_does_not_move(
    site: Site, tab: Open, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.server.inspector.worker", site.shop.url, "worker", str(tmp_path)]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True) as process, tab() as page:
        try:
            _until_listed(page, "worker")
            _go(page, thread("worker"), live=True)
            expect(page.get_by_test_id("fact-status")).to_have_text("Running")
            expect(page.get_by_test_id("fact-holder")).to_contain_text(f"process {process.pid}")
            expect(page.get_by_test_id("turn")).to_have_count(2)
            page.evaluate("window.never_reloaded = true; document.getElementById('p1').scrollIntoView()")
            place = "document.getElementById('p1').getBoundingClientRect().top"
            before = page.evaluate(place)
            for number in range(3, 6):
                (tmp_path / str(number)).touch()
                expect(page.get_by_test_id("turn")).to_have_count(number)
            assert abs(page.evaluate(place) - before) < 1
            expect(page.get_by_test_id("new-turns")).to_have_text("3 new turns ↓")
            for number in range(6, LAST + 1):
                (tmp_path / str(number)).touch()
            expect(page.get_by_test_id("fact-status")).to_have_text("Done")
            expect(page.get_by_test_id("turn")).to_have_count(LAST)
            expect(page.get_by_test_id("cell")).to_have_count(LAST)
            page.get_by_test_id("new-turns").click()
            expect(page.locator(f"[data-turn='{LAST}']")).to_be_in_viewport()
            assert page.evaluate("window.never_reloaded") is True
            assert process.wait(PATIENCE) == 0, process.stderr.read() if process.stderr else ""
        finally:
            process.kill()


def test_words_are_shown_while_the_model_writes_them_and_then_as_the_recorded_turn(
    site: Site, tab: Open, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.server.inspector.writer", site.url, "writer", str(tmp_path / "end")]
    root = Path(__file__).parents[3]
    env = {**os.environ, "CLEW_TOKEN": TOKEN}
    with subprocess.Popen(command, cwd=root, env=env, stderr=subprocess.PIPE, text=True) as process, tab() as page:
        try:
            _until_listed(page, "writer", turns=1)
            _go(page, thread("writer"), live=True)
            writing = page.get_by_test_id("writing")
            expect(writing).to_contain_text("a walk along the river")
            expect(page.get_by_test_id("asking")).to_be_visible()
            expect(page.get_by_test_id("turn")).to_have_count(1)
            seen = len(writing.inner_text())
            page.wait_for_function("seen => document.getElementById('writing').innerText.length > seen", arg=seen)
            (tmp_path / "end").touch()
            expect(page.get_by_test_id("turn")).to_have_count(2)
            expect(writing).to_be_hidden()
            expect(writing).to_be_empty()
            expect(page.locator("[data-turn='2']")).to_contain_text(WORDS)
            assert process.wait(PATIENCE) == 0, process.stderr.read() if process.stderr else ""
        finally:
            process.kill()


def test_words_that_are_written_now_are_text_and_nothing_hides_in_them(site: Site, tab: Open) -> None:
    with tab() as page:
        _go(page, thread("trip"), live=True)
        for number, text in enumerate(("<b id=owned>bold</b>", "\u202e\x1b[31m", "end")):
            _publish(site, "trip", Delta(_turns(page) + 1, 100 * number, text, "thinking" if number == 1 else "text"))
        writing = page.get_by_test_id("writing")
        expect(writing).to_contain_text("end")
        assert writing.inner_text().split() == ["<b", "id=owned>bold</b>", "…", "\\u202e\\x1b[31m", "…", "end"]
        _publish(site, "trip", Delta(_turns(page) + 1, 0, "Anew."))
        expect(writing).to_have_text("Anew.")
        _publish(site, "trip", Delta(_turns(page), 0, "Of a turn that is on record."))
        _publish(site, "trip", Delta(_turns(page) + 1, 5, " And on."))
        expect(writing).to_have_text("Anew. And on.")


def _turns(page: Page) -> int:
    return int(page.get_by_test_id("writing").get_attribute("data-recorded") or "")


def _publish(site: Site, thread_id: str, delta: Delta) -> None:
    body = msgspec.json.encode({"deltas": [delta]})
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": JSON}
    answer = httpx.post(site.url + deltas_path(thread_id), content=body, headers=headers, timeout=PATIENCE)
    assert answer.json() == {"listeners": 1}


def _until_listed(page: Page, name: str, *, turns: int = 2) -> None:
    _go(page, f"/?q={name}", live=True)
    expect(page.get_by_test_id("thread-row")).to_have_count(1)
    expect(page.locator("td[data-label^=turn]")).to_have_text(str(turns))


def test_files_are_compared_between_turns(tab: Open) -> None:
    with tab() as page:
        _go(page, thread("trip"))
        page.locator("[data-turn='4']").get_by_test_id("turn-files").click()
        change = page.locator("[data-test=change][data-path='plan.md']")
        expect(change.locator(".add")).to_have_text(["+2. The tower"])
        expect(change.locator(".del")).to_have_count(0)
        page.get_by_test_id("files-against").select_option("")
        page.get_by_test_id("files-show").click()
        expect(change.locator(".add").first).to_have_text("+# Paris")
        page.get_by_test_id("file").click()
        expect(page.get_by_test_id("file-content")).to_have_text("# Paris\n\n1. The river\n2. The tower\n")


def test_a_thread_is_forked_at_a_turn(tab: Open) -> None:
    with tab() as page:
        _go(page, thread("trip"))
        page.locator("[data-turn='3']").get_by_test_id("fork-here").click()
        page.get_by_test_id("fork-id").fill("trip/lyon")
        page.get_by_test_id("fork-submit").click()
        page.wait_for_url(f"**{thread('trip/lyon')}")
        expect(page.get_by_test_id("turn")).to_have_count(3)
        expect(page.get_by_test_id("parent-link")).to_have_text("trip")


def test_a_thread_is_rewound_and_what_was_unwound_stays_to_be_seen(site: Site, tab: Open) -> None:
    site.shop.clew("fork", "trip", "--turn", "5", "--as", "again")
    with tab() as page:
        _go(page, thread("again"))
        page.locator("[data-turn='2']").get_by_test_id("rewind-here").click()
        expect(page.get_by_test_id("rewind-form")).to_contain_text("3 turns after it")
        page.get_by_test_id("rewind-submit").click()
        page.wait_for_url(f"**{thread('again')}")
        expect(page.get_by_test_id("fact-turns")).to_have_text("2")
        expect(page.locator("article.rewound")).to_have_count(3)
        expect(page.locator("[data-test=mark][data-kind=rewound]")).to_be_visible()


def test_an_answer_is_given_and_the_thread_goes_on_with_a_resume(site: Site, tab: Open) -> None:
    with tab() as page:
        _go(page, thread("order"), live=True)
        expect(page.get_by_test_id("question")).to_have_text("Which size?")
        page.get_by_test_id("answer").fill("large")
        page.get_by_test_id("answer-submit").click()
        expect(page.get_by_test_id("questions")).to_have_count(0)
        expect(page.locator("[data-test=mark][data-kind=answered]")).to_be_visible()
        resumed = site.shop.clew("resume", "order")
        assert (resumed.returncode, resumed.stdout) == (0, "Then it is a large one.\n")
        expect(page.get_by_test_id("fact-status")).to_have_text("Done")
        expect(page.get_by_test_id("text").last).to_have_text("Then it is a large one.")


def test_without_the_token_nothing_is_shown(site: Site, browser: Browser) -> None:
    with _tab(site, browser) as page:
        page.goto(thread("trip"))
        expect(page.get_by_test_id("login")).to_be_visible()
        _sign_in(page, "a-wrong-token")
        expect(page.get_by_test_id("login-error")).to_be_visible()
        page.goto("/")
        expect(page.get_by_test_id("login")).to_be_visible()
        assert page.get_by_test_id("thread-row").count() == 0
        assert [cookie["name"] for cookie in page.context.cookies()] == ["clew_session"], "an id that opens nothing"


def test_who_signs_in_comes_to_the_page_they_asked_for_and_can_leave(site: Site, browser: Browser) -> None:
    with _tab(site, browser) as page:
        page.goto(thread("trip"))
        page.get_by_test_id("token").fill(TOKEN)
        page.get_by_test_id("sign-in").click()
        expect(page.get_by_test_id("turn")).to_have_count(5)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Lax")
        page.get_by_test_id("sign-out").click()
        expect(page.get_by_test_id("login")).to_be_visible()
        page.context.clear_cookies()
        page.context.add_cookies([{"name": cookie["name"], "value": cookie["value"], "url": site.url}])
        page.goto(thread("trip"))
        expect(page.get_by_test_id("login")).to_be_visible()


def test_dark_follows_the_system_until_one_chooses(tab: Open) -> None:
    def lightness(page: Page) -> int:
        return int(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))

    with tab(color_scheme="dark") as page:
        _go(page, "/")
        assert lightness(page) < 60
        page.get_by_test_id("theme-toggle").click()
        assert lightness(page) > 200
        _go(page, "/overview")
        assert lightness(page) > 200


class Looks(NamedTuple):
    """What is found wrong by looking at every page."""

    unreadable: dict[str, list[str]]
    too_wide: list[str]


@pytest.fixture(scope="module")
def looks(site: Site, browser: Browser, signed_in: Any) -> Looks:
    script = (Path(__file__).parent / "readable.js").read_text()
    found = Looks({}, [])
    with _tab(site, browser, storage_state=signed_in, reduced_motion="reduce") as page:
        for path in PAGES:
            page.set_viewport_size({"width": 1280, "height": 800})
            page.goto(path)
            for scheme in SCHEMES:
                page.emulate_media(color_scheme=scheme)
                if problems := page.evaluate(script):
                    found.unreadable[f"{path} in {scheme}"] = problems
            page.set_viewport_size({"width": PHONE, "height": 740})
            if page.evaluate("document.documentElement.scrollWidth") > PHONE:
                found.too_wide.append(path)
    return found


def test_all_words_stand_out_from_their_ground_and_all_controls_have_names(looks: Looks) -> None:
    assert looks.unreadable == {}


def test_no_page_is_wider_than_a_phone(looks: Looks) -> None:
    assert looks.too_wide == []


_WIDEST = """Math.max(document.documentElement.scrollWidth, ...[...document.querySelectorAll("td, dd, .chip, .facts span")]
    .filter(each => !each.closest(".num")).map(each => each.getBoundingClientRect().width))"""
"""The width of the page, or of the widest name on it: some tables scroll on their own."""


@pytest.mark.parametrize("width", [PHONE, 1280])
def test_long_names_wrap(width: int, tab: Open) -> None:
    with tab(viewport={"width": width, "height": 740}) as page:
        for path in ("/", "/overview", *NAMED):
            page.goto(path)
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
            assert page.evaluate(_WIDEST) <= width, path
        page.goto(thread(NAME))
        for name in ("thread-title", "fact-agent", "fact-model"):
            shown = page.get_by_test_id(name).first
            assert shown.evaluate("each => each.scrollWidth <= each.clientWidth"), name
            assert shown.inner_text().replace("…", "") in NAME


def test_on_a_phone_the_diff_comes_before_the_list_of_files(tab: Open) -> None:
    with tab() as page:
        tops = []
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            _go(page, thread("trip", "/files?turn=4"))
            boxes = [page.locator(part).bounding_box() for part in (".diff-panel", ".tree")]
            tops.append([box["y"] for box in boxes if box is not None])
        (phone_diff, phone_tree), (wide_diff, wide_tree) = tops
        assert phone_diff < phone_tree
        assert wide_diff == wide_tree


def test_the_keyboard_walks_through_threads_and_turns(tab: Open) -> None:
    with tab() as page:
        _go(page, "/", live=True)
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("#rows > tr:nth-child(2).selected")).to_be_visible()
        page.keyboard.press("k")
        expect(page.locator("#rows > tr:nth-child(1).selected")).to_be_visible()
        page.keyboard.press("/")
        expect(page.get_by_test_id("search")).to_be_focused()
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        expect(page.get_by_test_id("help")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_test_id("help")).to_be_hidden()
        chosen = page.locator("tr.selected").get_attribute("data-href")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{chosen}")
        _go(page, thread("trip"))
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("article.selected")).to_have_attribute("data-turn", "2")
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_url("**/overview")


def test_of_a_thousand_turns_only_a_window_is_there_and_scrolling_brings_more(tab: Open) -> None:
    with tab() as page:
        _go(page, thread("long"))
        turns = page.get_by_test_id("turn")
        expect(turns).to_have_count(50)
        expect(page.get_by_test_id("cell")).to_have_count(LONG)
        expect(turns.first).to_have_attribute("data-turn", str(LONG - 49))
        page.mouse.move(600, 400)
        page.evaluate("scrollTo(0, 900)")
        place = f"document.querySelector('[data-turn=\"{LONG - 45}\"]').getBoundingClientRect().top"
        before = page.evaluate(place)
        page.mouse.wheel(0, -100)
        expect(turns).to_have_count(100)
        page.wait_for_function(f"Math.abs({place} - {before + 100}) < 2")
        page.get_by_test_id("cell").nth(499).click()
        page.wait_for_url("**at=499*")
        expect(page.locator("[data-turn='500']")).to_be_in_viewport()
        assert turns.count() <= 150
        expect(page.get_by_test_id("newer")).to_be_attached()


def test_the_overview_adds_up_the_spend(tab: Open) -> None:
    with tab() as page:
        _go(page, "/overview")
        expect(page.get_by_test_id("chart-spend").locator("svg")).to_be_visible()
        expect(page.get_by_test_id("total-spend")).to_contain_text("$1.")
        expect(page.get_by_test_id("table-agents")).to_contain_text("planner")
        expect(page.get_by_test_id("table-tools")).to_contain_text("look_up")
