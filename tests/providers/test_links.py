"""Links in sessions of coding agents: what one points at is never copied into a store, nor written to."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from clew import Thread, open_checkpointer
from clew.checkpointers import MemoryCheckpointer
from clew.errors import Corrupt, InvalidInput
from clew.messages import Text, ToolCall, ToolResult, assistant, tool, user
from clew.providers import adopt, translate
from clew.providers.base import Conversation, Place, Provider
from clew.providers.claude_code import storage as claude
from clew.providers.codex.rollout import codex_home, locate
from clew.providers.files import check_folders, files_in, refuse_links
from clew.providers.opencode.installation import install_outputs
from clew.providers.opencode.storage import OUTPUTS
from clew.providers.registry import find_provider
from clew.workspace import Workspace
from tests.providers.toy import toy_place
from tests.providers.toys import toy_agent

pytestmark = [pytest.mark.anyio, pytest.mark.attack]

SECRET = "-----BEGIN PRIVATE KEY-----"


def a_place(root: Path) -> Place:
    """A home with a folder of secrets in it."""
    (root / "work").mkdir()
    (root / "home" / ".ssh").mkdir(parents=True)
    (root / "home" / ".ssh" / "id_rsa").write_text(SECRET)
    (root / "home" / ".ssh" / "0b5c1f0e-1111-4222-8333-444455556666.jsonl").write_text(SECRET)
    return Place(root / "work", {"HOME": str(root / "home"), "PATH": os.environ["PATH"]})


def a_copy(provider: Provider, folder: Path) -> str:
    """Write a session as Clew stores it; its key."""
    key = provider.new_key()
    folder.mkdir()
    said = (user("Hi"), assistant(ToolCall("c1", "Bash", {"command": "ls"})), tool(ToolResult("c1", (Text("no"),))))
    provider.write(Conversation(messages=said, cwd=str(provider.place.cwd)), key, folder)
    return key


def a_session(provider: Provider, folder: Path) -> str:
    """Put a session where the provider's program keeps it; its key. `folder` has the same as Clew stores it."""
    key = a_copy(provider, folder)
    provider.install_session(key, folder)
    return key


def holds_secret(folder: Path) -> bool:
    return any(SECRET in (folder / name).read_text(errors="replace") for name in files_in(folder))


@pytest.mark.parametrize("name", ["tasks", "session", "session/tool-results", "agents", "tool-output", "deep/er"])
def test_a_session_on_record_that_holds_a_link_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "kept" / name).parent.mkdir(parents=True)
    refuse_links(tmp_path / "kept")
    (tmp_path / "kept" / name).symlink_to(tmp_path)
    with pytest.raises(Corrupt, match=f"holds a link or a special file, '{name}'"):
        refuse_links(tmp_path / "kept")


@pytest.mark.parametrize("provider", ["claude_code", "codex"])
@pytest.mark.parametrize("name", ["tasks", "session", "agents"])
def test_no_link_of_a_copy_is_followed_where_a_session_is_put_in_its_place(
    tmp_path: Path, provider: str, name: str
) -> None:
    """Also without the check of the record: each provider's own code follows none."""
    program = find_provider(provider)(a_place(tmp_path))
    key = a_copy(program, tmp_path / "kept")
    before = set(files_in(tmp_path / "home"))
    (tmp_path / "kept" / name).symlink_to(tmp_path / "home" / ".ssh")
    program.install_session(key, tmp_path / "kept")
    new = [tmp_path / "home" / each for each in set(files_in(tmp_path / "home")) - before]
    assert len(new) == 1
    assert SECRET not in new[0].read_text()


def test_no_linked_output_of_opencode_is_copied_either_way(tmp_path: Path) -> None:
    a_place(tmp_path)
    secrets, kept, outputs = tmp_path / "home" / ".ssh", tmp_path / "kept", tmp_path / "outputs"
    (secrets / "tool_1").write_text(SECRET)
    kept.mkdir()
    (kept / OUTPUTS).symlink_to(secrets)
    install_outputs(kept, outputs)
    assert list(files_in(outputs)) == []
    (kept / OUTPUTS).unlink()
    (kept / OUTPUTS).mkdir()
    (kept / OUTPUTS / "tool_1").write_text("mine")
    outputs.symlink_to(secrets)
    with pytest.raises(InvalidInput, match="is a link"):
        install_outputs(kept, outputs)
    assert (secrets / "tool_1").read_text() == SECRET


