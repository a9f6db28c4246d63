"""Sessions of the three real coding agents, imported from a home folder by `clew import --from native`, and gone on with
on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from clew.compat.importers import import_all, open_source
from tests.e2e.desk import NAMES, desk, has_call, texts
from tests.providers.worker import worker

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.xdist_group("real-clis")]


@pytest.mark.parametrize("provider", NAMES)
async def test_a_session_that_clew_has_never_seen_goes_on_on_another_machine(provider: str, tmp_path: Path) -> None:
    with desk(tmp_path) as here:
        first, other = here.machine(), here.machine("another machine")
        unseen = f"sqlite:///{tmp_path}/unseen.db"
        with worker(first.place(), unseen, **here.job(first, provider, "RUN echo forty-two")) as one:
            handle = one.wait_for("handle")["handle"]
            one.wait_for("turn")
        async with open_checkpointer(here.url) as store:
            with open_source("native", first.env["HOME"]) as source:
                done = await import_all(source, store)
                (thread_id,) = done.ids
                assert (done.failed, source.keys()) == ({}, [thread_id])
            state = await Thread.load(store, thread_id)
            assert has_call(state.messages, "echo forty-two", "forty-two")
            assert (state.limits["provider"], state.status) == (provider, "done")
            session = here.agent(other, provider, store).resume_session(thread_id)
            turn = await session.send("Second prompt")
            assert "Second prompt" in (turn.output or "")
            asked = other.asked[-1]
            assert has_call(asked, "echo forty-two", "forty-two")
            assert texts(asked).count("Second prompt") == 1
        grown = here.job(first, provider, "Third prompt", handle=handle)
        with worker(first.place(), unseen, **grown) as two:
            two.wait_for("turn")
        async with open_checkpointer(here.url) as store:
            with open_source("native", first.env["HOME"]) as source:
                done = await import_all(source, store)
                assert "was worked on since" in done.failed[thread_id]
                again = await import_all(source, store, thread_id="again")
            assert again.ids == ("again",)
            assert texts((await Thread.load(store, "again")).messages).count("Third prompt") == 2
            assert texts((await Thread.load(store, thread_id)).messages).count("Third prompt") == 0
