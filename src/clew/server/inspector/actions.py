"""The routes by which a form of a page changes something: log in and out, fork a thread (continue from one of its turns
in a new thread), rewind it (take turns back), answer its questions, and change its title and tags.

Each form carries a proof that a page of this service made it, and a form without the proof is refused. To change a
thread by a form, a token needs only the scope `append`: each of these changes only adds to a log, and destroys nothing.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Any

import msgspec

from clew.agent.questions import record_answer
from clew.agent.rewind import rewind
from clew.checkpointers.checks import check_namespace, check_thread_id
from clew.checkpointers.http.protocol import JSON
from clew.errors import InvalidInput
from clew.log import Described
from clew.server.auth import ANYBODY, NOBODY, Token
from clew.server.inspector.login import cookie_for, no_cookie
from clew.server.inspector.plain_pages import describe_page, fork_page, login_page, rewind_page
from clew.server.inspector.templates import thread_url
from clew.server.inspector.threads_page import read_tags
from clew.server.inspector.visits import HEADERS, PageRoute, Visit, html, turn_of
from clew.server.response import Response
from clew.threads import Thread
from clew.threads.heads import is_reserved
from clew.threads.maintenance import upkeep
from clew.threads.ops.fork import check_turn, fork, state_for

__all__ = ["ROUTES"]


def _go(path: str, cookie: str | None = None) -> Response:
    """Return a redirect to a page, as the response to a form, so that reloading the page does not send the form again.
    `cookie` is the value of the header `Set-Cookie`; without it, the response has no such header."""
    set_cookie = {} if cookie is None else {"set-cookie": cookie}
    return Response(kind=JSON, status=303, headers={**HEADERS, "location": path, **set_cookie})


async def login_form(visit: Visit) -> Response:
    """Return the login form. If the address carries the token that was made at the start of the service, sign in with it
    instead: the link that `clew serve` prints does this.

    No other token is taken from an address, so nobody can sign a browser in with a token of their own by a link.
    """
    shared, request = visit.shared, visit.request
    next_path = _local(visit.query.get("next", "/"))
    made, given = shared.settings.made_token, visit.query.get("token", "")
    if made and hmac.compare_digest(made.encode(), given.encode("utf-8", "replace")):
        return _sign_in(visit, shared.tokens.find(b"Bearer " + made.encode()) or NOBODY, "", next_path)
    proof = shared.sessions.proof(request.browser)
    return html(login_page(proof, next_path, needs_token=shared.settings.needs_token))


async def login(visit: Visit) -> Response:
    """Check the token that the login form sent. If the service knows it, or needs no token, sign the browser in and
    redirect to the page that the form names. If not, return the login form again, with an error. An address that sent
    too many wrong tokens has to wait."""
    shared, request, fields = visit.shared, visit.request, await visit.form()
    given, namespace = fields.get("token", "").strip(), fields.get("namespace", "").strip()
    next_path = _local(fields.get("next", "/"))
    check_namespace(namespace)
    if not shared.settings.needs_token:
        return _sign_in(visit, ANYBODY, namespace, next_path)
    wrong, status, headers = "This server does not know that token.", 401, {}
    if wait := shared.sessions.wait(request.address):
        wrong = f"Too many wrong tokens came from your address. Wait {wait} s, then try again."
        status, headers = 429, {"retry-after": str(wait)}
    elif (token := shared.tokens.find(b"Bearer " + given.encode("utf-8", "replace"))) is not None:
        return _sign_in(visit, token, namespace, next_path)
    else:
        shared.sessions.failed(request.address)
    proof = shared.sessions.proof(request.browser)
    return html(login_page(proof, next_path, needs_token=True, wrong=wrong), status, headers)


def _sign_in(visit: Visit, token: Token, namespace: str, next_path: str) -> Response:
    """Begin a login session with this token, and return a redirect to `next_path` that gives the browser the session's
    cookie. `namespace` is the part of the token's namespace (a part of the store with threads of its own) that the user
    chose; empty for all of it."""
    visit.shared.sessions.end(visit.request.browser)
    visit.request.token = token  # for the logs
    browser = visit.shared.sessions.start(token, namespace)
    return _go(next_path, cookie_for(browser, secure=visit.request.is_secure))


async def logout(visit: Visit) -> Response:
    await visit.form()
    visit.shared.sessions.end(visit.request.browser)
    return _go("/", no_cookie(secure=visit.request.is_secure))


def _local(path: str) -> str:
    """Return the path if it is on this server and can stand in a header; otherwise `/`, so that a link cannot lead to
    another site."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\"))
    return path if is_local and path.isascii() and path.isprintable() else "/"


