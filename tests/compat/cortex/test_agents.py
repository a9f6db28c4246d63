"""`GenericAgent` over a toy program and over Clew's own agent: sessions, ids, settings, errors."""

from __future__ import annotations

import inspect
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest

from clew import checkpointers, tool
from clew.compat.cortex import AgentConfig, AgentResponse, GenericAgent, check_session_resumption
from clew.errors import InvalidInput, ProviderMissing, SessionNotFound, ThreadNotFound, UsageError
from clew.log import Described, StatusChanged
from clew.messages import plain_text
from clew.models.base import ModelRequest
from clew.providers import Place
from clew.sync import MemoryCheckpointer, Thread, open_checkpointer
from clew.testing import ScriptedModel, call
from tests.limits import PATIENCE
from tests.providers.toy import toy_place
from tests.providers.toys import with_toys


@pytest.fixture
def place(tmp_path: Path) -> Place:
    with_toys()
    return toy_place(tmp_path / "machine")


def toy(place: Place, prompt: str, **settings: Any) -> AgentConfig:
    given: dict[str, Any] = {"checkpointer": f"sqlite:///{place.home}/clew.db", **settings}
    return AgentConfig(prompt, model_provider="toy", env=place.env, cwd=place.cwd, **given)


def remembering(request: ModelRequest) -> str:
    """Answer with all that the user has said so far."""
    return " | ".join(plain_text(message) for message in request.messages if type(message).__name__ == "User")


def own(prompt: str, model: Any = None, **settings: Any) -> AgentConfig:
    given: dict[str, Any] = {"checkpointer": None, **settings}
    return AgentConfig(prompt, model_provider="clew", model=model or ScriptedModel(remembering), **given)


# The names that the document shows.