@pytest.mark.parametrize("what", ["tasks", "beside", "beside a file"])
def test_no_link_in_a_session_of_claude_code_on_this_machine_is_copied(tmp_path: Path, what: str) -> None:
    place = a_place(tmp_path)
    program = find_provider("claude_code")(place)
    key = a_session(program, tmp_path / "kept")
    path = claude.locate(place, key)
    assert path is not None
    beside = path.with_suffix("")
    link, target = {
        "tasks": (claude.tasks_dir(place, key), ".ssh"),
        "beside": (beside, ".ssh"),
        "beside a file": (beside / "tool-results", ".ssh"),
    }[what]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(tmp_path / "home" / target)
    (tmp_path / "out").mkdir()
    assert program.export(key, tmp_path / "out")
    assert set(files_in(tmp_path / "out")) == {"session.jsonl"}
    assert not holds_secret(tmp_path / "out")


@pytest.mark.parametrize("provider", ["claude_code", "codex"])
def test_a_link_in_place_of_a_sessions_file_is_no_session(tmp_path: Path, provider: str) -> None:
    place = a_place(tmp_path)
    program = find_provider(provider)(place)
    key = a_session(program, tmp_path / "kept")
    path = claude.locate(place, key) if provider == "claude_code" else locate(codex_home(place), key)
    assert path is not None
    (tmp_path / "elsewhere").mkdir()
    path.rename(tmp_path / "elsewhere" / path.name)
    path.symlink_to(tmp_path / "elsewhere" / path.name)
    (tmp_path / "out").mkdir()
    assert not program.export(key, tmp_path / "out")
    assert [each.key for each in program.sessions()] == []


def test_nothing_is_written_through_a_link_of_this_machine(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    program = find_provider("claude_code")(place)
    key = program.new_key()
    (tmp_path / "kept" / "tasks").mkdir(parents=True)
    program.write(Conversation(messages=(user("Hi"), assistant("Hello.")), cwd=str(place.cwd)), key, tmp_path / "kept")
    (tmp_path / "kept" / "tasks").mkdir()
    (tmp_path / "kept" / "tasks" / "authorized_keys").write_text("mine")
    claude.tasks_dir(place, key).parent.mkdir(parents=True)
    claude.tasks_dir(place, key).mkdir()
    (claude.tasks_dir(place, key) / "deep").symlink_to(tmp_path / "home" / ".ssh")
    (tmp_path / "kept" / "tasks" / "deep").mkdir()
    (tmp_path / "kept" / "tasks" / "deep" / "authorized_keys").write_text("mine")
    program.install_session(key, tmp_path / "kept")  # what was there is set aside first
    assert not (tmp_path / "home" / ".ssh" / "authorized_keys").exists()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "home" / ".ssh")
    with pytest.raises(InvalidInput, match="is a link"):
        check_folders(link, link / "authorized_keys")


async def test_a_move_of_a_session_copies_nothing_that_a_link_points_at(tmp_path: Path) -> None:
    place = a_place(tmp_path)
    program = find_provider("claude_code")(place)
    key = a_session(program, tmp_path / "kept")
    tasks = claude.tasks_dir(place, key)
    tasks.parent.mkdir(parents=True)
    tasks.symlink_to(tmp_path / "home" / ".ssh")
    async with open_checkpointer(f"file:{tmp_path / 'store'}") as store:
        thread_id = await adopt(key, store, provider="claude_code", place=place)
        native = (await Thread.load(store, thread_id)).providers["claude_code"].native
        await Workspace(tmp_path / "native", store).restore(native)
    assert set(files_in(tmp_path / "native")) == {"session.jsonl"}
    before = set(files_in(tmp_path / "home"))
    await translate(key, source="claude_code", to="codex", place=place)
    new = [tmp_path / "home" / each for each in set(files_in(tmp_path / "home")) - before]
    assert new
    assert not [path for path in new if SECRET in path.read_text(errors="replace")]


async def test_a_thread_whose_session_on_record_holds_a_link_is_not_restored(tmp_path: Path) -> None:
    store = MemoryCheckpointer()
    session = toy_agent(toy_place(tmp_path / "first"), store).start_session(thread_id="s")
    await session.send("say hello")
    async with Thread.open(store, "s") as thread:
        known = thread.checkpoint.providers["toy"]
        workspace = Workspace(tmp_path / "native", store)
        await workspace.restore(known.native)
        (tmp_path / "native" / "tasks").symlink_to(tmp_path)
        forged = (await workspace.snapshot()).digest
        await thread.append(msgspec.structs.replace(known, native=forged))
    other = toy_agent(toy_place(tmp_path / "second"), store)
    with pytest.raises(Corrupt, match="'tasks', and no coding agent writes one"):
        await other.resume_session(session.resume_handle).send("echo")
