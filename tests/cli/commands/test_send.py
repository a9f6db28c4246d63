"""`clew send`."""

from __future__ import annotations

from pathlib import Path

import pytest

from clew import Thread, open_checkpointer
from tests.cli.command_line import Samples, objects

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def posted(samples: Samples, thread_id: str) -> list[tuple[str | None, object]]:
    async with open_checkpointer(samples.url) as store, Thread.open(store, thread_id) as thread:
        return [(post.prompt, post.answer) for post in await thread.posts()]


async def test_what_is_sent_waits_in_the_inbox_and_is_shown(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    for _ in range(2):
        sent = samples.clew("send", "trip", "And the museum?", "--prompt-id", "m")
        assert sent.stdout == "trip: posted as m\n"
        assert sent.stderr == (
            "Nobody runs it now. To go on with it in the program that made it: agent.resume(thread_id='trip')\n"
        )
    shown, why = samples.clew("show", "trip").stdout, samples.clew("why", "trip").stdout
    assert shown.count("not taken in yet: And the museum?") == 1
    assert why.count("not taken in yet: And the museum?") == 1
    for command in ("show", "why"):
        (found,) = objects(samples.clew(command, "trip", "--json"))
        assert [(post["prompt"], post["prompt_id"]) for post in found["posts"]] == [("And the museum?", "m")]
    assert "clew:inbox" not in samples.clew("ls").stdout
    assert await posted(samples, "trip") == [("And the museum?", None)]


async def test_a_prompt_comes_from_the_standard_input_and_an_answer_from_an_option(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    (sent,) = objects(samples.clew("send", "visa", "-", "--answer", "The blue one.", "--json", given="Then pack."))
    assert sent.keys() == {"thread_id", "prompt_id", "holder", "next"}
    assert await posted(samples, "visa") == [("Then pack.", "The blue one.")]


async def test_a_thread_that_a_process_holds_is_told_who_takes_it_in(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    async with open_checkpointer(samples.url) as store, Thread.open(store, "trip", label="test") as thread:
        sent = samples.clew("send", "trip", "Hurry.")
        assert [post.prompt for post in await thread.posts()] == ["Hurry."]
    assert "(test) runs it, and takes this in at the end of its turn. To follow it: clew tail trip" in sent.stderr


async def test_what_cannot_be_sent_is_refused_and_nothing_is_posted(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    nothing = samples.clew("send", "trip")
    assert (nothing.returncode, "there is nothing to send" in nothing.stderr) == (2, True)
    assert samples.clew("send", "trip", " ").returncode == 2
    assert samples.clew("send", "trip", "--answer", "yes").returncode == 2
    assert samples.clew("send", "nobody", "Hello.").returncode == 3
    assert await posted(samples, "trip") == []