def test_the_classes_have_the_names_and_parameters_of_the_document() -> None:
    assert list(inspect.signature(GenericAgent).parameters) == ["config"]
    assert list(inspect.signature(GenericAgent.run).parameters) == ["self"]
    resumed = inspect.signature(GenericAgent.resume).parameters
    assert [(name, parameter.default) for name, parameter in resumed.items()][1:] == [
        ("user_prompt", inspect.Parameter.empty),
        ("max_turns", None),
        ("timeout", None),
    ]
    assert all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in resumed.values())
    settings = inspect.signature(AgentConfig).parameters
    assert {"resume_from", "test_session_resumption", "model_provider", "user_prompt"} <= settings.keys()
    assert (settings["resume_from"].default, settings["test_session_resumption"].default) == (None, False)
    assert {"result", "session_id"} <= {field.name for field in fields(AgentResponse)}
    assert AgentResponse("Hi.", session_id="s").session_id == "s"
    assert AgentResponse().session_id is None
    assert GenericAgent(own("Hi."))._last_session_id is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("prompt", "user_prompt"),
        ("session_id", "resume_from"),
        ("max_tokens", r"Budget\(tokens"),
        ("mcp_servers", "--mcp-config"),
        ("colour", "There are user_prompt, model_provider"),
    ],
)
def test_an_unknown_setting_is_refused_with_what_it_is_called_here(name: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        AgentConfig("Hi.", **cast(Any, {name: "x"}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_provider": "claud"}, "Did you mean 'claude"),
        ({"model_provider": "openai:gpt-5"}, "model_provider='clew', model='openai:gpt-5'"),
        ({"model_provider": "clew"}, "needs a model"),
        ({"model_provider": "clew", "model": "openai:gpt-5", "cwd": "."}, "cwd"),
        ({"model_provider": "claude", "tools": [print]}, "tools: Claude Code runs its own"),
        ({"model_provider": "claude", "max_turns": 0}, "max_turns"),
        ({"model_provider": "openai", "max_turns": 3}, "Codex counts no turns"),
        ({"model_provider": "opencode", "max_turns": 3}, "opencode counts no turns"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_asked(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        GenericAgent(AgentConfig("Hi.", **settings))
    with pytest.raises(InvalidInput, match="AgentConfig"):
        GenericAgent(cast(Any, ...))


# Sessions of a program.


def test_an_agent_resumes_its_last_session(place: Place) -> None:
    agent = GenericAgent(toy(place, "say I am Alice", system_prompt="kind"))
    first = agent.run()
    assert (first.result, first.provider, first.status) == ("I am Alice", "toy", "done")
    assert (place.home / "toy" / str(first.session_id)).is_file(), "the id is the program's own"
    assert agent.session_id == agent._last_session_id == first.session_id
    second = agent.resume("echo")
    assert second.result is not None
    assert "assistant=I am Alice" in second.result
    assert "--system kind" in second.result, "the settings stay"
    assert (second.session_id, second.thread_id) == (first.session_id, first.thread_id)
    third = agent.run()
    assert third.session_id != first.session_id, "a run begins a session of its own"
    agent.close()


def test_another_agent_resumes_a_session_by_its_id(place: Place) -> None:
    first = GenericAgent(toy(place, "say I am Alice")).run()
    by_run = GenericAgent(toy(place, "echo", resume_from=first.session_id)).run()
    by_resume = GenericAgent(toy(place, "never asked", resume_from=first.session_id)).resume("echo")
    for response in (by_run, by_resume):
        assert "I am Alice" in str(response.result)
        assert (response.session_id, response.thread_id) == (first.session_id, first.thread_id)
    assert "never asked" not in str(by_resume.result)


def test_a_session_is_resumed_by_its_id_without_the_store_that_recorded_it(place: Place) -> None:
    first = GenericAgent(toy(place, "say I am Alice", checkpointer=None)).run()
    agent = GenericAgent(toy(place, "echo", checkpointer=None, resume_from=first.session_id))
    assert "I am Alice" in str(agent.run().result)
    assert "I am Alice" in str(agent.resume("echo").result)


def test_a_session_is_resumed_by_its_id_on_another_machine_that_reaches_the_store(place: Place, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/clew.db"
    first = GenericAgent(toy(place, "say I am Alice", checkpointer=store)).run()
    there = GenericAgent(
        toy(toy_place(tmp_path / "another"), "echo", checkpointer=store, resume_from=first.session_id)
    ).run()
    assert "I am Alice" in str(there.result)
    assert there.thread_id == first.thread_id


def test_a_session_that_was_imported_is_resumed_by_its_id_on_another_machine(place: Place, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/clew.db"
    first = GenericAgent(toy(place, "say I am Alice", checkpointer=url)).run()
    name = f"toy:{first.session_id}"
    tags = {"imported_from": "native", "imported_key": name, "imported_as": name}
    with open_checkpointer(url) as store:
        for copied in (name, "a copy of it"):
            Thread.copy(store, store, first.thread_id, new_id=copied)
            with Thread.open(store, copied) as thread:
                thread.append(Described(tags=tags), StatusChanged("done"))
        store.delete(first.thread_id)
    there = toy_place(tmp_path / "another")
    second = GenericAgent(toy(there, "echo", checkpointer=url, resume_from=first.session_id)).run()
    assert (second.thread_id, "I am Alice" in str(second.result)) == (name, True)
    for session_id in (first.session_id, second.session_id):
        again = GenericAgent(toy(there, "echo", checkpointer=url, resume_from=session_id)).run()
        assert again.thread_id == name


def test_a_session_whose_first_prompt_failed_is_resumed_too(place: Place) -> None:
    from clew.errors import ProviderError

    agent = GenericAgent(toy(place, "say I am Alice\nfail other down"))
    with pytest.raises(ProviderError, match="down"):
        agent.run()
    assert "I am Alice" in str(agent.resume("echo").result)


@pytest.mark.slow
def test_a_timeout_interrupts_and_the_session_goes_on(place: Place) -> None:
    agent = GenericAgent(toy(place, "sleep 1000", timeout=10))
    first = agent.run()
    assert (first.result, first.status, first.reason) == (None, "interrupted", "timeout: 10 s")
    assert agent.resume("say awake", timeout=PATIENCE).result == "awake"


def test_a_session_that_was_written_anew_is_found_by_its_former_id_too(place: Place) -> None:
    first = GenericAgent(toy(place, "say one\nforget all")).run()  # what the program keeps lacks the answer
    agent = GenericAgent(toy(place, "say two", resume_from=first.session_id))
    second = agent.run()
    assert second.session_id != first.session_id
    assert agent.session_id == second.session_id
    for session_id in (first.session_id, second.session_id):
        again = GenericAgent(toy(place, "echo", resume_from=session_id)).run()
        assert again.thread_id == first.thread_id
        assert "assistant=two" in str(again.result)


def test_a_fork_of_a_session_is_not_taken_for_the_session(place: Place) -> None:
    first = GenericAgent(toy(place, "say one")).run()
    with open_checkpointer(f"sqlite:///{place.home}/clew.db") as store, Thread.open(store, first.thread_id) as thread:
        thread.fork("a fork")
    again = GenericAgent(toy(place, "echo", resume_from=first.session_id)).run()
    assert (again.thread_id, again.session_id) == (first.thread_id, first.session_id)


def test_what_was_asked_is_on_record_and_the_id_is_a_tag(place: Place) -> None:
    first = GenericAgent(toy(place, "say one", name="tracer")).run()
    with open_checkpointer(f"sqlite:///{place.home}/clew.db") as store:
        (head,) = Thread.list(store)
    assert (head.thread_id, head.agent, head.status) == (first.thread_id, "tracer", "done")
    assert head.tags == {f"cortex:{first.session_id}": "toy"}


@pytest.mark.parametrize("kind", [MemoryCheckpointer, checkpointers.MemoryCheckpointer])
def test_a_store_of_the_users_is_used_and_left_open(kind: type[Any], place: Place) -> None:
    store = kind()
    agent = GenericAgent(toy(place, "say one", checkpointer=store))
    first = agent.run()
    agent.close()
    (head,) = Thread.list(store)
    assert head.thread_id == first.thread_id
    again = GenericAgent(toy(place, "echo", checkpointer=store, resume_from=first.session_id)).run()
    assert again.thread_id == first.thread_id
    (place.home / "toy-is-not-installed").touch()
    with pytest.raises(ProviderMissing):
        GenericAgent(toy(place, "say two", checkpointer=store)).run()
    assert len(list(Thread.list(store))) == 1


def test_a_folder_keeps_everything(place: Place) -> None:
    kept = GenericAgent(toy(place, "say one", checkpointer=..., data_dir=place.home / "kept"))
    kept.run()
    assert (place.home / "kept" / "clew-store").is_file()


def test_a_session_that_is_nowhere_is_an_error_and_leaves_nothing_behind(place: Place) -> None:
    agent = GenericAgent(toy(place, "echo", resume_from="0123456789abcdef"))
    for ask in (agent.run, lambda: agent.resume("echo")):
        with pytest.raises(SessionNotFound, match="0123456789abcdef"):
            ask()
    good = GenericAgent(toy(place, "say one", checkpointer=None))
    first = good.run()
    good.config.resume_from = "0123456789abcdef"
    with pytest.raises(SessionNotFound):
        good.run()
    assert good.resume("echo").session_id == first.session_id
    (place.home / "toy-is-not-installed").touch()
    with pytest.raises(ProviderMissing, match="make toy"):
        GenericAgent(toy(place, "say one")).run()
    with open_checkpointer(f"sqlite:///{place.home}/clew.db") as store:
        assert list(Thread.list(store)) == []


def test_an_agent_without_a_session_or_a_prompt_says_so(place: Place) -> None:
    agent = GenericAgent(toy(place, ""))
    with pytest.raises(UsageError, match="resume_from"):
        agent.resume("echo")
    with pytest.raises(InvalidInput, match="user_prompt"):
        agent.run()


# Clew's own agent.


def test_clews_own_agent_resumes_and_its_session_id_is_the_threads() -> None:
    agent = GenericAgent(own("I am Alice.", name="tracer"))
    first = agent.run()
    assert first.session_id == first.thread_id
    assert first.thread_id.startswith("tracer-")
    assert agent.resume("Who am I?").result == "I am Alice. | Who am I?"


def test_clews_own_agent_takes_tools_and_a_limit_of_turns(tmp_path: Path) -> None:
    looked: list[int] = []

    @tool
    def look(number: int) -> str:
        looked.append(number)
        return "seen"

    store = f"sqlite:///{tmp_path}/clew.db"
    model = ScriptedModel([*(call("look", number=number) for number in range(4)), "Done."])
    first = GenericAgent(own("Look.", model, tools=[look], max_turns=2, checkpointer=store)).run()
    assert (first.result, first.status, looked) == (None, "interrupted", [0, 1])
    agent = GenericAgent(own("", model, tools=[look], checkpointer=store, resume_from=first.session_id))
    assert agent.resume("Look on.", max_turns=10).result == "Done."
    assert looked == [0, 1, 2, 3]
    with pytest.raises(ThreadNotFound, match="'stranger'"):
        GenericAgent(own("Hi.", checkpointer=store, resume_from="stranger")).run()


def test_an_agent_that_keeps_nothing_cannot_resume_what_another_asked() -> None:
    first = GenericAgent(own("I am Alice.")).run()
    for ask in (
        GenericAgent(own("Who am I?", resume_from=first.session_id)).run,
        lambda: GenericAgent(own("", resume_from=first.session_id)).resume("Who am I?"),
    ):
        with pytest.raises(NotImplementedError, match="checkpointer=…"):
            ask()


# The self-test.


def test_the_self_test_says_that_resumption_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = f"sqlite:///{tmp_path}/clew.db"
    with caplog.at_level(logging.INFO, "clew.compat.cortex"):
        response = GenericAgent(own("Hi.", checkpointer=store, test_session_resumption=True)).run()
    assert response.result == "Hi."
    report = response.resumption
    assert report is not None
    assert (report.session_resumption_tested, report.session_resumption_working, report.problem) == (True, True, "")
    assert report.session_id != response.session_id
    assert "session_resumption_tested: true" in caplog.text
    assert "session_resumption_working: true" in caplog.text
    assert str(report) == "clew: resuming a session works"
    assert GenericAgent(own("Hi.", checkpointer=store)).run().resumption is None, "it is opt-in"


def test_the_self_test_reports_what_does_not_work(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    cannot = check_session_resumption(own("Hi."))
    assert (cannot.session_resumption_tested, cannot.session_resumption_working) == (True, False)
    assert "cannot be resumed" in cannot.problem
    forgets = check_session_resumption(
        own("Hi.", ScriptedModel(lambda request: "I do not know."), checkpointer=MemoryCheckpointer())
    )
    assert forgets.problem == "the resumed session did not know the name and the number"
    (place.home / "toy-is-not-installed").touch()
    missing = check_session_resumption(toy(place, "Hi."))
    assert (missing.session_resumption_tested, missing.session_id) == (False, None)
    assert "make toy" in missing.problem
    assert "toy: resuming a session does not work: toy: its program is not on PATH" in caplog.text
