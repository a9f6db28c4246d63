"""Encrypted threads: the same promises, and nothing readable in the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.errors import InvalidInput, NotSealed, WrongKey
from clew.log import MessageAdded, StateSet
from clew.messages import assistant, user

pytestmark = pytest.mark.anyio

KEY, OTHER = "00" * 32, "11" * 32
SECRET = "my deploy target is staging-eu"


async def write(url: str, key: str | list[str] | None) -> None:
    async with open_checkpointer(url, key=key) as store, Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user(SECRET)), MessageAdded(assistant(SECRET * 5000)), StateSet("k", SECRET))
        await thread.fork("f")


@pytest.fixture(params=["sqlite:///{}/c.db", "file://{}/threads"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


async def test_a_thread_is_read_with_its_key_and_its_fork_too(url: str) -> None:
    await write(url, KEY)
    async with open_checkpointer(url, key=KEY) as store:
        for thread_id in ("t", "f"):
            state = await Thread.load(store, thread_id)
            assert state.messages == (user(SECRET), assistant(SECRET * 5000))
            assert state.title == SECRET


async def test_no_byte_of_the_conversation_is_in_the_store(url: str, tmp_path: Path) -> None:
    await write(url, KEY)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert SECRET.encode() not in data
            assert b"staging" not in data
    async with open_checkpointer(url, key=KEY) as store:
        assert [head.title async for head in store.heads()] == ["", ""]


@pytest.mark.parametrize("key", [None, OTHER])
async def test_without_the_right_key_nothing_opens_and_nothing_is_harmed(url: str, key: str | None) -> None:
    await write(url, KEY)
    async with open_checkpointer(url, key=key) as store:
        with pytest.raises(WrongKey, match=r"thread 't'.* is encrypted"):
            await Thread.load(store, "t")
        with pytest.raises(WrongKey):
            await Thread.open(store, "t").__aenter__()
    async with open_checkpointer(url, key=KEY) as store:
        assert (await Thread.load(store, "t")).turns == 1


async def test_the_key_may_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_KEY", KEY)
    await write(url, None)
    monkeypatch.setenv("CLEW_KEY", f"{OTHER},{KEY}")
    async with open_checkpointer(url) as store:
        assert (await Thread.load(store, "t")).turns == 1
    monkeypatch.setenv("CLEW_KEY", "hunter2")
    with pytest.raises(InvalidInput, match="a key is 32 bytes") as caught:
        open_checkpointer(url)
    assert "hunter2" not in str(caught.value)


async def test_after_a_rotation_a_thread_goes_on_under_the_new_key(url: str) -> None:
    await write(url, KEY)
    async with open_checkpointer(url, key=[OTHER, KEY]) as store, Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("more")), MessageAdded(assistant("yes")))
    async with open_checkpointer(url, key=[OTHER, KEY]) as store:
        assert (await Thread.load(store, "t")).turns == 2
    async with open_checkpointer(url, key=KEY) as store:
        with pytest.raises(WrongKey):
            await Thread.load(store, "t")


async def test_a_plain_thread_is_refused_with_a_key_and_goes_on_sealed_if_it_is_allowed(url: str) -> None:
    await write(url, None)
    async with open_checkpointer(url, key=KEY) as store:
        with pytest.raises(NotSealed, match="thread 't' is not sealed"):
            await Thread.load(store, "t")
        with pytest.raises(NotSealed, match=r"thread '.' \(and 1 more\) is not sealed"):
            _ = [head async for head in store.heads()]
    async with open_checkpointer(url, key=KEY, allow_plain=True) as store, Thread.open(store, "t") as thread:
        await thread.append(MessageAdded(user("from now on in private")))
    async with open_checkpointer(url, key=KEY) as store:
        with pytest.raises(NotSealed, match="thread 't', frame 0 is not sealed"):
            await Thread.load(store, "t")
    async with open_checkpointer(url, key=KEY, allow_plain=True) as store:
        assert (await Thread.load(store, "t")).messages[-1] == user("from now on in private")
    async with open_checkpointer(url) as store:
        with pytest.raises(WrongKey):
            await Thread.load(store, "t")
