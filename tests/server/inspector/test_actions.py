"""Who may look and who may change something: tokens, cookies, proofs of forms, scopes; and what each action does."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from clew import Thread
from clew.checkpointers import Checkpointer
from clew.log import MessageAdded
from clew.messages import plain_text, user
from clew.server.token_file import add_token, revoke_token
from tests.clock import Clock
from tests.server.inspector.looking import agent, fill, in_store, post, proof, thread
from tests.server.serving import Running, a_token, serving

READER, WRITER, OTHER = (f"the-long-{name}-token" for name in ("reader", "writer", "other"))
TOKENS = [a_token(READER, "team", ["read"]), a_token(WRITER, "team", ["read", "write"]), a_token(OTHER, "else")]


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/c.db"
    in_store(made, lambda store: fill(store, tmp_path / "files"), "team")
    return made


@pytest.fixture
def service(url: str) -> Iterator[Running]:
    with serving(url, tokens=TOKENS) as running:
        yield running


@contextmanager
def signed_in(service: Running, token: str, **more: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.url) as client:
        answer = post(client, "/login", "/login", token=token, next="/", **more)
        assert answer.status_code == 303, answer.text
        yield client


def test_without_a_valid_cookie_every_page_is_the_login(service: Running) -> None:
    with httpx.Client(base_url=service.url) as client:
        for page in ("/", "/overview", thread("trip"), thread("trip", "/export.md"), "/threads/events"):
            shown = client.get(page)
            assert (shown.status_code, 'data-test="login"' in shown.text) == (401, True), page
            assert "A trip" not in shown.text
        client.cookies.set("clew_session", "bm9uc2Vuc2U=.")
        assert client.get("/").status_code == 401


def test_a_wrong_token_is_said_to_be_wrong_and_sets_no_cookie(service: Running) -> None:
    with httpx.Client(base_url=service.url) as client:
        answer = post(client, "/login", "/login", token="not-a-token-of-this-server")
        assert answer.status_code == 401
        assert "does not know that token" in answer.text
        assert "set-cookie" not in answer.headers


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_leads_back_to_the_page(service: Running) -> None:
    with httpx.Client(base_url=service.url) as client:
        answer = post(client, "/login", "/login", token=READER, next=thread("trip"))
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Lax" in cookie  # so that a link in a chat leads to its page
        assert READER not in cookie
        assert answer.headers["location"] == thread("trip")
        assert "A trip" in client.get("/").text
        for elsewhere in ("https://evil.example", "//evil.example", "/\\evil.example", "/日", "/a\nb"):
            answer = post(client, "/login", "/login", token=READER, next=elsewhere)
            assert answer.headers["location"] == "/"


def test_the_api_takes_no_cookie(service: Running) -> None:
    with signed_in(service, WRITER) as client:
        assert client.get("/v1/threads/dHJpcA").status_code == 401


def test_signing_out_takes_the_cookie_away(service: Running) -> None:
    with signed_in(service, READER) as client:
        copied = dict(client.cookies)
        assert post(client, "/", "/logout").status_code == 303
        assert client.get("/").status_code == 401
    with httpx.Client(base_url=service.url, cookies=copied) as thief:
        assert thief.get("/").status_code == 401


def test_a_login_gets_another_id_than_the_browser_had_before(service: Running) -> None:
    with httpx.Client(base_url=service.url) as client:
        client.get("/login")
        before = client.cookies["clew_session"]
        assert post(client, "/login", "/login", token=READER).status_code == 303
        assert client.cookies["clew_session"] != before
    with httpx.Client(base_url=service.url, cookies={"clew_session": before}) as who_planted_it:
        assert who_planted_it.get("/").status_code == 401


def test_the_login_form_of_one_browser_is_refused_from_another(service: Running) -> None:
    with httpx.Client(base_url=service.url) as attacker, httpx.Client(base_url=service.url) as victim:
        theirs = proof(attacker.get("/login").text)
        for _ in range(2):  # without any cookie, and with its own
            answer = victim.post("/login", data={"csrf": theirs, "token": OTHER})
            assert answer.status_code == 403
            assert victim.get("/").status_code == 401


def test_a_link_that_needs_a_login_leads_to_its_page_afterwards(service: Running) -> None:
    page = thread("trip", "/files?turn=1")
    with httpx.Client(base_url=service.url) as client:
        shown = client.get(page)
        assert shown.status_code == 401
        (after,) = re.findall(r'name="next" value="([^"]*)"', shown.text)
        answer = client.post("/login", data={"csrf": proof(shown.text), "token": READER, "next": html.unescape(after)})
        assert (answer.status_code, answer.headers["location"]) == (303, page)


def test_login_attempts_are_limited_and_a_right_token_is_taken_after_the_wait(service: Running, clock: Clock) -> None:
    with httpx.Client(base_url=service.url) as client:
        tries = [post(client, "/login", "/login", token=f"wrong-token-{n}-wrong-token") for n in range(12)]
        assert [answer.status_code for answer in tries] == [401] * 10 + [429] * 2
        answer = post(client, "/login", "/login", token=READER)
        assert answer.status_code == 429
        assert f"Wait {answer.headers['retry-after']} s" in answer.text
        clock.advance(60)
        assert post(client, "/login", "/login", token=READER).status_code == 303


def test_a_revoked_token_ends_its_sessions(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    secret, _ = add_token(path, "team", ["read"], "me")
    with serving(url, token_file=path) as running, signed_in(running, secret) as client:
        assert client.get("/").status_code == 200
        revoke_token(path, "me")
        assert client.get("/").status_code == 401


@pytest.mark.parametrize(("proxies", "is_secure"), [(("127.0.0.1",), True), (("10.0.0.0/8",), False), ((), False)])
def test_the_cookie_is_for_tls_alone_behind_a_proxy_with_tls_that_the_settings_name(
    url: str, proxies: tuple[str, ...], is_secure: bool
) -> None:
    with serving(url, tokens=TOKENS, proxies=proxies) as running:
        headers = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.7"}
        with httpx.Client(base_url=running.url, headers=headers) as client:
            shown = client.get("/login")
            cookies = shown.headers["set-cookie"].partition(";")[0]
            sent = {"csrf": proof(shown.text), "token": READER}
            answer = client.post("/login", data=sent, headers={"cookie": cookies})
            assert answer.status_code == 303
            assert answer.headers["set-cookie"].endswith("; Secure") == is_secure


def test_each_token_sees_its_own_namespace_and_the_one_inside_it_that_was_named(service: Running, url: str) -> None:
    async def one(store: Checkpointer) -> None:
        async with Thread.open(store, "inside") as opened:
            await opened.append(MessageAdded(user("Inside.")))

    in_store(url, one, "team/inner")
    with signed_in(service, OTHER) as client:
        assert "A trip" not in client.get("/").text
        assert client.get(thread("trip")).status_code == 404
    with signed_in(service, READER, namespace="inner") as client:
        page = client.get("/").text
        assert "Inside." in page
        assert "A trip" not in page
        assert "team/inner" in page


def test_who_may_not_write_sees_no_action_and_can_do_none(service: Running) -> None:
    with signed_in(service, READER) as client:
        page = client.get(thread("trip")).text
        for action in ("fork-here", "rewind-here", "describe-link"):
            assert action not in page
        assert "answer-submit" not in client.get(thread("waiting")).text
        assert client.get(thread("trip", "/rewind?turn=1")).status_code == 403
        for action in ("fork", "rewind", "answer", "describe"):
            answer = client.post(thread("trip", f"/{action}"), data={"csrf": proof(page), "turn": "1", "new_id": "x"})
            assert (answer.status_code, 'data-status="403"' in answer.text) == (403, True), action


@pytest.mark.parametrize("action", ["fork", "rewind", "answer", "describe"])
def test_a_form_without_the_proof_changes_nothing(service: Running, url: str, action: str) -> None:
    with signed_in(service, WRITER) as client:
        sound = proof(client.get(thread("trip")).text)
        before = in_store(url, lambda store: store.head("trip"), "team")
        fields = {"turn": "1", "new_id": "made", "title": "x"}
        for csrf, headers in (("", {}), ("0" * 40, {}), (sound, {"sec-fetch-site": "cross-site"})):
            answer = client.post(thread("trip", f"/{action}"), data={**fields, "csrf": csrf}, headers=headers)
            assert answer.status_code == 403
        assert client.post(thread("trip", f"/{action}"), json={**fields, "csrf": sound}).status_code == 400
        assert in_store(url, lambda store: store.head("trip"), "team") == before
        assert client.get(thread("made")).status_code == 404


def test_the_proof_of_one_reader_is_none_for_another(service: Running) -> None:
    with signed_in(service, OTHER) as stranger, signed_in(service, WRITER) as client:
        stolen = proof(stranger.get("/").text)
        answer = client.post(thread("trip", "/rewind"), data={"csrf": stolen, "turn": "1"})
        assert answer.status_code == 403


def test_fork_here(service: Running, url: str) -> None:
    with signed_in(service, WRITER) as client:
        answer = post(client, thread("trip", "/fork?turn=1"), thread("trip", "/fork"), turn="1", new_id="another/ü")
        assert answer.headers["location"] == thread("another/ü")
        again = post(client, thread("trip", "/fork?turn=1"), thread("trip", "/fork"), turn="1", new_id="another/ü")
        assert again.status_code == 409
        far = post(client, thread("trip", "/fork?turn=1"), thread("trip", "/fork"), turn="7", new_id="far")
        assert far.status_code == 400
    head = in_store(url, lambda store: store.head("another/ü"), "team")
    assert (head.parent, head.turns) == (("trip", 1), 1)


def test_a_fork_gets_no_id_that_is_reserved(service: Running) -> None:
    with signed_in(service, WRITER) as client:
        answer = post(
            client, thread("trip", "/fork?turn=1"), thread("trip", "/fork"), turn="1", new_id="clew:rekeying:trip"
        )
        assert answer.status_code == 400
        assert "reserved for Clew" in answer.text


def test_rewind_here_asks_first_and_keeps_what_was_rewound(service: Running, url: str) -> None:
    with signed_in(service, WRITER) as client:
        asked = client.get(thread("trip", "/rewind?turn=1")).text
        assert "Rewind to turn 1?" in asked
        answer = post(client, thread("trip", "/rewind?turn=1"), thread("trip", "/rewind"), turn="1")
        assert answer.headers["location"] == thread("trip")
        page = client.get(thread("trip")).text
        assert 'class="turn rewound"' in page
        assert 'data-kind="rewound"' in page
    state = in_store(url, lambda store: Thread.load(store, "trip"), "team")
    assert state.turns == 1


def test_a_thread_that_somebody_works_on_is_not_rewound(service: Running, url: str) -> None:
    async def busy(store: Checkpointer) -> int:
        async with Thread.open(store, "trip"):
            with signed_in(service, WRITER) as client:
                answer = post(client, thread("trip", "/rewind?turn=1"), thread("trip", "/rewind"), turn="1")
            return answer.status_code

    assert in_store(url, busy, "team") == 409


def test_an_answer_is_recorded_and_the_next_resume_goes_on_with_it(service: Running, url: str) -> None:
    with signed_in(service, WRITER) as client:
        assert "Which seat?" in client.get(thread("waiting")).text
        answer = post(client, thread("waiting"), thread("waiting", "/answer"), **{"answer-0": "aisle"})
        assert answer.status_code == 303
        page = client.get(thread("waiting")).text
        assert "answer-submit" not in page
        assert 'data-kind="answered"' in page

    async def resume(store: Checkpointer) -> tuple[str, str]:
        result = await agent(store).resume(thread_id="waiting")
        state = await Thread.load(store, "waiting")
        return str(result.output), str(state.messages)

    output, messages = in_store(url, resume, "team")
    assert output == "Thanks."
    assert "they said aisle" in messages


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({"answer-0": "yes"}, "paid 5"), ({"answer-0": "no", "why-0": "too much"}, "did not allow this call. too much")],
)
def test_a_call_is_approved_or_not(service: Running, url: str, fields: dict[str, str], expected: str) -> None:
    with signed_in(service, WRITER) as client:
        assert post(client, thread("approval"), thread("approval", "/answer"), **fields).status_code == 303

    async def resume(store: Checkpointer) -> str:
        await agent(store).resume(thread_id="approval")
        return str((await Thread.load(store, "approval")).messages)

    assert expected in in_store(url, resume, "team")


def test_an_answer_that_makes_no_sense_is_refused_before_anything_is_recorded(service: Running, url: str) -> None:
    before = in_store(url, lambda store: store.head("waiting"), "team")
    with signed_in(service, WRITER) as client:
        page, action = thread("waiting"), thread("waiting", "/answer")
        assert post(client, page, action, **{"answer-0": " "}).status_code == 400
        assert post(client, page, action, **{"answer-0": "{", "json-0": "1"}).status_code == 400
        assert post(client, page, action, **{"id-0": "9:9:x", "answer-0": "hm"}).status_code == 400
        assert client.post(thread("trip", "/answer"), data={"csrf": proof(client.get("/").text)}).status_code == 400
    assert in_store(url, lambda store: store.head("waiting"), "team") == before


def test_title_and_tags_can_be_changed_and_the_status_stays(service: Running, url: str) -> None:
    with signed_in(service, WRITER) as client:
        page, action = thread("trip", "/describe"), thread("trip", "/describe")
        assert post(client, page, action, title="New <title>", tags="a=1 b=2").status_code == 303
        assert "New &lt;title&gt;" in client.get("/").text
        assert post(client, page, action, title="x", tags="no-value").status_code == 400
    head = in_store(url, lambda store: store.head("trip"), "team")
    assert (head.title, head.tags, head.status) == ("New <title>", {"a": "1", "b": "2"}, "done")


def test_exports_are_downloads_that_can_be_imported_and_read(service: Running, url: str, tmp_path: Path) -> None:
    with signed_in(service, READER) as client:
        archive = client.get(thread("trip", "/export.clew"))
        assert archive.headers["content-disposition"].startswith("attachment; filename*=UTF-8''trip.clew")
        markdown = client.get(thread("trip", "/export.md"))
        assert markdown.text.startswith("# A trip")
        assert client.get(thread("nobody", "/export.clew")).status_code == 404
    (tmp_path / "t.clew").write_bytes(archive.content)

    async def back(store: Checkpointer) -> str:
        await Thread.import_(store, tmp_path / "t.clew")
        return plain_text((await Thread.load(store, "trip")).messages[0])

    assert in_store(f"sqlite:///{tmp_path}/other.db", back) == "Plan it."