async def fork_form(visit: Visit) -> Response:
    thread_id = visit.thread_id
    async with visit.store() as store:
        state = await Thread.load(store, thread_id)
    turn = state.turns if (given := visit.number("turn")) is None else given
    check_turn(thread_id, state, turn)
    return html(fork_page(visit.viewer, thread_id, turn, f"{thread_id[:900]}-fork-{secrets.token_hex(2)}"))


async def make_fork(visit: Visit) -> Response:
    """Fork a thread: make a new thread that continues from the turn that the form names. Redirect to the page of the
    new thread. Takes no lease, so a process that works on the original is not disturbed."""
    thread_id, fields = visit.thread_id, await visit.form()
    new_id, turn = fields.get("new_id", "").strip(), turn_of(fields)
    check_thread_id(new_id)
    if is_reserved(new_id):
        raise InvalidInput("ids that begin with 'clew:' are reserved for Clew. Choose another one.")
    async with visit.store() as store:
        await fork(store, thread_id, await state_for(store, thread_id, turn), new_id, turn)
    return _go(thread_url(new_id))


async def rewind_form(visit: Visit) -> Response:
    thread_id = visit.thread_id
    async with visit.store() as store:
        state = await Thread.load(store, thread_id)
    turn = visit.number("turn") or 0
    check_turn(thread_id, state, turn)
    return html(rewind_page(visit.viewer, thread_id, turn, state.turns))


async def make_rewind(visit: Visit) -> Response:
    thread_id, fields = visit.thread_id, await visit.form()
    async with visit.store() as store:
        await rewind(store, thread_id, turn_of(fields))
    return _go(thread_url(thread_id))


async def answer(visit: Visit) -> Response:
    thread_id, fields = visit.thread_id, await visit.form()
    async with visit.store() as store:
        await record_answer(store, thread_id, _answers(fields))
    return _go(thread_url(thread_id))


def _answers(fields: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, question in fields.items():
        kind, _, number = name.partition("-")
        if kind == "id":
            found[question] = _answer(fields, number)
    if not found:
        raise InvalidInput("the form does not say which question it answers")
    return found


def _answer(fields: dict[str, str], number: str) -> Any:
    text = fields.get(f"answer-{number}", "")
    if fields.get(f"kind-{number}") == "approval":
        return True if text == "yes" else fields.get(f"why-{number}", "").strip() or False
    if f"again-{number}" in fields:
        return "run"
    if not text.strip():
        raise InvalidInput("an answer has at least one character")
    if f"json-{number}" not in fields:
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the answer is not valid JSON: {error}") from None


async def describe_form(visit: Visit) -> Response:
    thread_id = visit.thread_id
    async with visit.store() as store:
        state = await Thread.load(store, thread_id)
    return html(describe_page(visit.viewer, thread_id, state.title, state.tags))


async def describe(visit: Visit) -> Response:
    thread_id, fields = visit.thread_id, await visit.form()
    tags = read_tags(fields.get("tags", ""))
    async with visit.store() as store, upkeep(store, thread_id, "describing") as thread:
        await thread.append(Described(fields.get("title", "").strip(), tags))
    return _go(thread_url(thread_id))


ROUTES: list[PageRoute] = [
    ("GET", "/login", None, login_form),
    ("POST", "/login", None, login),
    ("POST", "/logout", "read", logout),
    ("GET", "/t/{thread}/fork", "append", fork_form),
    ("POST", "/t/{thread}/fork", "append", make_fork),
    ("GET", "/t/{thread}/rewind", "append", rewind_form),
    ("POST", "/t/{thread}/rewind", "append", make_rewind),
    ("POST", "/t/{thread}/answer", "append", answer),
    ("GET", "/t/{thread}/describe", "append", describe_form),
    ("POST", "/t/{thread}/describe", "append", describe),
]
