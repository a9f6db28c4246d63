"""`clew why`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.agent.events import QUESTIONS, Question
from clew.checkpointers import Lease, Owner
from clew.log import MessageAdded, ModelCallStarted, StateSet, StatusChanged, ToolIntent
from clew.messages import ToolCall, assistant, user
from tests.cli.command_line import Samples, clew, objects

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("store"))


def test_each_ends_with_the_one_call_that_goes_on_in_the_program_that_made_it(samples: Samples) -> None:
    told = {name: samples.clew("why", name).stdout for name in ("trip", "report", "visa", "old")}
    assert {name: text.splitlines()[-1] for name, text in told.items()} == {
        "trip": "Go on in the program that made it: agent.resume('what to do next', thread_id='trip')",
        "report": "Go on in the program that made it: agent.resume(thread_id='report')",
        "visa": "Go on in the program that made it: agent.resume(thread_id='visa', answer='your answer')",
        "old": "Go on in the program that made it: agent.resume(thread_id='old')",
    }
    assert "ask_traveller asks (question): Which passport do you travel with?" in told["visa"]
    assert 'In doubt: send_mail(to="ada@example.org"), begun at ' in told["report"]
    assert "ended without a word while it ran send_mail" in told["report"]
    assert "is gone." in told["report"]
    assert "the request was refused (no such model)" in told["old"]


def test_json_says_it_all_and_the_command_finds_the_same_store(samples: Samples) -> None:
    (report,) = objects(clew("why", "report", "--json", "--store", samples.url))
    assert (report["next"], report["program_tools"]) == ("agent.resume(thread_id='report')", ["send_mail"])
    assert (report["status"], report["calls"][0]["status"], report["last"]["kind"]) == (
        "interrupted",
        "in doubt",
        "crashed",
    )
    assert (report["holder"]["is_here"], report["holder"]["is_gone"], report["holder"]["is_live"]) == (
        True,
        True,
        False,
    )
    (visa,) = objects(samples.clew("why", "visa", "--json"))
    assert [(asked["kind"], asked["id"]) for asked in visa["questions"]] == [("question", "1:0:clew:answer:0")]


async def test_several_questions_are_answered_by_their_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    asked = [
        Question("approval", "pay", "c1", "May pay be run?", {"usd": 5}, 1, 0, "clew:approval"),
        Question("in doubt", "mail", "c2", "Did it take effect?", None, 1, 1, "clew:in-doubt:1"),
    ]
    async with open_checkpointer(url) as store, Thread.open(store, "it's two") as thread:
        await thread.append(
            MessageAdded(user("Go.")),
            MessageAdded(assistant(ToolCall("c1", "pay", {"usd": 5}), ToolCall("c2", "mail", {}))),
            StateSet(QUESTIONS, msgspec.to_builtins(asked)),
            StatusChanged("waiting", "two"),
        )
    told = clew("why", "it's two", store=url).stdout
    assert told.splitlines()[-1] == (
        """Go on in the program that made it: agent.resume(thread_id="it's two", """
        """answer={'1:0:clew:approval': 'yes', '1:1:clew:in-doubt:1': 'run'})"""
    )
    assert 'pay asks (approval): May pay be run?\n  {"usd":5}\n' in told


async def test_who_holds_it_and_what_it_does_is_told_while_it_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    async with open_checkpointer(url) as store, Thread.open(store, "busy", label="worker 7") as thread:
        await thread.append(MessageAdded(user("Go.")), ModelCallStarted("a-model"))
        asked = clew("why", "busy", store=url).stdout
        call = ToolCall("c1", "dig", {"metres": 3})
        await thread.append(MessageAdded(assistant(call)), ToolIntent(1, 0, "k"))
        running = clew("why", "busy", store=url).stdout
        assert thread.head.lease is not None
    async with open_checkpointer(url) as store:  # once the thread is closed: its holder would renew its own lease
        elsewhere = Owner(host="far", boot="another boot", pid=1, started="1")
        lease = Lease(owner=elsewhere, token="t", expires_at=datetime.now(UTC) + timedelta(minutes=5))
        held = await store.head("busy")
        assert held is not None
        head = msgspec.structs.replace(held, lease=lease)
        await store.append("busy", [], at=head.frames, head=head)
        unseen = clew("why", "busy", store=url).stdout
    assert "The model was asked at " in asked
    assert "(worker 7), which is alive on this machine; its lease ends at " in asked
    assert "Running: dig(metres=3), begun at " in running
    assert running.splitlines()[-1] == "Go on: clew tail busy"
    assert "Held by process 1 on far, which cannot be seen from here" in unseen


async def test_a_model_call_without_an_answer_is_not_said_to_be_paid_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'clew.db'}"
    async with open_checkpointer(url) as store, Thread.open(store, "refused") as thread:
        await thread.append(MessageAdded(user("Go.")), ModelCallStarted("a-model"), ModelCallStarted("a-model"))
    told = clew("why", "refused", store=url).stdout
    assert "1 model call(s) have no answer on record, and may have been paid for." in told
