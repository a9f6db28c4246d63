"""The audit log: who did what, when and from where; and what happens if it cannot be written."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Thread
from clew.checkpointers.http.store import HTTPCheckpointer
from clew.errors import Unavailable
from clew.log import MessageAdded
from clew.messages import user
from clew.testing.contract.builders import append
from tests.server.inspector.looking import post
from tests.server.serving import Running, a_token, serving

pytestmark = pytest.mark.anyio

WRITER, READER = "the-long-writer-token", "the-long-reader-token"
TOKENS = (a_token(WRITER, "team", ("read", "write")), a_token(READER, "team", ("read",)))


def client(running: Running, token: str = WRITER) -> HTTPCheckpointer:
    return HTTPCheckpointer(running.url, token=token, retries=0)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_request_leaves_who_what_when_and_from_where_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(tokens=TOKENS, audit=path) as running:
        async with client(running) as store:
            await append(store, "thread", b"frame")
            await store.delete("thread")
    begin, end, deleting, deleted = lines(path)
    assert (begin["event"], begin["method"], begin["route"]) == ("begin", "POST", "/v1/threads/{thread}/frames")
    assert (begin["label"], begin["token"], begin["tenant"]) == (TOKENS[0].label, TOKENS[0].id, "team")
    assert (begin["from"], end["event"], end["status"]) == ("127.0.0.1", "end", 200)
    assert begin["id"] == end["id"] != deleting["id"] == deleted["id"]
    assert deleting["method"] == "DELETE"
    assert len(begin["thread"]) == 16
    assert begin["time"] <= end["time"]
    assert WRITER not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_what_was_refused_to_a_known_token_and_each_login_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(tokens=TOKENS, audit=path) as running:
        headers = {"authorization": f"Bearer {READER}"}
        assert httpx.delete(f"{running.url}/v1/threads/YQ", headers=headers).status_code == 403
        assert httpx.get(f"{running.url}/v1/threads/YQ").status_code == 401
        with httpx.Client(base_url=running.url) as browser:
            post(browser, "/login", "/login", token="a-wrong-token-of-nobody")
            post(browser, "/login", "/login", token=READER)
    refused, wrong, right = lines(path)
    assert (refused["label"], refused["status"], refused["method"]) == (TOKENS[1].label, 403, "DELETE")
    assert (wrong["label"], wrong["status"], wrong["from"]) == ("", 401, "127.0.0.1")
    assert (right["token"], right["status"]) == (TOKENS[1].id, 303)


async def test_a_file_that_is_moved_away_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(tokens=TOKENS, audit=path) as running:
        async with client(running) as store:
            await store.head("thread")
            path.rename(tmp_path / "audit.1")
            await store.head("thread")
    before, after = lines(tmp_path / "audit.1"), lines(path)
    assert before[0]["event"] == "begin"
    assert after[-1]["event"] == "end"
    assert len(before) + len(after) == 4  # the line of an outcome may come after the answer


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
@pytest.mark.parametrize("required", [True, False])
async def test_what_cannot_be_recorded_is_refused_if_that_is_asked_for(required: bool, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with serving(tokens=TOKENS, audit=path, audit_required=required) as running:
        async with client(running) as store:
            async with Thread.open(store, "thread") as thread:
                await thread.append(MessageAdded(user("Hello.")))
            (tmp_path / "full").symlink_to("/dev/full")
            (tmp_path / "full").rename(path)
            if not required:
                await store.delete("thread")
                assert await store.head("thread") is None
                return
            with pytest.raises(Unavailable, match="audit log of the server cannot be written"):
                await store.delete("thread")
            with pytest.raises(Unavailable, match="audit log"):
                await store.head("thread")
            path.unlink()
            assert len((await Thread.load(store, "thread")).messages) == 1
