"""The names of caw, on a provider whose program starts in milliseconds: `test_real_programs.py` has the real ones."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clew import sync
from clew.compat.caw import Agent, Session, TextBlock, ToolUse, UsageStats
from clew.errors import InvalidInput, ProviderError, ProviderLimited, SessionNotFound, ThreadNotFound, UsageError
from tests.limits import PATIENCE
from tests.providers.toy import PROGRAM, toy_place
from tests.providers.toys import with_toys
from tests.providers.worker import wait_until

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {"PATH": os.environ["PATH"], "CAW_LOG": "off"}
TOY_HANDLE = '{"version": 1, "provider": "toy", "session_id": "x", "resume_key": "secret-key"}'
PROCESS = """
import json, sys
from clew.compat.caw import Agent
from tests.providers.toys import with_toys
with_toys()
job = json.loads(sys.argv[1])
agent = Agent("toy", cwd=job["cwd"], env=job["env"], data_dir=job["data_dir"])
session = agent.resume_session(job["handle"]) if job["handle"] else agent.start_session()
answer = session.send(job["prompt"]).result
session.end()
print(json.dumps([answer, session.trajectory.num_turns, session.resume_handle]))
"""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_LOG", "off")
    for name in ("CAW_PROVIDER", "CAW_MODEL"):
        monkeypatch.delenv(name, raising=False)
    with_toys()


def toy(root: Path, data_dir: Path | None = None, provider: Any = "toy", **settings: Any) -> Agent:
    place = toy_place(root)
    return Agent(provider, cwd=place.cwd, env=place.env, data_dir=data_dir, **settings)


def file_of(data_dir: Path, session: Session) -> Any:
    return json.loads((data_dir / "sessions" / session.session_id / "trajectory.json").read_text())


def job_for(root: Path, data_dir: Path | None, handle: str, prompt: str) -> str:
    place = toy_place(root)
    where = {"cwd": str(place.cwd), "env": place.env, "data_dir": data_dir and str(data_dir)}
    return json.dumps({**where, "handle": handle, "prompt": prompt})


def in_another_process(root: Path, data_dir: Path | None, handle: str, prompt: str) -> tuple[str, int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, job_for(root, data_dir, handle, prompt)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    answer, turns, found = json.loads(done.stdout)
    return answer, turns, found


@pytest.mark.parametrize("with_data_dir", [True, False])
def test_the_handle_goes_on_in_another_process_with_and_without_the_data_dir(
    with_data_dir: bool, tmp_path: Path
) -> None:
    data_dir = tmp_path / "caw_data"
    _, turns, handle = in_another_process(tmp_path, data_dir, "", "say My number is 42.")
    assert turns == 1
    given = data_dir if with_data_dir else None
    answer, turns, again = in_another_process(tmp_path, given, handle, "echo")
    assert "assistant=My number is 42." in answer
    assert turns == (2 if with_data_dir else 1)
    assert again == handle
    assert len(json.loads(next(data_dir.rglob("trajectory.json")).read_text())["turns"]) == (2 if with_data_dir else 1)


def test_a_turn_has_its_result_as_text_its_blocks_and_what_it_used(tmp_path: Path) -> None:
    with toy(tmp_path).start_session() as session:
        turn = session.send("say I will look\ncall c1 Bash\nresult c1 two files\nsay Two.")
    assert (turn.result, turn.input.splitlines()[0], turn.status) == ("Two.", "say I will look", "done")
    assert turn.output == (TextBlock("I will look"), ToolUse("c1", "Bash", {}, "two files"), TextBlock("Two."))
    assert turn.tool_calls == [turn.output[1]]
    assert turn.usage == UsageStats(10, 5, 0, 0, 0.25)
    assert turn.usage.total_tokens == 15
    assert turn.duration_ms > 0


def test_the_trajectory_counts_prompts_and_stays_readable_after_the_end(tmp_path: Path) -> None:
    session = toy(tmp_path, system_prompt="Be brief.").start_session()
    assert session.trajectory.num_turns == 0
    session.send("say a\ncall c1 Bash\nresult c1 x\nsay b")
    session.send("say c")
    assert not session.trajectory.is_complete
    ended = session.end()
    assert ended == session.trajectory == session.end()
    assert (ended.num_turns, ended.total_tool_calls, ended.result) == (2, 1, "c")
    assert (ended.agent, ended.session_id, ended.system_prompt) == ("toy", session.session_id, "Be brief.")
    assert ended.is_complete
    assert ended.created_at <= ended.completed_at
    assert (ended.usage.output_tokens, ended.usage.cost_usd) == (12, 0.5)
    assert ended.total_usage == ended.usage
    assert ended.duration_ms == sum(turn.duration_ms for turn in ended.turns)
    assert json.loads(session.resume_handle)["session_id"] == session.session_id
    with pytest.raises(UsageError, match=r"has ended.*resume_session"):
        session.send("say d")


def test_there_is_no_handle_before_the_first_prompt_and_one_right_after_it(tmp_path: Path) -> None:
    session = toy(tmp_path).start_session()
    with pytest.raises(UsageError, match=r"Send one first: session.send"):
        _ = session.resume_handle
    session.send("say a")
    assert set(json.loads(session.resume_handle)) == {"version", "provider", "session_id", "resume_key"}
    fresh = toy(tmp_path).start_session()
    fresh.end()
    with pytest.raises(UsageError, match="has had a prompt"):
        _ = fresh.resume_handle


def test_a_session_that_was_asked_nothing_leaves_no_folder(tmp_path: Path) -> None:
    with toy(tmp_path, tmp_path / "caw_data").start_session() as session:
        pass
    assert session.trajectory.num_turns == 0
    assert not (tmp_path / "caw_data" / "sessions").exists()


def test_the_data_dir_has_a_store_and_a_readable_file_for_each_session_for_this_user_only(tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    for words in ("one", "two"):
        with toy(tmp_path, data_dir).start_session() as session:
            session.send(f"say {words}\ncall c1 Bash\nresult c1 x\nsay done {words}")
        found = file_of(data_dir, session)
        assert [turn["input"].splitlines()[0] for turn in found["turns"]] == [f"say {words}"]
        assert found["turns"][0]["output"][1] == {
            "type": "tool_use",
            "id": "c1",
            "name": "Bash",
            "arguments": {},
            "output": "x",
            "is_error": False,
        }
        assert (
            found["usage"]
            == found["total_usage"]
            == {
                "input_tokens": 10,
                "output_tokens": 5,
                "cache_read_tokens": 0,
                "cache_write_tokens": 0,
                "cost_usd": 0.25,
            }
        )
        assert found["completed_at"]
    assert len(list(data_dir.glob("sessions/*/trajectory.json"))) == 2
    for path in data_dir.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    with sync.open_checkpointer(f"sqlite:///{data_dir}/clew.db") as store:
        assert len(list(sync.Thread.list(store))) == 2


def test_the_system_prompt_on_record_goes_on_unless_another_one_is_given(tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    with toy(tmp_path, data_dir, system_prompt="Be brief.").start_session() as session:
        session.send("say one")

    for settings, prompt, sent in (
        ({}, "Be brief.", "work --system Be brief. user=say one"),
        ({"system_prompt": "Be kind."}, "Be kind.", "work --system Be kind. user=say one"),
        ({"system_prompt": ""}, "", "work user=say one"),
    ):
        with toy(tmp_path, data_dir, **settings).resume_session(session.resume_handle) as resumed:
            assert resumed.trajectory.system_prompt == prompt
            assert resumed.send("echo").result.startswith(sent)
        assert file_of(data_dir, session)["system_prompt"] == prompt


def test_turns_of_a_resumed_session_are_added_to_its_file_and_the_first_ones_stay_as_they_are(tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    with toy(tmp_path, data_dir).start_session() as session:
        session.send("say one")
    path = data_dir / "sessions" / session.session_id / "trajectory.json"
    noted = json.loads(path.read_text())
    noted["turns"][0]["note"] = "mine"
    path.write_text(json.dumps(noted))
    with toy(tmp_path, data_dir).resume_session(session.resume_handle) as resumed:
        assert (resumed.trajectory.num_turns, resumed.trajectory.result) == (1, "one")
        resumed.send("say two")
    found = file_of(data_dir, session)
    assert [turn["output"][0]["text"] for turn in found["turns"]] == ["one", "two"]
    assert found["turns"][0]["note"] == "mine"
    assert found["created_at"] == noted["created_at"] == resumed.trajectory.created_at
    assert found["usage"]["input_tokens"] == 20


def test_what_caw_did_meanwhile_is_in_the_file_once_and_in_its_place(tmp_path: Path) -> None:
    data_dir, place = tmp_path / "caw_data", toy_place(tmp_path)
    with toy(tmp_path, data_dir).start_session() as session:
        session.send("say one")
    key = json.loads(session.resume_handle)["resume_key"]
    path = data_dir / "sessions" / session.session_id / "trajectory.json"
    for words in ("say two", "say three", "say four"):
        subprocess.run([sys.executable, "-I", PROGRAM, place.home / "toy" / key], input=words.encode(), check=True)
        if words != "say two":  # that one was asked without the data_dir
            found = json.loads(path.read_text())
            found["turns"].append({"input": words, "output": [], "by": "caw"})
            path.write_text(json.dumps(found))
    with toy(tmp_path, data_dir).resume_session(session.resume_handle) as resumed:
        resumed.send("say five")
    turns = file_of(data_dir, session)["turns"]
    assert [turn["input"] for turn in turns] == ["say one", "say two", "say three", "say four", "say five"]
    assert ["by" in turn for turn in turns] == [False, False, True, True, False]


@pytest.mark.parametrize("damage", ["", '{"turns": 5}', "{"])
def test_a_file_that_is_damaged_is_kept_aside_and_made_anew_from_the_record(damage: str, tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    with toy(tmp_path, data_dir).start_session() as session:
        session.send("say one")
    path = data_dir / "sessions" / session.session_id / "trajectory.json"
    path.write_text(damage)
    with toy(tmp_path, data_dir).resume_session(session.resume_handle) as resumed:
        resumed.send("say two")
    assert len(file_of(data_dir, session)["turns"]) == 2
    assert path.with_name("trajectory.damaged.json").read_text() == damage


def test_a_session_that_was_killed_in_its_first_prompt_goes_on_by_its_id(tmp_path: Path) -> None:
    place, data_dir = toy_place(tmp_path), tmp_path / "caw_data"
    started = place.cwd / "started"
    job = job_for(tmp_path, data_dir, "", f"say I begin\nwrite {started} x\nsleep 600")
    with subprocess.Popen([sys.executable, "-c", PROCESS, job], cwd=ROOT, env=ENVIRONMENT) as process:
        wait_until(started.exists, "the program did not start")
        process.kill()
    with sync.open_checkpointer(f"sqlite:///{data_dir}/clew.db") as store:
        (head,) = sync.Thread.list(store)
    with toy(tmp_path, data_dir).resume_session(head.thread_id) as session:
        assert session.trajectory.turns[0].status == "interrupted"
        assert "say I begin" in session.send("echo").result, "the program is told what was stopped"
        assert session.trajectory.num_turns == 2


def test_a_damaged_file_of_caw_keeps_nobody_from_going_on_with_a_whole_handle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with toy(tmp_path).start_session() as session:
        session.send("say remember me")
    path = tmp_path / "caw_data" / "sessions" / session.session_id / "trajectory.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"agent": "toy", "turns": [')
    with toy(tmp_path, tmp_path / "caw_data").resume_session(session.resume_handle) as resumed:
        assert "assistant=remember me" in resumed.send("echo").result
    assert "goes on without its history" in caplog.text


def test_a_bare_session_id_is_enough_with_the_data_dir_and_only_there(tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    with toy(tmp_path, data_dir).start_session() as session:
        session.send("say remember me")
    with toy(tmp_path, data_dir, provider=None).resume_session(session.session_id) as resumed:
        assert resumed.resume_handle == session.resume_handle
        assert "assistant=remember me" in resumed.send("echo").result
    with pytest.raises(InvalidInput, match=r"Agent\(data_dir=…\)"):
        toy(tmp_path).resume_session(session.session_id)
    with pytest.raises(ThreadNotFound, match="nobody"):
        toy(tmp_path, data_dir).resume_session("nobody")
    assert not (data_dir / "sessions" / "nobody").exists()
    with pytest.raises(ThreadNotFound, match="elsewhere"):
        toy(tmp_path, tmp_path / "elsewhere").resume_session(session.session_id)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("session_id", ["../outside", "a/b", "..", ".hidden", "x" * 300, ""])
def test_the_id_in_a_handle_never_leads_out_of_the_data_dir(session_id: str, tmp_path: Path) -> None:
    handle = json.dumps({"version": 1, "provider": "toy", "session_id": session_id, "resume_key": "k"})
    with pytest.raises(InvalidInput):
        toy(tmp_path, tmp_path / "caw_data").resume_session(handle)


@pytest.mark.parametrize(
    ("handle", "said"),
    [
        ("", "empty"),
        ('{"version": 1', "not valid JSON"),
        ('{"version": 9, "provider": "toy", "session_id": "x", "resume_key": "y"}', "version 9"),
        ('{"version": 1, "provider": "toy", "session_id": "x"}', "resume_key"),
        ('{"version": 1, "provider": "nobody", "session_id": "x", "resume_key": "y"}', "no provider 'nobody'"),
    ],
)
def test_a_handle_that_is_none_says_why(handle: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=said):
        toy(tmp_path, provider=None).resume_session(handle)


@pytest.mark.parametrize("with_data_dir", [True, False])
@pytest.mark.parametrize("damaged", [json.dumps(TOY_HANDLE), TOY_HANDLE[1:], TOY_HANDLE[:-1], f"handle={TOY_HANDLE}"])
def test_an_error_never_quotes_a_handle_however_it_was_damaged(
    damaged: str, with_data_dir: bool, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="handle") as caught:
        toy(tmp_path, tmp_path / "caw_data" if with_data_dir else None).resume_session(damaged)
    assert "secret-key" not in str(caught.value)


def test_a_handle_of_a_conversation_that_is_gone_is_an_error_and_no_empty_answer(tmp_path: Path) -> None:
    handle = json.dumps({"version": 1, "provider": "toy", "session_id": "x", "resume_key": "y"})
    with pytest.raises(SessionNotFound, match="on this machine"):
        toy(tmp_path).resume_session(handle).send("echo")


def test_an_agent_without_a_provider_goes_on_with_that_of_the_handle_and_a_named_one_takes_it_over(
    tmp_path: Path,
) -> None:
    with toy(tmp_path).start_session() as session:
        session.send("say remember me")
    with toy(tmp_path, provider=None).resume_session(session.resume_handle) as resumed:
        assert resumed.send("say here").result == "here"
        assert resumed.trajectory.agent == "toy"
    with toy(tmp_path, provider="twin").resume_session(session.resume_handle) as moved:
        assert "assistant=remember me" in moved.send("echo").result
        assert moved.trajectory.agent == "twin"
        assert json.loads(moved.resume_handle)["provider"] == "twin"


def test_without_a_provider_the_environment_says_it_and_then_it_is_claude_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with toy(tmp_path, provider=None).start_session() as session:
        assert session.trajectory.agent == "claude_code"
    monkeypatch.setenv("CAW_PROVIDER", "twin, toy")
    for provider in (None, "auto"):
        with toy(tmp_path, provider=provider).start_session() as session:
            session.send("say hello")
            assert session.trajectory.agent == "twin"
    monkeypatch.setenv("CAW_PROVIDER", "nobody")
    with pytest.raises(InvalidInput, match="no provider 'nobody'"):
        toy(tmp_path, provider=None)
    assert toy(tmp_path, provider="cc").start_session().trajectory.agent == "claude_code"


def test_the_next_provider_goes_on_when_one_is_at_its_limit_in_any_turn(tmp_path: Path) -> None:
    place = toy_place(tmp_path)
    with toy(tmp_path, provider=["toy", "twin"]).start_session() as session:
        session.send("say remember me")
        (place.home / "toy-is-at-its-limit").touch()
        assert "assistant=remember me" in session.send("echo").result
        assert session.trajectory.agent == "twin"


def test_an_error_is_raised_is_on_record_and_the_session_goes_on(tmp_path: Path) -> None:
    data_dir = tmp_path / "caw_data"
    with toy(tmp_path, data_dir).start_session() as session:
        with pytest.raises(ProviderError, match="no such model"):
            session.send("say well\nfail failed no such model")
        assert session.trajectory.turns[0].status == "failed"
        assert session.send("say again").result == "again"
    assert len(file_of(data_dir, session)["turns"]) == 2


@pytest.mark.parametrize(
    ("mode", "shown", "hidden"),
    [
        ("full", ["[prompt] say " + "word " * 40, "[tool] Bash {}", "[output] two files", "[usage] 10 in, 5 out"], []),
        ("short", ["[prompt] say word word", "…", "[tool] Bash {}", "[answer] Two."], ["word " * 40]),
        ("result", ["[answer] Two.", "[usage] 10 in, 5 out · $0.25", "[session] 1 turn"], ["[prompt]", "[tool]"]),
        ("off", [], ["["]),
    ],
)
def test_as_much_is_printed_as_the_environment_asks_for(
    mode: str,
    shown: list[str],
    hidden: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CAW_LOG", mode)
    with toy(tmp_path).start_session() as session:
        session.send(f"say {'word ' * 40}\ncall c1 Bash\nresult c1 two files\nsay Two.")
    printed = capsys.readouterr().out
    assert [part for part in shown if part not in printed] == []
    assert [part for part in hidden if part in printed] == []


def test_a_limit_is_printed_and_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAW_LOG", "full")
    with toy(tmp_path).start_session() as session, pytest.raises(ProviderLimited):
        session.send("stream I be\nfail limit no quota")
    printed = capsys.readouterr().out
    assert "[answer] I be" in printed
    assert "[limit] toy: its limit is reached (no quota)" in printed


def test_words_are_printed_once_and_control_characters_are_made_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CAW_LOG", "full")
    with toy(tmp_path).start_session() as session:
        session.send("stream one two\nsay one two \nthink hm")
        session.send("say \x1b[2Jgone")
    printed = capsys.readouterr().out
    assert printed.count("one two") == 3, "twice in the prompt, once in the answer"
    assert "\x1b" not in printed
    assert "\\x1b[2Jgone" in printed


def test_words_that_the_output_cannot_show_are_printed_as_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAW_LOG", "full")
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    with toy(tmp_path).start_session() as session:
        assert session.send("say schön").result == "schön"
    assert b"[answer] sch\\xf6n" in printed.getvalue()
    monkeypatch.setattr(sys, "stdout", None)
    assert toy(tmp_path).completion("say schön").result == "schön"


def test_a_mode_of_display_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAW_LOG", "loud")
    with pytest.raises(InvalidInput, match="full, short, result, off"):
        toy(tmp_path).start_session()


def test_one_prompt_can_be_asked_in_a_session_of_its_own(tmp_path: Path) -> None:
    trajectory = toy(tmp_path).completion("say hello")
    assert (trajectory.result, trajectory.num_turns, trajectory.is_complete) == ("hello", 1, True)
